"""Which addresses are ours: the hosts a request may name, the origins a page may come from, https or not (S7, S51)."""

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit

from flask import request

from shared import errors
from shared.settings import LOOPBACK_HOSTS, Settings


def check_host(settings: Settings) -> None:
    """Refuse a Host that is not ours: what a rebound name or a forged header would bring (S51)."""
    host = _host_name(request.host)
    if host in _known_hosts(settings) or _is_own_ip(host, settings):
        return
    raise errors.InvalidCommand(
        "This portal is not known by that host name. Set PORTAL_PUBLIC_URL to the address that people open.",
        code="untrusted_host",
    )


def is_https(settings: Settings) -> bool:
    """Whether the browser speaks TLS, to us or to the proxy that PORTAL_PUBLIC_URL names."""
    if request.is_secure:
        return True
    public = urlsplit(settings.public_url or "")
    return public.scheme == "https" and _host_name(request.host) == public.hostname


def is_loopback() -> bool:
    """Whether the browser addressed its own machine: no network lies between."""
    host = _host_name(request.host)
    return host in LOOPBACK_HOSTS or _is_loopback_ip(host)


def is_own_origin(origin: str, settings: Settings) -> bool:
    """Whether an Origin header names this portal: the address of the request itself, or PORTAL_PUBLIC_URL."""
    given = _origin(origin)
    own = [_origin(request.host_url), _origin(settings.public_url or "")]
    return given is not None and given in own


def is_foreign_page(settings: Settings) -> bool:
    """Whether the browser says that the request comes from another site's page. `null`, which a form sends under our
    Referrer-Policy, is not taken as a sign of either."""
    origin = request.headers.get("Origin")
    if origin is not None and origin != "null" and not is_own_origin(origin, settings):
        return True
    return request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")


def local_target(target: str | None, *, default: str) -> str:
    """`target` if it is a path of this portal, else `default` (S52): no host, no scheme, nothing a browser might read
    as one."""
    if not target or len(target) > 2_000 or target[0] != "/" or target[1:2] in ("/", "\\"):
        return default
    if any(ord(c) <= 0x20 or c == "\\" or ord(c) == 0x7F for c in target) or "//" in _decoded(target):
        return default
    parts = urlsplit(target)
    return default if parts.scheme or parts.netloc else target


def _decoded(target: str) -> str:
    """The path as the most eager reader would take it."""
    path = target.split("?", 1)[0].split("#", 1)[0].lower()
    for _ in range(3):
        path = path.replace("%25", "%").replace("%2f", "/").replace("%5c", "/").replace("\\", "/")
    return path


@lru_cache(maxsize=8)
def _known_hosts(settings: Settings) -> frozenset[str]:
    hosts = set(LOOPBACK_HOSTS) | {settings.host}
    if settings.public_url:
        hosts.add(urlsplit(settings.public_url).hostname or "")
    if settings.host not in LOOPBACK_HOSTS:
        hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(hosts)


def _is_own_ip(host: str, settings: Settings) -> bool:
    """A literal address cannot be a rebound name. Loopback always is ours; others when we listen beyond it."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return _is_loopback_ip(host) or settings.host not in LOOPBACK_HOSTS


def _is_loopback_ip(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _origin(address: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(address)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    return parts.scheme, parts.hostname, port
