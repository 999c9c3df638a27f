"""The product's Celery app with the scripted backend behind it: for real worker processes in tests."""

from tests.worker.scripted_backend import ScriptedBackend, serve
from worker.celery_app import celery_app as app

serve(ScriptedBackend())

__all__ = ["app"]
