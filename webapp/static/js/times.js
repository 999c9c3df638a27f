// Shows times in the browser's zone, and tells the server the zone, so that it groups by the right day.
'use strict';
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';
  const lang = document.documentElement.lang;
  const done = new WeakSet();
  const pad = (n) => String(n).padStart(2, '0');
  const day = (moment) => new Date(moment.getFullYear(), moment.getMonth(), moment.getDate());

  const words = (moment, show) => {
    const time = `${pad(moment.getHours())}:${pad(moment.getMinutes())}`;
    const date = `${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}`;
    if (show === 'full') return `${moment.getFullYear()}-${date} ${time}`;
    const days = Math.round((day(new Date()) - day(moment)) / 86400000);
    if (show === 'time' || days === 0 || days === 1) return time;
    if (days > 0 && days < 7) return moment.toLocaleDateString(lang, { weekday: 'short' });
    return days < 300 ? date : `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}`;
  };

  const localise = () => {
    for (const element of document.querySelectorAll('time[data-show]')) {
      if (done.has(element.firstChild)) continue;
      const moment = new Date(element.dateTime);
      element.textContent = words(moment, element.dataset.show);
      element.title = moment.toLocaleString(lang);
      done.add(element.firstChild);
    }
  };

  const known = document.cookie.split('; ').find((each) => each.startsWith('portal_zone='))?.slice(12);
  if (known !== encodeURIComponent(zone)) {
    const secure = location.protocol === 'https:' ? '; secure' : '';
    document.cookie = `portal_zone=${encodeURIComponent(zone)}; path=/; max-age=31536000; samesite=lax${secure}`;
    const isSet = document.cookie.includes(`portal_zone=${encodeURIComponent(zone)}`);
    // Once, on the first page ever: its days were those of another zone.
    if (isSet && document.querySelector('.day, #sessions h2') && new Date().getTimezoneOffset() !== 0) location.reload();
  }
  if (window.portal) portal.onChange(localise);
  else localise();
})();
