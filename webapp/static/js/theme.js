// Light, dark, or as the system says: kept in a cookie, so that the server draws the page in it from the first byte.
'use strict';
document.addEventListener('click', (event) => {
  if (event.target.closest('[data-theme-switch]') === null) return;
  const root = document.documentElement;
  const isDark = matchMedia('(prefers-color-scheme: dark)').matches;
  const order = isDark ? ['', 'light', 'dark'] : ['', 'dark', 'light'];
  const next = order[(order.indexOf(root.dataset.theme ?? '') + 1) % 3];
  if (next === '') delete root.dataset.theme;
  else root.dataset.theme = next;
  document.cookie = `portal_theme=${next}; path=/; max-age=${next === '' ? 0 : 31536000}; samesite=lax`;
});
