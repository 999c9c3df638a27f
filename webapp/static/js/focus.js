// When what has the focus goes away, as an approval does when it is decided, the field gets it: never the top of the page.
'use strict';
(() => {
  const field = document.getElementById('text');
  if (field === null) return;
  let last = null;
  document.addEventListener('focusin', (event) => { last = event.target; });
  portal.onChange(() => {
    const isLost = last !== null && !last.isConnected && document.activeElement === document.body;
    if (isLost && matchMedia('(pointer: fine)').matches) field.focus({ preventScroll: true });
    if (isLost) last = null;
  });
})();
