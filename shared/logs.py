"""One JSON line a record, on stderr, with the ids of what it is about (S43).

The event is a fixed name, the facts are fields: `log.info("run.completed", run_id=run.id, duration_ms=12)`. Control
characters come out escaped, secrets hidden, long values cut; what people and agents wrote is never logged: fields that
could hold it are dropped here as a second fence. Records of the standard library's logging go the same way.
"""

import contextvars
import json
import logging
import math
import re
import sys
import threading
import traceback
from collections.abc import Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import Any, TextIO

import structlog
from pydantic import SecretStr, ValidationError

from shared.redaction import HIDDEN, redact
from shared.settings import Settings

MAX_VALUE_CHARS = 2_000
MAX_TRACE_CHARS = 8_000
MAX_DEPTH = 4
MIN_SECRET_CHARS = 6  # a shorter one would hide half of every line
CONTENT_FIELDS = frozenset(
    {
        *("answer", "args", "arguments", "blocks", "body", "chunk", "command", "content", "cookie", "delta", "headers"),
        *("history", "input", "instructions", "output", "password", "payload", "prompt", "question", "reasoning"),
        *("response", "result", "secret", "text", "thinking", "token", "transcript"),
    }
)
NOISY = (
    *("httpx", "httpcore", "urllib3", "markdown_it", "asyncio", "alembic.runtime.plugins"),
    *("celery.worker.strategy", "celery.app.trace"),  # that a task came and went: our own lines tell it of its run
)
_FIRST: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
)


def configure(settings: Settings, process: str = "web", *, stream: TextIO | None = None) -> None:
    """Send all log records of this process to `stream` (stderr) as JSON lines. May be called again.

    `process` stands on every line: web, worker, beat, up. The secrets of the settings are hidden wherever they appear.
    """
    _route_structlog()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_FIRST, structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _Line(process, _secrets_of(settings)),
        ],
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    threading.excepthook = _log_thread_death


def get(name: str) -> Any:
    """A logger: `log.info("name.of.event", field=...)`; `log.exception(...)` adds the trace."""
    if not structlog.is_configured():
        _route_structlog()
    return structlog.stdlib.get_logger(name)


class bind:
    """Put ids on every later line of this thread or context; as a context manager, until its end."""

    def __init__(self, **ids: object) -> None:
        self._tokens: Mapping[str, contextvars.Token[Any]] = structlog.contextvars.bind_contextvars(**ids)

    def __enter__(self) -> "bind":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        structlog.contextvars.reset_contextvars(**self._tokens)


def unbind(*names: str) -> None:
    """Take ids off again."""
    structlog.contextvars.unbind_contextvars(*names)


def _route_structlog() -> None:
    """Have structlog's records go through the standard library's logging, whose handlers decide where they end."""
    structlog.configure(
        processors=[*_FIRST, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


class _Line:
    """The last processor: makes the fields safe and the line."""

    def __init__(self, process: str, secrets: Sequence[str]) -> None:
        self._process = process
        self._secrets = secrets

    def __call__(self, logger: Any, method: str, fields: MutableMapping[str, Any]) -> str:
        extra = fields.pop("extra", None)
        if isinstance(extra, Mapping):
            fields.update(extra)
        error = _exception_of(fields.pop("exc_info", None))
        fields.pop("stack_info", None)
        line: dict[str, Any] = {
            "at": fields.pop("at", None),
            "level": fields.pop("level", method),
            "process": self._process,
            "logger": fields.pop("logger", ""),
            "event": self._safe(fields.pop("event", ""), 0),
        }
        for name, value in fields.items():
            line.setdefault(str(name), self._field(name, value, 0))
        if error is not None:
            line["error"] = self._safe(_message_of(error), 0)
            line["trace"] = self._hide(_trace_of(error))[-MAX_TRACE_CHARS:]
        # escapes all control characters and all that is not ASCII, so terminals show what is there
        return json.dumps(line, ensure_ascii=True, default=repr).replace("\x7f", "\\u007f")

    def _field(self, name: object, value: Any, depth: int) -> Any:
        return "[not logged]" if str(name).lower() in CONTENT_FIELDS else self._safe(value, depth)

    def _safe(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        if isinstance(value, SecretStr):
            return HIDDEN
        if depth < MAX_DEPTH:
            if isinstance(value, Mapping):
                return {str(name): self._field(name, each, depth + 1) for name, each in list(value.items())[:100]}
            if isinstance(value, list | tuple | set | frozenset):
                return [self._safe(each, depth + 1) for each in list(value)[:100]]
        text = (
            value if isinstance(value, str) else _message_of(value) if isinstance(value, BaseException) else str(value)
        )
        hidden = self._hide(text[: 2 * MAX_VALUE_CHARS])
        return hidden if len(hidden) <= MAX_VALUE_CHARS else hidden[:MAX_VALUE_CHARS] + f"... ({len(text)} characters)"

    def _hide(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return redact(text)


def _secrets_of(settings: Settings) -> tuple[str, ...]:
    """The secret values of the settings, longest first; of addresses only the password is one."""
    found: set[str] = set()
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            secret = value.get_secret_value()
            password = re.search(r"://[^/@]*?:([^/@]+)@", secret)
            found.add(password[1] if password else "" if "://" in secret else secret)
    return tuple(sorted((each for each in found if len(each) >= MIN_SECRET_CHARS), key=len, reverse=True))


def _exception_of(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return exc_info[1] if len(exc_info) > 1 else None
    return sys.exc_info()[1] if exc_info else None


def _message_of(error: BaseException) -> str:
    """Type and message, without what a library puts in of its input: SQL parameters, values that did not fit."""
    name = type(error).__name__
    if isinstance(error, ValidationError):
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['type']}" for each in error.errors()[:5]]
        return f"{name}: " + "; ".join(faults)
    if type(error).__module__.startswith("sqlalchemy"):
        return f"{name}: {str(error).splitlines()[0] if str(error) else ''}"
    return f"{name}: {error}"


def _trace_of(error: BaseException) -> str:
    """The frames of the exception and of what it came from, with the same messages as `_message_of`."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = traceback.StackSummary.extract(traceback.walk_tb(current.__traceback__), lookup_lines=False)
        lines = [f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-30:]]
        parts.append("\n".join([_message_of(current)[:MAX_VALUE_CHARS], *lines]))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\nfrom ".join(parts)


def _log_thread_death(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_type is not SystemExit:
        name = arguments.thread.name if arguments.thread is not None else ""
        logging.getLogger("thread").error("thread.died", exc_info=arguments.exc_value, extra={"thread_name": name})
