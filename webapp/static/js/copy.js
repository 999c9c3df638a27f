// Copies a code box, a message or an answer as one reads it.
'use strict';
(() => {
  const write = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = document.createElement('textarea'); // plain http on another machine: no clipboard interface
    field.value = text;
    field.className = 'vh';
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
    return undefined;
  };

  document.addEventListener('click', async (event) => {
    const button = event.target.closest('[data-copy]');
    if (button === null) return;
    const source = button.dataset.copy === 'code'
      ? button.closest('.code').querySelector('code')
      : document.getElementById(button.dataset.copyOf);
    await write(source.innerText.replace(/\n$/, ''));
    const use = button.querySelector('use');
    use.setAttribute('href', '#i-done');
    setTimeout(() => use.setAttribute('href', '#i-copy'), 1500);
    const announce = document.getElementById('announce');
    if (announce !== null) announce.textContent = portal.word('copied');
  });
})();
