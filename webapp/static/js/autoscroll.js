// Follows the end only for who is at the end, or has just said something; else a button leads there, and tells when
// somebody is needed there. Older turns and opened cards leave the line one reads where it is.
'use strict';
(() => {
  const scroll = document.getElementById('scroll');
  if (scroll === null) return;
  const jump = document.getElementById('jump');
  const need = jump.querySelector('.need-word');
  const dock = jump.parentElement;
  const asks = document.getElementsByClassName('ask');
  const NEAR = 60;
  const GAP = 16;
  const HEAD = 24; // so much of an approval says that it is there
  const own = new Set(); // queue ids of what was sent from this page and is not on it yet
  let sticks = true;
  let top = 0;

  const atEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  const toEnd = () => { scroll.scrollTop = scroll.scrollHeight; };
  const edge = () => dock.getBoundingClientRect().top; // of what is seen: the dock lies over the turns
  const isBelow = (ask) => ask.getBoundingClientRect().top + HEAD > edge();
  const sign = () => {
    jump.hidden = sticks;
    need.hidden = sticks || ![...asks].some(isBelow);
    jump.dataset.state = need.hidden ? '' : 'needs';
  };

  // Moves the view down until the box is seen whole, or its top is at the top. Says whether the end is to be followed.
  const reveal = (box) => {
    const { top: upper, bottom } = box.getBoundingClientRect();
    const over = Math.min(bottom + GAP - edge(), upper - GAP - scroll.getBoundingClientRect().top);
    const to = scroll.scrollTop + Math.max(0, over);
    const isEnd = scroll.scrollHeight - to - scroll.clientHeight < (over > 0 ? NEAR : 1);
    const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
    if (over > 0) scroll.scrollTo({ top: to, behavior: still ? 'instant' : 'smooth' });
    return isEnd;
  };

  // One's own message comes into view; one that waits is seen in the queue, and moves nothing when it starts.
  document.addEventListener('portal:sent', (event) => { own.add(event.detail); });
  const findOwn = () => {
    for (const id of own) {
      const isSaid = document.querySelector(`#turns [data-queue-id="${CSS.escape(id)}"]`) !== null;
      if (!isSaid && document.querySelector(`#queue [data-queue-id="${CSS.escape(id)}"]`) === null) continue;
      own.delete(id);
      if (isSaid) sticks = true;
    }
  };

  scroll.addEventListener('scroll', () => {
    if (atEnd(scroll)) sticks = true;
    else if (scroll.scrollTop < top - 1) sticks = false; // by hand: growth never moves it up
    top = scroll.scrollTop;
    sign();
  }, { passive: true });

  const thoughts = new WeakMap();
  const follow = () => {
    findOwn();
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
  scroll.addEventListener('toggle', (event) => {
    sticks = event.target.matches('.always[open]') ? reveal(event.target) : atEnd(scroll);
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
