// A turn or a tool card that a frame brings and the page does not have yet gets its place first, in order; the swap
// then fills it. `data-into` names the list it belongs to, `data-order` its place there.
'use strict';
(() => {
  const PLACED = /<(article|li|div)\b[^>]*? id="([^"]+)" data-into="([^"]+)" data-order="(-?\d+)"/g;
  const PLACED_FIRST = /<(article|li) id="([^"]+)" data-into="([^"]+)" data-order="(-?\d+)"/g;

  const place = (tag, id, into, order) => {
    const list = document.getElementById(into);
    if (list === null || document.getElementById(id) !== null) return;
    const made = document.createElement(tag);
    made.id = id;
    made.dataset.order = order;
    let before = list.lastElementChild;
    while (before !== null && Number(before.dataset.order ?? -1) > Number(order)) before = before.previousElementSibling;
    if (before === null) list.prepend(made);
    else before.after(made);
  };

  portal.makePlaces = (message) => {
    for (const pattern of [PLACED, PLACED_FIRST]) {
      for (const [, tag, id, into, order] of message.matchAll(pattern)) place(tag, id, into, order);
    }
  };

  // Older turns bring the heading of a day that is there already: the upper one stays.
  document.addEventListener('htmx:afterSettle', () => {
    const seen = new Set();
    for (const day of document.querySelectorAll('#turns > .day')) {
      if (seen.has(day.id)) day.remove();
      seen.add(day.id);
    }
  });

  document.addEventListener('htmx:wsBeforeMessage', (event) => {
    if (!event.defaultPrevented) portal.makePlaces(event.detail.message);
  });
})();
