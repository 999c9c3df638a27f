// What a person has opened or closed stays so, whatever the frames say of it. Thoughts fold when they have ended. What is
// typed or chosen as an answer stays in its card, also over a reload, and goes to the field below when the card goes.
'use strict';
(() => {
  const touched = new WeakSet();
  const restored = new WeakSet();
  const sent = new WeakMap(); // field of an answer -> what was sent of it

  document.addEventListener('click', (event) => {
    const summary = event.target.closest('summary');
    if (summary !== null) touched.add(summary.parentElement);
  });

  document.addEventListener('input', (event) => {
    const field = event.target;
    if (field.closest('.answering') === null) return;
    touched.add(field);
    if (field.id === '') return;
    try {
      sessionStorage.setItem(`draft:${field.id}`, field.value);
    } catch {
      // Storage is full or forbidden: the page itself still holds the text.
    }
  });
  const restore = () => {
    for (const field of document.querySelectorAll('.answering .field[id]')) {
      if (restored.has(field)) continue;
      restored.add(field);
      let kept = null;
      try {
        kept = sessionStorage.getItem(`draft:${field.id}`);
      } catch {
        return; // forbidden
      }
      if (!kept || touched.has(field)) continue;
      field.value = kept;
      touched.add(field);
    }
  };
  document.addEventListener('htmx:wsConfigSend', (event) => {
    const field = event.target.querySelector?.('.own .field');
    if (field != null) sent.set(field, field.value);
  });
  const typedIn = (element) => {
    const field = element.querySelector?.('.answering .own .field') ?? null;
    if (field === null || !touched.has(field) || field.value.trim() === '' || sent.get(field) === field.value) return [];
    return [field.value];
  };
  Idiomorph.defaults.callbacks.beforeNodeRemoved = (old) => {
    const typed = typedIn(old);
    if (typed.length > 0) portal.giveBack?.(typed);
  };

  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
    !(name === 'open' && (touched.has(element) || element.matches('.menu'))) &&
    !((name === 'value' || name === 'checked') && touched.has(element));
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) => !(old instanceof Element && old.matches('.edit[open]'));
  Idiomorph.defaults.ignoreActiveValue = true;

  portal.onChange(restore);
  portal.onChange(() => {
    for (const card of document.querySelectorAll('[data-late]')) {
      const id = CSS.escape(card.dataset.late);
      if (document.querySelector(`#turns [data-queue-id="${id}"], #queue [data-queue-id="${id}"]`)) card.hidden = true;
    }
    for (const mark of document.querySelectorAll('[data-fold]')) {
      const details = mark.closest('details');
      const wanted = mark.dataset.fold === 'open';
      if (details !== null && !touched.has(details) && details.open !== wanted) details.open = wanted;
    }
  });
})();
