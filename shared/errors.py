"""The exceptions of the platform. Each has a `code` that clients may rely on; `message` is written for people."""


class PlatformError(Exception):
    """A fault with a stable `code`. `message` says what to do about it and holds no secret."""

    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class InvalidCommand(PlatformError):
    code = "invalid_command"


class TooLarge(InvalidCommand):
    code = "too_large"


class NotAuthenticated(PlatformError):
    code = "not_authenticated"


class Forbidden(PlatformError):
    code = "forbidden"


class NotFound(PlatformError):
    code = "not_found"


class Conflict(PlatformError):
    code = "conflict"


class IllegalMove(Conflict):
    """The table of run_state.py forbids the move."""

    code = "illegal_move"


class LeaseLost(Conflict):
    """Another writer was first: state or fence are no longer those the writer knew."""

    code = "lease_lost"


class AlreadyDecided(Conflict):
    """An approval or a clarification was decided before; `message` says how and by whom."""

    code = "already_decided"


class Expired(Conflict):
    """The deadline of an approval or a clarification has passed."""

    code = "expired"


class QueueFull(PlatformError):
    code = "queue_full"


class TooManyRequests(PlatformError):
    code = "too_many_requests"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(PlatformError):
    """The database, Redis or the disk does not answer; the caller may try again after `retry_after_s` seconds."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 5, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class StorageFull(Unavailable):
    code = "storage_full"


class SettingsError(PlatformError):
    """One or more settings are wrong; `message` has one line a fault."""

    code = "invalid_settings"


class BackendError(PlatformError):
    """A backend failed. `retryable`: a new run may succeed; `retry_after_s`: as the backend asked; `detail`: for the
    log only, never shown."""

    code = "backend_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool = True,
        retry_after_s: int | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message, code=code)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.detail = detail


class BackendUnavailable(BackendError):
    """The turn was surely not accepted: refused connection, DNS, TLS, 429 or 503 before any event."""

    code = "backend_unavailable"


class StartFailed(BackendUnavailable):
    """The backend's process cannot be started; to ask again at once would bring the same."""

    code = "start_failed"


class BackendTimeout(BackendError):
    code = "backend_timeout"


class BackendProtocolError(BackendError):
    code = "protocol_error"


class BackendRefused(BackendError):
    """The backend understood and said no: wrong key, bad request, model error."""

    code = "backend_refused"


class BackendLost(BackendError):
    """The connection or the process ended in mid-turn: the run is interrupted, not failed."""

    code = "backend_lost"


class BackendKilled(BackendLost):
    """The backend's process was ended, because this turn did not stop when it was told to."""


class StreamCut(BackendLost):
    """The stream ended without its final event."""

    code = "stream_cut"
