// On a phone the side is a modal dialog: it moves in while it is open, so that there is only one of it.
'use strict';
(() => {
  const side = document.getElementById('side');
  const drawer = document.getElementById('drawer');
  if (side === null || drawer === null) return;
  const home = side.parentElement;

  document.addEventListener('click', (event) => {
    const way = event.target.closest('[data-drawer]')?.dataset.drawer;
    if (way !== undefined) event.preventDefault();
    if (way === 'open') {
      drawer.append(side);
      drawer.showModal();
    } else if (way === 'close' || event.target === drawer) {
      drawer.close();
    }
  });
  drawer.addEventListener('close', () => home.prepend(side));
  matchMedia('(min-width: 52.01rem)').addEventListener('change', (event) => {
    if (event.matches && drawer.open) drawer.close();
  });
})();
