// Counts on from what the server said: seconds since (data-since) and seconds left (data-left), by the time that has
// passed here, never by the clock of this machine.
'use strict';
(() => {
  const seen = new WeakMap();

  const text = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    const pad = (n) => String(n).padStart(2, '0');
    const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
    return hours > 0 ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
  };

  const passed = (element, told) => {
    let entry = seen.get(element);
    if (entry === undefined || entry.told !== told) {
      entry = { told, at: performance.now() };
      seen.set(element, entry);
    }
    return (performance.now() - entry.at) / 1000;
  };

  const put = (element, words) => { if (element.textContent !== words) element.textContent = words; };

  const tick = () => {
    for (const element of document.querySelectorAll('[data-since]')) {
      const told = element.dataset.since;
      put(element, text(Number(told) + passed(element, told)));
    }
    for (const element of document.querySelectorAll('[data-left]')) {
      const told = element.dataset.left;
      const left = Math.max(0, Number(told) - passed(element, told));
      put(element, text(left));
      const bar = element.closest('.left')?.querySelector('progress');
      if (bar) bar.value = left;
    }
  };

  setInterval(tick, 1000);
  portal.onChange(tick);
})();
