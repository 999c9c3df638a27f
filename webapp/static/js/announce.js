// The tab's title: a mark when the run needs somebody, or has ended while nobody looked.
'use strict';
(() => {
  const title = () => document.getElementById('title');
  if (title() === null) return;
  let before = title().dataset.signal;
  let ended = false;

  const sign = () => {
    const now = title().dataset.signal;
    if (before === 'running' && now === '' && document.hidden) ended = true;
    before = now || before;
    if (now === '') before = '';
    const mark = now === 'needs' ? '(1) ' : ended ? '✓ ' : '';
    const text = `${mark}${title().textContent.trim()} · Hermes Portal`;
    if (document.title !== text) document.title = text;
  };

  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) ended = false;
    sign();
  });
  portal.onChange(sign);
})();
