"""Every key in Redis, under the portal's prefix, and how long it lives.

The keys of one session share the hash tag `{session id}`, so that a script may touch them together.
"""

from dataclasses import dataclass

MAILBOX_TTL_S = 3_600  # of a dead worker; what it would have heard stands in the database
WORKER_TTL_S = 45  # three heartbeats of 15 s
WORKERS_TTL_S = 604_800
WATCH_TTL_S = 60  # three pings of 20 s


@dataclass(frozen=True)
class Keys:
    """The names of all keys under one prefix (PORTAL_REDIS_PREFIX)."""

    prefix: str = "portal:"

    def log_hash(self, session_id: str) -> str:
        """Hash: epoch, seq and Redis run_id of the log, and the fence of each run."""
        return f"{self.prefix}{{{session_id}}}:h"

    def log_stream(self, session_id: str) -> str:
        """Stream: the events, `<seq>-0`."""
        return f"{self.prefix}{{{session_id}}}:s"

    def channel(self, session_id: str) -> str:
        """Pub/sub channel: every batch as it is appended."""
        return f"{self.prefix}{{{session_id}}}:c"

    def watchers(self, session_id: str) -> str:
        """Sorted set: who watches the session, by the time of the last sign."""
        return f"{self.prefix}{{{session_id}}}:w"

    def mailbox(self, worker_id: str) -> str:
        """List: notes for the runs of one worker."""
        return f"{self.prefix}mailbox:{worker_id}"

    def worker(self, worker_id: str) -> str:
        """String: the facts of a living worker."""
        return f"{self.prefix}worker:{worker_id}"

    def workers(self) -> str:
        """Sorted set: ids of workers by the time of their last heartbeat."""
        return f"{self.prefix}workers"

    def run_heartbeat(self, run_id: str) -> str:
        """String: the id of the worker that drives the run now."""
        return f"{self.prefix}run:{run_id}"
