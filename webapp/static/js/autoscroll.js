// Follows the end only for who is at the end; else a button leads there. Older turns and opened cards leave the line
// one reads where it is.
'use strict';
(() => {
  const scroll = document.getElementById('scroll');
  if (scroll === null) return;
  const jump = document.getElementById('jump');
  const NEAR = 60;
  let sticks = true;
  let top = 0;

  const atEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  const toEnd = () => { scroll.scrollTop = scroll.scrollHeight; };
  const sign = () => { jump.hidden = sticks; };

  scroll.addEventListener('scroll', () => {
    if (atEnd(scroll)) sticks = true;
    else if (scroll.scrollTop < top - 1) sticks = false; // by hand: growth never moves it up
    top = scroll.scrollTop;
    sign();
  }, { passive: true });

  const thoughts = new WeakMap();
  const follow = () => {
    if (sticks) toEnd();
    for (const thought of document.querySelectorAll('details[open] > .thought')) {
      const last = thoughts.get(thought) ?? thought.clientHeight;
      if (last - thought.scrollTop - thought.clientHeight < NEAR) thought.scrollTop = thought.scrollHeight;
      thoughts.set(thought, thought.scrollHeight);
    }
    sign();
  };

  jump.addEventListener('click', () => {
    sticks = true;
    follow();
  });
  new ResizeObserver(follow).observe(scroll);
  scroll.addEventListener('toggle', () => {
    sticks = atEnd(scroll);
    sign();
  }, true);

  let before = null;
  document.addEventListener('htmx:beforeSwap', (event) => {
    if (event.detail.target?.id === 'older') before = scroll.scrollHeight - scroll.scrollTop;
  });
  document.addEventListener('htmx:afterSwap', () => {
    if (before !== null) scroll.scrollTop = scroll.scrollHeight - before;
    before = null;
  });

  if (location.hash.length > 1) sticks = false;
  else toEnd();
  portal.onChange(follow);
})();
