"""The door to the engine's HTTP endpoint: one bounded question at a time, on a fresh connection, past any proxy."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gpu_lifecycle.rules.endpoints import Endpoint
from gpu_lifecycle.rules.engines import Request
from gpu_lifecycle.rules.metrics import Answer, Scrape, read
from gpu_lifecycle.rules.readiness import Health
from gpu_lifecycle.rules.text import printable

if TYPE_CHECKING:
    import ssl

    import httpcore

Headers: TypeAlias = dict[bytes | str, bytes | str]
BODY_LIMIT = 64 * 1024
PAGE_LIMIT = 10 * 1024 * 1024
KEY = re.compile(r"[!-~]+")  # what may stand in a header (RFC 9110, 5.5); anything else would be shown in the refusal
# What says nothing of the server: this machine, or this process, has no room for a connection, or nobody took it in time.
NO_ROOM = frozenset((
    errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN, errno.ETIMEDOUT,
    socket.EAI_AGAIN,
))  # fmt: skip


class _Answer(NamedTuple):
    code: int | None
    text: str
    body: bytes = b""
    seconds: float = 0.0
    silent: bool = False
    refused: bool = False


class HealthProbe:
    """Asks one endpoint. Use ``await close()`` at the end."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.client: httpcore.AsyncConnectionPool | None = None
        self.waits: set[asyncio.Timeout] = set()  # of the questions that are open
        self.over = False

    def _open(self) -> httpcore.AsyncConnectionPool:
        """At the first question: an engine is not to wait for the library to be read before it is even started.

        It asks past any proxy: it does not read http_proxy and the like of the unit's environment.
        """
        import httpcore

        # No connection is kept: engines close idle ones after seconds, and a kept one would hide a dead listener.
        return httpcore.AsyncConnectionPool(
            ssl_context=_trust_all() if self.endpoint.scheme == "https" else None,
            max_connections=None,
            max_keepalive_connections=0,
            uds=self.endpoint.uds or None,
        )

    async def get(self, path: str, deadline: float) -> Health:
        """GET within ``deadline`` seconds in all. Never raises: what is no answer comes back as words."""
        return _health(await self._within(deadline, Request("GET", path), "", BODY_LIMIT))

    async def generate(self, request: Request, key: str, deadline: float) -> Health:
        """Asks for one token. An answer counts if it is 200 with a JSON object that holds what the request names as proof.

        A GET has the token made for its answer's sake, so that its status says it all. Never raises.
        """
        answer = await self._within(deadline, request, key, BODY_LIMIT)
        if answer.code != 200:
            return _health(answer)
        if request.method == "GET":
            return Health(200, "one token generated", answer.seconds)
        import json

        try:
            said = json.loads(answer.body)
        except (ValueError, RecursionError):
            return Health(None, "the answer is not JSON", answer.seconds)
        if not isinstance(said, dict) or said.get("error") or (request.proof and said.get(request.proof) in (None, [])):
            shown = answer.body.replace(key.encode(), b"***") if key else answer.body
            return Health(None, printable(f"the answer is {shown[:100]!r}", 160), answer.seconds)
        return Health(200, "one token generated", answer.seconds)

    async def scrape(self, path: str, names: Collection[str], key: str, deadline: float) -> Scrape:
        """Reads ``names`` from a metrics page. Never raises; refused, failed and read are three answers."""
        answer = await self._within(deadline, Request("GET", path), key, PAGE_LIMIT)
        if answer.refused:
            return Scrape(Answer.REFUSED, answer.text)
        if answer.code != 200:
            return Scrape(Answer.FAILED, answer.text)
        return read(answer.body.decode("utf-8", "replace"), names)

    def give_up(self) -> None:
        """No question is open any more, and none is asked: llama.cpp does not end before the last asker has gone."""
        self.over = True
        for wait in self.waits:
            wait.reschedule(asyncio.get_running_loop().time())

    async def _within(self, deadline: float, request: Request, key: str, limit: int) -> _Answer:
        if self.over:
            return _Answer(None, "not asked: it is to end", silent=True)
        self.client = client = self.client or self._open()
        began = time.monotonic()
        wait = asyncio.timeout(deadline)
        self.waits.add(wait)
        try:
            async with wait:
                answer = await self._ask(client, request, key, limit)
        except TimeoutError:
            answer = self._unanswered(deadline)
        except OSError as error:
            answer = _unconnected(error)
        finally:
            self.waits.discard(wait)
        return answer._replace(seconds=time.monotonic() - began)

    def _unanswered(self, deadline: float) -> _Answer:
        return _Answer(None, "given up: it is to end" if self.over else f"no answer within {deadline:g} s", silent=True)

    async def _ask(self, client: httpcore.AsyncConnectionPool, request: Request, key: str, limit: int) -> _Answer:
        import httpcore

        try:
            address, headers, content = _written(self.endpoint, request, key)
            async with client.stream(request.method, address, headers=headers, content=content) as response:
                body = await _drain(response, limit)
        except httpcore.ConnectError as error:
            return _unconnected(error)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, ValueError) as error:
            return _Answer(None, printable(f"no usable answer: {type(error).__name__}: {error}", 160))
        if len(body) > limit:
            return _Answer(None, f"an answer of more than {limit} bytes")
        return _Answer(response.status, f"status {response.status}", body)

    async def close(self) -> None:
        if self.client:
            await self.client.aclose()


def load_client() -> None:
    """Reads the library now: a version of it that is installed later must not be the one that a running daemon asks with.

    It reads a part of itself at the first question only; so one is asked of a file that is no socket. Blocks for 0.1 s, and
    is to be called where no event loop runs.
    """
    asyncio.run(HealthProbe(Endpoint("localhost", 0, uds=os.devnull)).get("/", 1))


def _trust_all() -> ssl.SSLContext:
    """Certificates of a loopback engine prove nothing that the socket's owner does not prove better."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _written(endpoint: Endpoint, request: Request, key: str) -> tuple[httpcore.URL, Headers, bytes | None]:
    """What goes on the wire. UnicodeError (a ValueError) where a host's name cannot be written."""
    import httpcore

    endpoint = replace(endpoint, host=endpoint.host.encode("idna").decode())
    address = httpcore.URL(scheme=endpoint.scheme, host=endpoint.host, port=endpoint.port or None, target=request.path)
    headers: Headers = {"Host": endpoint.authority, "User-Agent": "gpu-lifecycle", "Accept-Encoding": "identity"}
    if KEY.fullmatch(key):
        headers["Authorization"] = f"Bearer {key}"
    if request.body is None:
        return address, headers, None
    import json

    return address, headers | {"Content-Type": "application/json"}, json.dumps(request.body).encode()


def _health(answer: _Answer) -> Health:
    return Health(answer.code, answer.text, answer.seconds, answer.silent)


def _unconnected(error: BaseException) -> _Answer:
    """Why there is no connection; the kernel's own word is the innermost of the errors."""
    number, words = 0, str(error)
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno:
            number, words = seen.errno, seen.strerror or str(seen)
        seen = seen.exceptions[0] if isinstance(seen, BaseExceptionGroup) else seen.__cause__ or seen.__context__
    if number in NO_ROOM:
        return _Answer(None, printable(f"no connection can be made: {words}", 160), silent=True)
    if number == errno.ECONNREFUSED:
        return _Answer(None, "connection refused", refused=True)
    return _Answer(None, printable(f"cannot connect: {words}", 160), refused=True)


async def _drain(response: httpcore.Response, limit: int) -> bytes:
    """The body, at most a bit beyond the limit."""
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > limit:
            break
    return bytes(body)
