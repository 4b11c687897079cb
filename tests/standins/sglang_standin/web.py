"""HTTP/1.1 on a selector: many connections, one request at a time on each."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from .log import access
from .loop import READ, WRITE, Loop

REASONS = {200: "OK", 302: "Found", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
REASONS |= {405: "Method Not Allowed", 500: "Internal Server Error", 503: "Service Unavailable"}
KEEP_ALIVE = 5.0
HEAD_LIMIT = 1 << 16


class Request:
    """What a client asked."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.target = target
        self.path = target.partition("?")[0]
        self.headers = headers
        self.body = body


class Connection:
    """One client: reads a request, hands it on, writes the reply."""

    def __init__(self, server: Server, sock: socket.socket, peer: str) -> None:
        self.server = server
        self.sock = sock
        self.peer = peer
        self.used_at = time.monotonic()
        self.request: Request | None = None
        self.on_gone: Callable[[], None] | None = None
        self.refill: Callable[[], bytes] | None = None
        self.closed = False
        self._in = b""
        self._out = b""
        self._last = False
        server.loop.watch(sock, READ, self._event)

    def reply(self, status: int, body: str = "", kind: str = "application/json", extra: str = "") -> None:
        """Answer the request in hand; without one (client gone, answered before) do nothing."""
        if self.closed or self.request is None:
            return
        reason = REASONS.get(status, "Unknown")
        if self.server.access_log:
            access(self.peer, self.request.method, self.request.target, status, reason)
        payload = body.encode()
        close = "connection: close\r\n" if self._last else ""
        head = f"HTTP/1.1 {status} {reason}\r\nserver: uvicorn\r\ncontent-length: {len(payload)}\r\n"
        head += f"content-type: {kind}\r\n{extra}{close}\r\n"
        self.raw(head.encode() + payload)

    def raw(self, data: bytes, close: bool = False) -> None:
        """Send these bytes as the answer."""
        self.request = None
        self.on_gone = None
        self.used_at = time.monotonic()
        self._last = self._last or close
        self._out += data
        self._flush()

    def close(self) -> None:
        """End it, telling whoever works on its request."""
        if self.closed:
            return
        self.closed = True
        self.server.loop.forget(self.sock)
        self.server.connections.discard(self)
        self.sock.close()
        if self.on_gone:
            self.on_gone()

    def _event(self, events: int) -> None:
        try:
            if events & WRITE:
                self._flush()
            elif events & READ:
                self._read()
        except OSError:
            self.close()

    def _read(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            self.close()
            return
        self._in += data
        self._parse()

    def _parse(self) -> None:
        if self.request is not None or self._out or self.closed:
            return
        head, separator, rest = self._in.partition(b"\r\n\r\n")
        if not separator:
            if len(self._in) > HEAD_LIMIT:
                self.close()
            return
        try:
            method, target, version, headers = _split(head.decode("latin-1"))
            length = int(headers.get("content-length", "0"))
        except ValueError:
            self.raw(
                b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", close=True
            )
            return
        if len(rest) < length:
            return
        self._in = rest[length:]
        self._last = version == "HTTP/1.0" or headers.get("connection", "").lower() == "close"
        self.request = Request(method, target, headers, rest[:length])
        self.server.handler(self.request, self)

    def _flush(self) -> None:
        if self.refill and len(self._out) < HEAD_LIMIT:
            self._out += self.refill()
        try:
            self._out = self._out[self.sock.send(self._out) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self._out or self.refill:
            self.server.loop.watch(self.sock, READ | WRITE, self._event)
        elif self._last:
            self.close()
        else:
            self.server.loop.watch(self.sock, READ, self._event)
            self._parse()


class Server:
    """The listening socket and its connections."""

    def __init__(self, loop: Loop, handler: Callable[[Request, Connection], None], access_log: bool) -> None:
        self.loop = loop
        self.handler = handler
        self.access_log = access_log
        self.connections: set[Connection] = set()
        self._socket: socket.socket | None = None

    def listen(self, host: str, port: int) -> None:
        """Bind; OSError when the port is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(2048)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        self._socket = listener
        self.loop.watch(listener, READ, self._accept)

    def _accept(self, _events: int) -> None:
        assert self._socket is not None
        for _ in range(256):
            try:
                sock, address = self._socket.accept()
            except OSError:
                break
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self.connections:
                self.loop.later(KEEP_ALIVE, self._expire)
            self.connections.add(Connection(self, sock, f"{address[0]}:{address[1]}"))

    def _expire(self) -> None:
        old = time.monotonic() - KEEP_ALIVE
        for connection in list(self.connections):
            if connection.request is None and not connection.refill and connection.used_at <= old:
                connection.close()
        if self.connections:
            self.loop.later(KEEP_ALIVE / 2, self._expire)


def _split(head: str) -> tuple[str, str, str, dict[str, str]]:
    first, *lines = head.split("\r\n")
    method, target, version = first.split(" ")
    headers = {}
    for text in lines:
        name, _, value = text.partition(":")
        headers[name.strip().lower()] = value.strip()
    return method, target, version, headers
