// Judges each frame of the socket before it is swapped in: it names the first and the last event in it. What the page
// has is dropped; after a hole it asks for the whole view. A reconnect carries the place the page has come to.
'use strict';
(() => {
  const facts = (element) => ({
    kind: element.dataset.kind,
    epoch: element.dataset.epoch,
    first: Number(element.dataset.first),
    last: Number(element.dataset.last),
    run: element.dataset.run,
    fence: Number(element.dataset.fence),
  });
  const start = document.getElementById('cursor');
  if (start === null) return;
  const at = facts(start);
  const fences = new Map([[at.run, at.fence]]);
  const ASK_AGAIN_MS = 5000;
  let asked = 0; // when the whole view was asked for; 0: it was not

  const read = (message) => {
    const head = /^\s*<i id="cursor"[^>]*>/.exec(message);
    if (head === null) return null;
    const parsed = new DOMParser().parseFromString(head[0], 'text/html');
    return facts(parsed.getElementById('cursor'));
  };

  const judge = (frame) => {
    if (frame.kind === 'snapshot') return 'take';
    const isFirst = at.epoch === '' && at.last === 0 && frame.first === 1;
    if (asked > 0 || (frame.epoch !== at.epoch && !isFirst)) return 'ask';
    if (frame.kind === 'resume') return frame.first === at.last + 1 ? 'take' : 'ask';
    if (frame.last <= at.last) return 'drop';
    if (frame.first !== at.last + 1) return 'ask';
    return frame.fence > 0 && frame.fence < (fences.get(frame.run) ?? 0) ? 'pass' : 'take';
  };

  // A snapshot begins at its oldest turn: what the page shows from there on and the snapshot does not have is gone.
  const prune = (message) => {
    const turns = [...new DOMParser().parseFromString(message, 'text/html').querySelectorAll('article.turn')];
    const kept = new Set(turns.map((turn) => turn.id));
    const oldest = Math.min(...turns.map((turn) => Number(turn.dataset.order)));
    for (const turn of document.querySelectorAll('#turns > article.turn')) {
      if (!kept.has(turn.id) && (turns.length === 0 || Number(turn.dataset.order) >= oldest)) turn.remove();
    }
  };

  // True when the frame may be swapped in. `ask` is called when the whole view is wanted.
  portal.accept = (message, ask) => {
    const frame = read(message);
    if (frame === null) return true;
    const verdict = judge(frame);
    if (verdict === 'ask') {
      const now = performance.now();
      if (asked === 0 || now - asked > ASK_AGAIN_MS) {
        asked = now;
        ask();
      }
      return false;
    }
    if (verdict === 'drop') return false;
    Object.assign(at, frame);
    if (verdict === 'pass') return false;
    if (frame.kind === 'snapshot') {
      asked = 0;
      prune(message);
    }
    if (frame.fence > 0) fences.set(frame.run, frame.fence);
    return true;
  };

  document.addEventListener('htmx:wsBeforeMessage', (event) => {
    const session = document.getElementById('composer').dataset.session;
    const ask = () =>
      event.detail.socketWrapper.send(JSON.stringify({ event: 'resume', session_id: session }));
    if (!portal.accept(event.detail.message, ask)) event.preventDefault();
  });

  htmx.createWebSocket = (address) => {
    const url = new URL(address, location.href);
    url.searchParams.set('last_seq', String(at.last));
    if (at.epoch !== '') url.searchParams.set('epoch', at.epoch);
    asked = 0;
    return new WebSocket(url, []);
  };
})();
