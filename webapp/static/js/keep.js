// What a person has opened or closed stays so, whatever the frames say of it. Thoughts fold when they have ended.
'use strict';
(() => {
  const touched = new WeakSet();

  document.addEventListener('click', (event) => {
    const summary = event.target.closest('summary');
    if (summary !== null) touched.add(summary.parentElement);
  });

  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
    !(name === 'open' && (touched.has(element) || element.matches('.menu')));
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) => !(old instanceof Element && old.matches('.edit[open]'));
  Idiomorph.defaults.ignoreActiveValue = true;

  portal.onChange(() => {
    for (const mark of document.querySelectorAll('[data-fold]')) {
      const details = mark.closest('details');
      const wanted = mark.dataset.fold === 'open';
      if (details !== null && !touched.has(details) && details.open !== wanted) details.open = wanted;
    }
  });
})();
