// The skill picker: says what is chosen, finds by words, and is left by Enter or a click. The list itself comes from the
// server when it is opened.
'use strict';
(() => {
  const menu = document.querySelector('[data-skills]');
  if (menu === null) return;
  const name = menu.querySelector('[data-skill-name]');

  const close = () => {
    menu.open = false;
    menu.querySelector('summary').focus();
  };

  const sign = () => {
    const chosen = menu.querySelector('input[type="radio"]:checked, input:not([type])');
    name.textContent = chosen?.value || name.dataset.none;
  };

  const find = (words) => {
    const wanted = words.toLowerCase().split(/\s+/).filter((word) => word !== '');
    let shown = 0;
    for (const row of menu.querySelectorAll('.skill')) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
      if (!row.hidden) shown += 1;
    }
    menu.querySelector('[data-nothing]').hidden = shown > 0;
  };

  menu.addEventListener('change', sign);
  menu.addEventListener('input', (event) => {
    if ('filter' in event.target.dataset) find(event.target.value);
    else sign();
  });
  menu.addEventListener('click', (event) => {
    // Arrow keys click too, but with no pointer: only one has chosen for good.
    if (event.target.closest('.skill') !== null && event.target.closest('a') === null && event.detail > 0) setTimeout(close);
  });
  menu.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.isComposing || ['A', 'SUMMARY'].includes(event.target.tagName)) return;
    event.preventDefault(); // it would send the message
    const rows = [...menu.querySelectorAll('.skill:not([hidden]) input')];
    if ('filter' in event.target.dataset && event.target.value.trim() !== '' && rows.length > 0) {
      (rows.find((row) => row.value !== '') ?? rows[0]).checked = true;
    }
    sign();
    close();
  });
  document.addEventListener('htmx:afterSettle', (event) => {
    if (event.target.id !== 'skills') return;
    if (menu.open) menu.querySelector('[data-filter]')?.focus();
    sign();
  });
})();
