"""A very small HTTP server for one page, in the daemon's own loop. Whoever asks can cost the loop little, and hold nothing.

One answer to a connection, then it is closed. At most ``CONNECTIONS`` at once, each with a deadline, a request of at most
``REQUEST`` bytes, and an answer that is made at most once a second..
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.rules.listening import Listening

CONNECTIONS = 8
REQUEST = 8192
SECONDS = 5.0  # from the first byte to the last
FRESH = 1.0  # seconds for which a page is not made again
PATH = "/metrics"


class PageServer:
    """Serves what ``page`` gives, as ``content_type``. ``refused`` counts who was turned away."""

    def __init__(self, page: Callable[[], bytes], content_type: str) -> None:
        self.refused = 0
        self.content_type = content_type
        self._page = page
        self._made = b""
        self._made_at: float | None = None
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()

    async def open(self, where: Listening) -> None:
        """Raises LifecycleError where nobody can listen there."""
        loop = asyncio.get_running_loop()
        try:
            taken = _unix(where.path) if where.path else _tcp(where)
            self._server = await loop.create_server(lambda: _Connection(self), sock=taken, backlog=CONNECTIONS)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise LifecycleError(f"cannot serve metrics at {where}: {reason}", hint="choose another metrics.listen") from None

    def page(self) -> bytes:
        now = asyncio.get_running_loop().time()
        if self._made_at is None or now - self._made_at >= FRESH:
            self._made, self._made_at = self._page(), now
        return self._made

    def admit(self, connection: _Connection) -> bool:
        if len(self._open) >= CONNECTIONS:
            self.refused += 1
            return False
        self._open.add(connection)
        return True

    def leave(self, connection: _Connection) -> None:
        self._open.discard(connection)

    async def close(self) -> None:
        """Ends all connections at once, too."""
        if self._server:
            self._server.close()
            for connection in list(self._open):
                connection.abort()
            await asyncio.sleep(0)
            self._server = None


def _tcp(where: Listening) -> socket.socket:
    """Taken again at once after a restart, while connections of the run before are still remembered (SO_REUSEADDR)."""
    made = socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((where.host, where.port))
    except OSError:
        made.close()
        raise
    return made


def _unix(path: str) -> socket.socket:
    """A socket that nobody listens on any more is a run's that has ended: it is replaced. All else that lies there stays."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode):
                raise FileExistsError(17, "something else has this name")
            _must_be_dead(path)
            os.unlink(path)
        made.bind(path)
        os.chmod(path, 0o666)  # noqa: S103 - as readable as the state file
    except OSError:
        made.close()
        raise
    return made


def _must_be_dead(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as knock:
        try:
            knock.connect(path)
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass  # its queue is full: somebody lives there
    raise OSError(98, "somebody listens there")


class _Connection(asyncio.Protocol):
    def __init__(self, server: PageServer) -> None:
        self.server = server
        self.request = b""
        self.transport: asyncio.Transport | None = None
        self.deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.server.admit(self):
            self.deadline = asyncio.get_running_loop().call_later(SECONDS, self._late)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        assert self.transport
        if self.transport.is_closing():
            return
        self.request += data
        if b"\r\n\r\n" in self.request or b"\n\n" in self.request:
            self._answer(*self._find())
        elif len(self.request) > REQUEST:
            self._answer(431, b"the request is too long\n")

    def _find(self) -> tuple[int, bytes]:
        method, _, rest = self.request.partition(b"\n")[0].strip().partition(b" ")
        path, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return 400, b"this is no request of HTTP/1\n"
        if method not in (b"GET", b"HEAD"):
            return 405, b"only GET and HEAD\n"
        if path.partition(b"?")[0] != PATH.encode():
            return 404, b"the page is /metrics\n"
        return 200, self.server.page()

    def _answer(self, status: int, body: bytes) -> None:
        assert self.transport
        words = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}.get(status, "Refused")
        kind = self.server.content_type if status == 200 else "text/plain; charset=utf-8"
        head = f"HTTP/1.1 {status} {words}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + (b"" if self.request.startswith(b"HEAD ") else body))
        self.transport.close()  # once all is sent, or at the deadline

    def _late(self) -> None:
        self.server.refused += 1
        self.abort()

    def abort(self) -> None:
        if self.transport:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.deadline:
            self.deadline.cancel()
        self.server.leave(self)
