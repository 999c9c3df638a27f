// The field: Enter sends, unless a word is still being composed. What is sent leaves the field at once, so that the next
// turn can be typed; the outbox keeps it until the portal has taken it.
'use strict';
(() => {
  const form = document.getElementById('composer');
  if (form === null) return;
  const field = form.elements.input;

  const sign = () => {
    const state = document.getElementById('composer-state').dataset;
    field.placeholder = state.placeholder;
    field.disabled = state.maySend !== 'yes';
    document.getElementById('send').disabled = field.disabled;
    if (!CSS.supports('field-sizing', 'content')) field.rows = Math.min(10, field.value.split('\n').length);
  };

  const newKey = () =>
    [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');

  // Called before a turn goes over the socket; false when it does not go there now.
  portal.compose = (event) => {
    const chosen = (name) => form.elements[name]?.value ?? '';
    const turn = { queue_id: newKey(), input: field.value, model: chosen('model'), skill_folder: chosen('skill_folder') };
    const isTurn = !field.disabled && turn.input.trim() !== '';
    if (isTurn) field.value = '';
    const goes = isTurn && portal.toSend(turn);
    sign();
    if (goes) Object.assign(event.detail.parameters, turn, { id: turn.queue_id });
    else event.preventDefault();
    return goes;
  };

  // Texts that were refused, before what was typed since.
  portal.giveBack = (texts) => {
    field.value = [...texts, field.value].filter((text) => text.trim() !== '').join('\n\n');
    sign();
  };

  field.addEventListener('keydown', (event) => {
    const composes = event.isComposing || event.keyCode === 229;
    const plain = !event.shiftKey && !event.altKey && !event.ctrlKey && !event.metaKey;
    if (event.key !== 'Enter' || composes || !plain || matchMedia('(pointer: coarse)').matches) return;
    event.preventDefault();
    form.requestSubmit();
  });
  field.addEventListener('input', sign);
  portal.onChange(sign);
  if (matchMedia('(pointer: fine)').matches && location.hash === '' && document.activeElement === document.body) {
    field.focus({ preventScroll: true });
  }
})();
