// The field: Enter sends, unless a word is still being composed; a turn gets its key when one starts to type it and
// keeps it on every retry; the text stays until the portal has taken it.
'use strict';
(() => {
  const form = document.getElementById('composer');
  if (form === null) return;
  const field = form.elements.input;
  const key = form.elements.queue_id;
  const ACK_MS = 5000;
  let sending = null; // {id, text}: what the portal has not confirmed yet
  let tried = false; // the key was used for a text that may have arrived
  let timer = 0;

  const newKey = () =>
    [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');

  const sign = () => {
    const button = document.getElementById('send');
    const state = document.getElementById('composer-state').dataset;
    field.placeholder = state.placeholder;
    field.disabled = state.maySend !== 'yes';
    button.disabled = field.disabled || sending !== null;
    if (!CSS.supports('field-sizing', 'content')) field.rows = Math.min(10, field.value.split('\n').length);
  };

  const taken = () => {
    clearTimeout(timer);
    if (field.value === sending.text) field.value = '';
    sending = null;
    tried = false;
    key.value = field.value === '' ? '' : newKey();
    document.dispatchEvent(new Event('portal:draft'));
    sign();
  };

  const refused = () => {
    clearTimeout(timer);
    sending = null;
    sign();
  };

  const look = () => {
    if (sending !== null) {
      const id = CSS.escape(sending.id);
      if (document.querySelector(`#turns [data-queue-id="${id}"], #queue [data-queue-id="${id}"], #ack[data-id="${id}"]`)) taken();
      else if (document.querySelector(`#notices [data-for="${id}"]`)) refused();
    }
    sign();
  };

  // Called before a turn goes over the socket; false when there is nothing to send.
  portal.compose = (event) => {
    if (sending !== null || field.value.trim() === '' || field.disabled) {
      event.preventDefault();
      return false;
    }
    key.value ||= newKey();
    sending = { id: key.value, text: field.value };
    tried = true;
    Object.assign(event.detail.parameters, { id: key.value, queue_id: key.value, input: field.value });
    clearTimeout(timer);
    timer = setTimeout(portal.composeByHttp, ACK_MS); // sent over a socket that may be dead: the key makes it safe
    sign();
    return true;
  };

  portal.composeByHttp = async () => {
    if (sending === null) return;
    clearTimeout(timer);
    const answer = await portal.post(form);
    if (sending === null) return;
    if (answer === null) {
      if (!document.querySelector('#notices [data-unsent]')) {
        portal.notice(portal.word('unsent'), 'queued');
        document.getElementById('notices').lastElementChild.dataset.unsent = '';
      }
      timer = setTimeout(portal.composeByHttp, ACK_MS);
      return;
    }
    document.querySelectorAll('#notices [data-unsent]').forEach((box) => box.remove());
    if (answer.ok) taken();
    else if (answer.status === 503) timer = setTimeout(portal.composeByHttp, ACK_MS);
    else refused();
    portal.show(answer);
  };

  field.addEventListener('keydown', (event) => {
    const composes = event.isComposing || event.keyCode === 229;
    const plain = !event.shiftKey && !event.altKey && !event.ctrlKey && !event.metaKey;
    if (event.key !== 'Enter' || composes || !plain || matchMedia('(pointer: coarse)').matches) return;
    event.preventDefault();
    form.requestSubmit();
  });
  field.addEventListener('input', () => {
    if (key.value === '' || (tried && sending === null)) key.value = newKey();
    tried = tried && sending !== null;
    sign();
  });
  document.addEventListener('portal:open', () => { if (sending !== null) portal.composeByHttp(); });
  portal.onChange(look);
})();
