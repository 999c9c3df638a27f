"""The object that gunicorn serves: `gunicorn --config python:webapp.gunicorn_conf webapp.wsgi:app`."""

from webapp.app import create_app

app = create_app()
