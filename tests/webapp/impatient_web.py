"""The web app in a gunicorn that loses patience with slow clients at once."""

from webapp import gunicorn_worker
from webapp.wsgi import app

gunicorn_worker.HEAD_LIMIT_S = 2.5
gunicorn_worker.BODY_LIMIT_S = 4.0

__all__ = ["app"]
