// The first message of a new chat: a plain form, sent once.
'use strict';
(() => {
  const form = document.getElementById('composer');
  if (form === null || form.dataset.session !== 'new') return;
  form.addEventListener('submit', (event) => {
    if (form.dataset.gone !== undefined || form.elements.input.value.trim() === '') event.preventDefault();
    else form.dataset.gone = '';
  });
  window.addEventListener('pageshow', () => { delete form.dataset.gone; }); // back again
})();
