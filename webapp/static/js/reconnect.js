// Keeps the socket open: tries again after 0.5 to 15 s, at once when the network or the tab comes back; after five
// failed tries it also asks for the whole view every 10 s. Says so at #connection.
'use strict';
(() => {
  const scroll = document.getElementById('scroll');
  if (scroll === null) return;
  const FOR_EVER_MS = 0x7fffffff;
  const SIGNED_OUT = 1008;
  htmx.config.wsReconnectDelay = () => FOR_EVER_MS; // the extension's own tries: only we decide when
  let socket = null;
  let state = 'connecting';
  let tries = 0;
  let timer = 0;
  let due = 0;
  let polling = 0;

  const say = (conn, seconds) => {
    const sign = document.getElementById('connection');
    const text = (sign.dataset[`word${conn[0].toUpperCase()}${conn.slice(1)}`] ?? '').replace('{n}', seconds);
    if (sign.dataset.conn !== conn) sign.dataset.conn = conn;
    if (sign.textContent !== text) sign.textContent = text;
  };

  const tell = () => {
    if (state === 'open') return;
    const seconds = Math.max(1, Math.ceil((due - performance.now()) / 1000));
    if (tries <= 1 && state !== 'out') return say('connecting', 0); // a blink is not worth a word
    say(polling ? 'polling' : 'lost', seconds);
  };
  setInterval(tell, 1000);

  const connect = () => {
    clearTimeout(timer);
    if (socket !== null && state === 'closed') socket.reconnect();
  };

  const later = () => {
    const delay = Math.min(15000, 500 * 2 ** tries) * (0.5 + Math.random() / 2);
    tries += 1;
    due = performance.now() + delay;
    timer = setTimeout(connect, delay);
    if (tries > 5 && polling === 0) polling = setInterval(poll, 10000);
    tell();
  };

  const poll = async () => {
    try {
      const answer = await fetch(scroll.dataset.poll, { headers: { 'HX-Request': 'true' }, redirect: 'manual' });
      if (answer.type === 'opaqueredirect') return signedOut();
      const frame = await answer.text();
      if (!answer.ok || !portal.accept(frame, () => {})) return;
      portal.makePlaces(frame);
      htmx.swap('#scroll', frame, { swapStyle: 'none' });
      portal.changed();
      tell();
    } catch {
      // The portal does not answer: the sign says so already.
    }
  };

  const signedOut = () => {
    state = 'out';
    clearInterval(polling);
    portal.notice(portal.word('signedOut'));
    say('lost', '…');
  };

  document.addEventListener('htmx:wsConnecting', () => { state = 'connecting'; });
  document.addEventListener('htmx:wsOpen', (event) => {
    socket = event.detail.socketWrapper;
    state = 'open';
    tries = 0;
    clearInterval(polling);
    polling = 0;
    say('live', 0);
    document.dispatchEvent(new Event('portal:open'));
  });
  document.addEventListener('htmx:wsClose', (event) => {
    socket = event.detail.socketWrapper;
    state = 'closed';
    if (event.detail.event.code === SIGNED_OUT) signedOut();
    else later();
  });
  window.addEventListener('online', connect);
  document.addEventListener('visibilitychange', () => { if (!document.hidden) connect(); });
  portal.isOpen = () => state === 'open';
})();
