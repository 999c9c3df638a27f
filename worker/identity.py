"""Who this worker process is: host, boot, process, its start and a random part, so that no two are ever the same.

The host name alone is not enough: a container may keep its name and its pid over a restart (RELIABILITY 2.2).
"""

import os
import re
import secrets
import socket
from pathlib import Path

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def new_worker_id() -> str:
    """For example `web1-3f2a9c1e-4711-1764510000-9b1c3d5e`: letters, digits, `.`, `_` and `-` only."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:40] or "host"
    started = int(psutil.Process().create_time())
    return f"{host}-{_boot()}-{os.getpid()}-{started}-{secrets.token_hex(4)}"


def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip().replace("-", "")[:8]
    except OSError:  # not Linux
        return f"{int(psutil.boot_time()):x}"
