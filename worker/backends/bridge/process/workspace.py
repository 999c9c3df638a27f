"""Where a session's tools work: in a directory of the session, with a shell of its own.

Hermes would have all sessions of a process share one shell, with what each of them exports (RELIABILITY S55). An
override that names the kind of environment, be it the one that is set anyway, makes one for the task. A subagent is a
task of its own and gets the same, in the directory where its parent is.
"""

import contextlib
import importlib
import logging
import os
import threading
from collections import Counter
from typing import Any

LOOK_S = 0.1  # how late a stop is seen

log = logging.getLogger("portal_bridge")


class Workspaces:
    """Task ids are ids of sessions and of subagents. Safe from any thread."""

    def __init__(self) -> None:
        self._terminal: Any = importlib.import_module("tools.terminal_tool")
        self._lock = threading.Lock()
        self._directories: dict[str, str | None] = {}  # as the turns of the session want it
        self._tidied = threading.Condition()
        self._tidying: Counter[str] = Counter()

    def begin_tidying(self, session_id: str) -> None:
        """What the session runs is about to be ended, by its name alone: until `end_tidying` none of its turns begins,
        or it would be ended too."""
        with self._tidied:
            self._tidying[session_id] += 1

    def end_tidying(self, session_id: str) -> None:
        with self._tidied:
            self._tidying[session_id] -= 1
            if self._tidying[session_id] <= 0:
                del self._tidying[session_id]
            self._tidied.notify_all()

    def enter(self, session_id: str, directory: str | None, stop: threading.Event) -> None:
        """Before each turn; a `cd` of an earlier turn holds on. Waits until what was there is tidied up, or `stop` is
        set. Raises OSError when the directory cannot be made."""
        with self._tidied:
            while self._tidying[session_id] and not stop.is_set():
                self._tidied.wait(LOOK_S)
        if directory is not None:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        with self._lock:
            is_new = self._directories.get(session_id, ...) != directory
            self._directories[session_id] = directory
        reached = None if is_new else self._terminal.get_session_cwd(session_id)
        self._register(session_id, reached if reached and os.path.isdir(reached) else directory)

    def enter_subagent(self, task_id: str, session_id: str) -> None:
        with self._lock:
            directory = self._directories.get(session_id)
        self._register(task_id, self._terminal.get_session_cwd(session_id) or directory)

    def leave(self, task_id: str, *, for_good: bool = True) -> None:
        """The session, or the subagent, is dropped. Not `for_good`: what it runs in the background goes on."""
        with self._lock:
            self._directories.pop(task_id, None)
        with contextlib.suppress(Exception):  # tidying up
            self._terminal.clear_task_env_overrides(task_id)
            processes = importlib.import_module("tools.process_registry").process_registry
            if for_good:
                processes.kill_all(task_id=task_id)
            if for_good or not processes.has_active_processes(task_id):
                self._terminal.cleanup_vm(task_id)

    def _register(self, task_id: str, directory: str | None) -> None:
        overrides = {"env_type": os.environ.get("TERMINAL_ENV") or "local"}
        if directory is not None:
            overrides["cwd"] = directory
        self._terminal.register_task_env_overrides(task_id, overrides)
