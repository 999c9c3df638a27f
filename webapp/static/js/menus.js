// Menus close on a click elsewhere and on Escape, and go by arrow keys; notices go by themselves unless they tell of an error; the queue
// opens on a phone.
'use strict';
(() => {
  const SHOWN_MS = 6000;
  const OFFERED_MS = 30000; // one that offers a way back
  const MOST = 3;
  const timed = new WeakSet();

  const closeMenus = (but) => {
    for (const menu of document.querySelectorAll('details.menu[open]')) {
      if (!menu.contains(but)) menu.open = false;
    }
  };

  document.addEventListener('click', (event) => {
    closeMenus(event.target);
    if (event.target.closest('[data-dismiss]')) event.target.closest('.notice').remove();
    const toggle = event.target.closest('[data-toggle]');
    if (toggle !== null) {
      const isOpen = document.getElementById(toggle.dataset.toggle).classList.toggle('is-open');
      toggle.setAttribute('aria-expanded', String(isOpen));
    }
  });
  document.addEventListener('submit', (event) => {
    const menu = event.target.closest('details.menu');
    if (menu !== null) menu.open = false;
  });
  document.addEventListener('keydown', (event) => {
    const menu = event.key === 'Escape' ? document.querySelector('details.menu[open]') : null;
    if (menu === null) return;
    menu.open = false;
    menu.querySelector('summary').focus();
  });

  document.addEventListener('keydown', (event) => { // up and down in a menu, as people expect of one
    const box = event.target.closest?.('details.menu[open]');
    if (!box || !['ArrowDown', 'ArrowUp'].includes(event.key)) return;
    const items = [...box.querySelectorAll('.menu-item')];
    if (items.length === 0 || event.target.matches('input, select, textarea')) return;
    event.preventDefault();
    const step = event.key === 'ArrowDown' ? 1 : -1;
    const at = items.indexOf(document.activeElement);
    items[at < 0 ? (step > 0 ? 0 : items.length - 1) : (at + step + items.length) % items.length].focus();
  });

  portal.onChange(() => {
    const notices = [...document.querySelectorAll('#notices > .notice')];
    notices.slice(0, Math.max(0, notices.length - MOST)).forEach((notice) => notice.remove());
    for (const notice of notices) {
      if (timed.has(notice) || notice.dataset.state === 'failed' || 'unsent' in notice.dataset) continue;
      timed.add(notice);
      const shown_ms = notice.matches('form') ? OFFERED_MS : SHOWN_MS;
      setTimeout(() => { if (!('unsent' in notice.dataset)) notice.remove(); }, shown_ms);
    }
  });
})();
