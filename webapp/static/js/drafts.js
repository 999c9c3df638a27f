// The draft of each session, with its key, for as long as the tab lives: never in local storage (S24).
'use strict';
(() => {
  const form = document.getElementById('composer');
  if (form === null) return;
  const field = form.elements.input;
  const key = form.elements.queue_id;
  const place = `draft:${form.dataset.session}`;

  const save = () => {
    try {
      if (field.value === '') sessionStorage.removeItem(place);
      else sessionStorage.setItem(place, JSON.stringify({ text: field.value, key: key.value }));
    } catch {
      // Storage is full or forbidden: the field itself still holds the text.
    }
  };

  const restore = () => {
    try {
      const draft = JSON.parse(sessionStorage.getItem(place) ?? 'null');
      if (draft === null || field.value !== '') return;
      if (draft.key && document.querySelector(`#turns [data-queue-id="${CSS.escape(draft.key)}"], #q-${CSS.escape(draft.key)}`)) {
        sessionStorage.removeItem(place); // it has arrived
        return;
      }
      field.value = draft.text;
      key.value = draft.key;
    } catch {
      // Not ours, or forbidden: begin empty.
    }
  };

  restore();
  field.addEventListener('input', save);
  document.addEventListener('portal:draft', save);
  window.addEventListener('pagehide', save);
})();
