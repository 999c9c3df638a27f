// What the other scripts share: words of the page, notices, requests with our token, and a call after each change.
'use strict';
window.portal = (() => {
  const words = document.getElementById('words')?.dataset ?? {};
  const listeners = [];
  const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? '';

  const word = (name, values = {}) =>
    Object.entries(values).reduce((text, [key, value]) => text.replace(`{${key}}`, value), words[name] ?? '');

  // Runs now, and again whenever a part of the page was replaced.
  const onChange = (listener) => {
    listeners.push(listener);
    listener();
  };
  const changed = () => listeners.forEach((listener) => listener());
  document.addEventListener('htmx:wsAfterMessage', changed);
  document.addEventListener('htmx:afterSettle', changed);

  document.addEventListener('htmx:configRequest', (event) => {
    event.detail.headers['X-CSRFToken'] = meta('csrf-token');
  });

  // The same words stand there once.
  const notice = (text, state = 'failed') => {
    for (const shown of document.querySelectorAll('#notices .notice')) {
      if (shown.textContent.trim() === text) return;
    }
    const box = document.getElementById('notice').content.querySelector('.notice').cloneNode(true);
    box.dataset.state = state;
    box.setAttribute('role', state === 'failed' ? 'alert' : 'status');
    box.querySelector('use').setAttribute('href', `#i-${state}`);
    box.querySelector('.grow').textContent = text;
    document.getElementById('notices').append(box);
    changed();
  };

  // A form by plain HTTP. Gives the response; null when the portal did not answer or we are signed out.
  // `changes`: fields to send instead of those of the form.
  const post = async (form, submitter, changes = {}) => {
    const body = new URLSearchParams(new FormData(form, submitter ?? null));
    for (const [name, value] of Object.entries(changes)) body.set(name, value);
    const headers = { 'X-CSRFToken': meta('csrf-token'), 'HX-Request': 'true' };
    try {
      const answer = await fetch(form.action, { method: 'POST', body, headers, redirect: 'manual' });
      if (answer.type === 'opaqueredirect' || answer.status === 401) {
        notice(word('signedOut'));
        return null;
      }
      return answer;
    } catch {
      return null;
    }
  };

  // An answer that is an error carries a notice as HTML.
  const show = async (answer) => {
    if (answer !== null && !answer.ok) {
      htmx.swap('#notices', await answer.text(), { swapStyle: 'beforeend' });
      changed();
    }
  };

  return { meta, word, onChange, changed, notice, post, show, isOpen: () => false };
})();
