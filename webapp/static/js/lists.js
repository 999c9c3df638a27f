// Keeps the list of chats up to date: at once when this chat changed, now and then for the others.
'use strict';
(() => {
  const EVERY_MS = 15000;
  let soon = 0;
  let last = 0;

  const refresh = () => {
    clearTimeout(soon);
    soon = 0;
    last = performance.now();
    htmx.trigger('#sessions', 'refresh');
  };

  document.addEventListener('htmx:wsAfterMessage', () => {
    if (document.getElementById('cursor')?.dataset.list === 'changed' && soon === 0) soon = setTimeout(refresh, 300);
  });
  setInterval(() => {
    if (!document.hidden && performance.now() - last > EVERY_MS - 1000) refresh();
  }, EVERY_MS);
  document.addEventListener('visibilitychange', () => { if (!document.hidden) refresh(); });
})();
