"""The Celery app of workers and beat: `celery --app worker.celery_app worker --pool threads`.

Made at import from the settings of the environment, as Celery's commands want it.
"""

from shared import settings as portal_settings
from worker.celery_config import make_app

celery_app = make_app(portal_settings.load())

from worker import control, lifecycle, tasks  # noqa: E402, F401 - they register themselves with the app
