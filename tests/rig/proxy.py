"""A TCP proxy between the portal and a server, for faults of the network: cut, stall, delay, half-close, and for Redis
pushes that get lost while everything else goes on."""

import contextlib
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import hiredis

CHUNK = 1 << 16
PUSHES = (b"message", b"pmessage", b"smessage")


class Proxy:
    """Listens on a Unix socket, or on a TCP port of 127.0.0.1 where the target is a (host, port), and passes on.

    All switches may be turned at any time and concern open connections too: `stalled` passes nothing on, `delay_s`
    waits before each piece, `dropping_pushes` swallows published messages on their way to subscribers, `refusing`
    closes new connections at once."""

    def __init__(self, target: Path | tuple[str, int]) -> None:
        self.target = target
        self.stalled = False
        self.delay_s = 0.0
        self.dropping_pushes = False
        self.refusing = False
        self.dropped = 0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._listener, self.address = self._listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def redis_url(self) -> str:
        """The proxy's address as the portal takes it."""
        if isinstance(self.address, Path):
            return f"unix://{self.address}"
        return f"redis://{self.address[0]}:{self.address[1]}"

    def cut(self) -> None:
        """Reset every open connection."""
        for pair in self._open():
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def half_close(self) -> None:
        """Let servers' answers end while requests still go through."""
        for client, _ in self._open():
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _listen(self) -> tuple[socket.socket, Path | tuple[str, int]]:
        if isinstance(self.target, Path):
            path = Path(tempfile.mkdtemp(prefix="portal-proxy-")) / "proxy.sock"
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(path))
            listener.listen(512)
            return listener, path
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        return listener, listener.getsockname()[:2]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                server = self._connect()
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            threading.Thread(target=self._pass, args=(pair, client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(pair, server, client, True), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self.target, Path):
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self.target))
            return server
        return socket.create_connection(self.target, timeout=60)

    def _pass(
        self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket, is_answer: bool
    ) -> None:
        pushes = _PushFilter() if is_answer else None
        try:
            while piece := source.recv(CHUNK):
                while self.stalled:
                    time.sleep(0.01)
                if self.delay_s:
                    time.sleep(self.delay_s)
                if pushes is not None and (self.dropping_pushes or pushes.is_amid):
                    piece, dropped = pushes.without(piece, dropping=self.dropping_pushes)
                    self.dropped += dropped
                if piece:
                    sink.sendall(piece)
        except OSError:
            pass
        finally:
            with self._lock:
                self._pairs.discard(pair)
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _open(self) -> list[tuple[socket.socket, socket.socket]]:
        with self._lock:
            return list(self._pairs)


class _PushFilter:
    """Cuts published messages out of what Redis sends. It starts at the border of a reply and packs replies anew, so it
    may be switched on whenever nothing is half sent; subscribers' connections carry little else."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self.is_amid = False

    def without(self, piece: bytes, *, dropping: bool) -> tuple[bytes, int]:
        self._reader.feed(piece)
        kept, dropped = [], 0
        while (reply := self._reader.gets()) is not False:
            if dropping and isinstance(reply, list) and reply and reply[0] in PUSHES:
                dropped += 1
            else:
                kept.append(_packed(reply))
        self.is_amid = self._reader.has_data()
        return b"".join(kept), dropped


def _packed(reply: Any) -> bytes:
    if isinstance(reply, hiredis.PushNotification):
        return b">%d\r\n" % len(reply) + b"".join(map(_packed, reply))
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(_packed, reply))
    if isinstance(reply, bytes):
        return b"$%d\r\n%s\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if reply is None:
        return b"$-1\r\n"
    return b"-%s\r\n" % str(reply).encode()
