// What a form sends over the socket: no empty fields, no token, no headers. With a shut socket it goes by plain HTTP.
'use strict';
document.addEventListener('htmx:wsConfigSend', (event) => {
  const { parameters } = event.detail;
  const form = event.target;
  if (form.matches('.answering')) {
    const field = form.querySelector('.own .field');
    parameters[field.name] = (parameters[field.name] ?? '').trim() || parameters.choice || '';
    delete parameters.choice;
    if (parameters[field.name] === '') {
      event.preventDefault();
      field.focus();
      return;
    }
  }
  if (form.id === 'composer' && !portal.compose(event)) return;
  for (const [name, value] of Object.entries(parameters)) {
    if (value === '' || name === 'csrf_token') delete parameters[name];
  }
  event.detail.headers = null;
  if (!portal.isOpen()) {
    event.preventDefault();
    portal.post(form, event.detail.triggeringEvent?.submitter).then(portal.show);
  }
});
