// What was sent and the portal has not taken yet, oldest first: one turn at a time and in order, each with its own key
// on every try, so that none is lost and none arrives twice. What is refused goes back to the field.
'use strict';
(() => {
  const form = document.getElementById('composer');
  const box = document.getElementById('outbox');
  if (box === null) return;
  const ACK_MS = 5000;
  const SHOWN_AFTER_MS = 250; // what is taken sooner needs no word
  let waiting = []; // {queue_id, input, model, skill_folder, at}
  let posting = false;
  let isLate = false;
  let timer = 0;

  const rowOf = (turn) => {
    const row = document.getElementById('outbox-row').content.firstElementChild.cloneNode(true);
    row.querySelector('.state').textContent = portal.word(isLate ? 'waiting' : 'sending');
    row.querySelector('.text').textContent = turn.input.slice(0, 300);
    return row;
  };
  const show = () => {
    const shown = waiting.filter((turn) => performance.now() - turn.at >= SHOWN_AFTER_MS);
    box.hidden = shown.length === 0;
    box.replaceChildren(...shown.map(rowOf));
  };

  const settled = (left) => {
    clearTimeout(timer);
    waiting = left;
    isLate = false;
    document.querySelectorAll('#notices [data-unsent]').forEach((notice) => notice.remove());
    document.dispatchEvent(new Event('portal:draft'));
    show();
  };
  const taken = () => {
    settled(waiting.slice(1));
    deliver();
  };
  const refused = () => {
    portal.giveBack(waiting.map((turn) => turn.input));
    settled([]);
  };

  const look = () => {
    if (waiting.length === 0) return;
    const id = CSS.escape(waiting[0].queue_id);
    if (document.querySelector(`#turns [data-queue-id="${id}"], #queue [data-queue-id="${id}"], #ack[data-id="${id}"]`)) taken();
    else if (document.querySelector(`#notices [data-for="${id}"]`)) refused();
  };

  const sayLate = () => {
    isLate = true;
    show();
    if (document.querySelector('#notices [data-unsent]')) return;
    portal.notice(portal.word('unsent'), 'queued');
    document.getElementById('notices').lastElementChild.dataset.unsent = '';
  };

  // The oldest by plain HTTP, again and again until the portal answers.
  const deliver = async () => {
    if (waiting.length === 0 || posting) return;
    clearTimeout(timer);
    const [turn] = waiting;
    const { at, ...fields } = turn;
    posting = true;
    const answer = await portal.post(form, null, fields);
    posting = false;
    if (waiting[0] !== turn) {
      deliver(); // it was taken meanwhile
    } else if (answer === null || answer.status === 503) {
      sayLate();
      timer = setTimeout(deliver, ACK_MS);
    } else if (answer.ok) {
      taken();
    } else {
      refused();
      portal.show(answer);
    }
  };

  const put = (turns) => {
    waiting.push(...turns.map((turn) => ({ ...turn, at: performance.now() })));
    document.dispatchEvent(new Event('portal:draft'));
    setTimeout(show, SHOWN_AFTER_MS);
  };

  // Takes a turn that is to be sent. True when it may go over the socket now: the first of them, and the socket is open.
  portal.toSend = (turn) => {
    put([turn]);
    document.dispatchEvent(new CustomEvent('portal:sent', { detail: turn.queue_id }));
    if (waiting.length > 1) return false; // its turn comes when those before it are taken
    if (portal.isOpen()) timer = setTimeout(deliver, ACK_MS); // the socket may be dead: the key makes a second way safe
    else deliver();
    return portal.isOpen();
  };
  // What is to be kept over a reload, and what a reload has kept.
  portal.unsent = () => waiting.map(({ at, ...fields }) => fields);
  portal.sendAgain = (turns) => {
    put(turns);
    look();
    deliver();
  };

  document.addEventListener('portal:open', deliver);
  portal.onChange(look);
})();
