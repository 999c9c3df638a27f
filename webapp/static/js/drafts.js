// The draft of each session, and what was sent and not taken yet, for as long as the tab lives: never in local storage
// (S24).
'use strict';
(() => {
  const form = document.getElementById('composer');
  if (form === null) return;
  const field = form.elements.input;
  const place = `draft:${form.dataset.session}`;

  const save = () => {
    const unsent = portal.unsent?.() ?? [];
    const text = form.dataset.gone === undefined ? field.value : '';
    try {
      if (text === '' && unsent.length === 0) sessionStorage.removeItem(place);
      else sessionStorage.setItem(place, JSON.stringify({ text, unsent }));
    } catch {
      // Storage is full or forbidden: the page itself still holds the text.
    }
  };

  const restore = () => {
    try {
      const { text, unsent } = JSON.parse(sessionStorage.getItem(place) ?? '{}');
      if (field.value === '') field.value = text ?? '';
      if (unsent?.length > 0) portal.sendAgain(unsent);
    } catch {
      // Not ours, or forbidden: begin empty.
    }
  };

  restore();
  field.addEventListener('input', save);
  document.addEventListener('portal:draft', save);
  window.addEventListener('pagehide', save);
})();
