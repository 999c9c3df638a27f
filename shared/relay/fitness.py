"""Whether a Redis is fit for the portal: its version, what it does when memory is full, who may come in (F21, S46)."""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import redis

from shared.relay.connection import Client, relay_errors

LEAST_VERSION = (6, 2)
DROPS_ANYTHING = "allkeys-"
"""Such a maxmemory-policy may drop queued tasks. A `volatile-` one drops only logs and heartbeats, which all heal."""


def faults(client: Client, url: str) -> list[str]:
    """What must be changed before the portal may use this Redis; empty when it is fit. Raises RelayDown.

    Only INFO is needed; where CONFIG is allowed too, a public bind without a password is seen from loopback as well.
    """
    with relay_errors():
        info: dict[str, Any] = dict(client.info())
    found = []
    version = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2])
    if version < LEAST_VERSION:
        found.append(f"Redis {info.get('redis_version')} is too old: use 6.2 or newer, or Valkey")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith(DROPS_ANYTHING):
        found.append(f"Redis drops data when it is full (maxmemory-policy {policy}): set `maxmemory-policy noeviction`")
    if _is_open_to_all(client, url):
        found.append(
            "Redis listens on a public address without a password: set `requirepass` or an ACL, or bind it to 127.0.0.1"
        )
    return found


def _is_open_to_all(client: Client, url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or parts.password:
        return False
    if not _is_loopback(parts.hostname or "localhost"):
        return True  # it let us in from another machine without a password
    try:
        config = {**client.config_get("bind"), **client.config_get("protected-mode")}
    except redis.RedisError:
        return False  # CONFIG is not allowed: then somebody has thought about who may come in
    text = {_text(key): _text(value) for key, value in config.items()}
    is_public = any(not _is_loopback(each.lstrip("-")) for each in text.get("bind", "").split()) or not text.get("bind")
    return is_public and text.get("protected-mode") == "no"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
