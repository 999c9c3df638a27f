"""Which addresses that were typed in a page may be asked (S37). Those from the environment or portal.toml are trusted.

Link-local and metadata addresses never; private and loopback ones only where the operator of the machine allows it.
What counts is the address that a name stands for at the moment of connecting: `connect` looks and connects in one step,
so that a name cannot stand for something else in between.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

from shared import errors

MAX_URL = 500
METADATA = frozenset(
    ipaddress.ip_address(each)
    for each in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)
NAT64 = ipaddress.ip_network("64:ff9b::/96")

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


class RefusedAddress(errors.InvalidCommand):
    """Not to be asked; the message says why."""

    code = "refused_address"


def check_url(url: str, *, allow_private: bool) -> str:
    """The address without its last slash. Looks its host up. Raises RefusedAddress."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise RefusedAddress("This is no address.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RefusedAddress("An address begins with http:// or https:// and names a host.")
    if len(url) > MAX_URL or not url.isprintable() or not url.isascii() or " " in url or "\\" in url:
        raise RefusedAddress("This is no address.")
    if parts.username is not None or parts.password is not None:
        raise RefusedAddress("A password has no place in an address: it would be stored and shown.")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise RefusedAddress("An address ends before ? and #.")
    try:
        _checked(parts.hostname, port or (443 if parts.scheme == "https" else 80), allow_private=allow_private)
    except OSError as error:
        raise RefusedAddress("No address is known for this host name.", code="unknown_host") from error
    return url.rstrip("/")


def connect(host: str, port: int, timeout_s: float, *, allow_private: bool) -> socket.socket:
    """A connection to one of the addresses of the host, all of which are checked. Raises OSError, RefusedAddress."""
    last: OSError | None = None
    for ip in _checked(host, port, allow_private=allow_private):
        try:
            return socket.create_connection((str(ip), port), timeout=timeout_s)
        except OSError as error:
            last = error
    raise last or OSError("no address")


def why_refused(ip: Ip, *, allow_private: bool) -> str | None:
    """None for an address that may be asked."""
    inner = _inner(ip)
    if inner in METADATA or inner.is_link_local:
        return "This address leads to the machine's own management: it is never asked."
    if inner.is_multicast or inner.is_unspecified or (inner.is_reserved and not inner.is_loopback):
        return "No server has this address."
    if not inner.is_global and not allow_private:
        return (
            "This address is private. The operator of the machine allows such addresses with "
            "PORTAL_ALLOW_PRIVATE_ADDRESSES=1."
        )
    return None


def _checked(host: str, port: int, *, allow_private: bool) -> list[Ip]:
    """All addresses of the host; one that is refused refuses them all. Raises OSError, RefusedAddress."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that is too long
        raise socket.gaierror(socket.EAI_NONAME, "no host name") from None
    ips = list(dict.fromkeys(ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found))
    for ip in ips:
        fault = why_refused(ip, allow_private=allow_private)
        if fault is not None:
            raise RefusedAddress(fault)
    return ips


def _inner(ip: Ip) -> Ip:
    """What an address inside another one leads to."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else ip)
