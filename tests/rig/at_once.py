"""Several threads let off at the same moment."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(*works: Callable[[], T]) -> list[T | Exception]:
    """All in threads of their own, let off together; gives what each returned or raised."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], T]) -> T | Exception:
        start.wait(timeout=60)
        try:
            return work()
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))
