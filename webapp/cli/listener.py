"""The listening socket: opened by `portal up`, so that a taken port is told at once and `--port 0` gives a number."""

import errno
import socket

from shared.errors import PlatformError

BACKLOG = 2048
ANY_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 (names them, binds nothing)


class CannotListen(PlatformError):
    """`message` says what to do."""

    code = "cannot_listen"


def open_listener(host: str, port: int) -> socket.socket:
    """A listening TCP socket: connections wait in it until the web process is there. Raises CannotListen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise CannotListen(f"{host} is not a host of this machine: give --host 127.0.0.1, or its address") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotListen(_what_to_do(error, host, port)) from error
    return listener


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Host and port to reach the listener from this machine."""
    host, port = listener.getsockname()[:2]
    return ANY_HOSTS.get(host, host), port


def http_address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _what_to_do(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is taken by another program: choose another with --port {port + 1}, "
            "or --port 0 for any free one"
        )
    if error.errno == errno.EACCES:
        return f"Port {port} needs root: choose one from 1024 on, for example --port 8080"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: give --host 127.0.0.1, or 0.0.0.0 for all of its addresses"
    return f"Cannot listen on {host}, port {port}: {error.strerror}"
