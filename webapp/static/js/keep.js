// What a person has opened or closed stays so, whatever the frames say of it. Thoughts fold when they have ended. What is
// typed or chosen as an answer stays in its card, and goes to the field below when the card goes.
'use strict';
(() => {
  const touched = new WeakSet();
  const sent = new WeakMap(); // field of an answer -> what was sent of it

  document.addEventListener('click', (event) => {
    const summary = event.target.closest('summary');
    if (summary !== null) touched.add(summary.parentElement);
  });

  document.addEventListener('input', (event) => {
    if (event.target.closest('.answering') !== null) touched.add(event.target);
  });
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
