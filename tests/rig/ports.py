"""Ports for servers that must be told theirs, or come back on the one they had.

They are below those that Linux gives to outgoing connections and to who asks for any port (32768 and above): of those,
one that is free now may be somebody's before the server listens there. Each process of a test run has its own.
"""

import os
import random
import socket

LOWEST, HIGHEST = 20_000, 32_000
_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens; never the same twice."""
    ours = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    step = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = random.randrange(LOWEST + ours, HIGHEST, step)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
