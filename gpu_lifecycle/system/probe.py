"""The door to the engine's HTTP endpoint: one bounded question at a time, on a fresh connection, past any proxy."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from gpu_lifecycle.rules.endpoints import Endpoint
from gpu_lifecycle.rules.engines import Request
from gpu_lifecycle.rules.metrics import Answer, Scrape, read
from gpu_lifecycle.rules.readiness import Health
from gpu_lifecycle.rules.text import printable

if TYPE_CHECKING:
    import httpx

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
        self.client: httpx.AsyncClient | None = None
        self.waits: set[asyncio.Timeout] = set()  # of the questions that are open
        self.over = False

    def _open(self) -> httpx.AsyncClient:
        """At the first question: an engine is not to wait for the library to be read before it is even started."""
        import httpx

        # trust_env=False: http_proxy and the like in the unit's environment must not stand between us and loopback.
        # No connection is kept: engines close idle ones after seconds, and a kept one would hide a dead listener.
        transport = httpx.AsyncHTTPTransport(
            uds=self.endpoint.uds or None, limits=httpx.Limits(max_keepalive_connections=0), trust_env=False, verify=False
        )  # certificates of a loopback engine prove nothing that the socket's owner does not prove better
        return httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)

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

    async def _ask(self, client: httpx.AsyncClient, request: Request, key: str, limit: int) -> _Answer:
        import httpx

        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if KEY.fullmatch(key) else {})
        url = self.endpoint.url(request.path)
        sent = client.stream(request.method, url, json=request.body, headers=headers, timeout=None)
        try:
            async with sent as response:
                body = await _drain(response, limit)
        except httpx.ConnectError as error:
            return _unconnected(error)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return _Answer(None, printable(f"no usable answer: {type(error).__name__}: {error}", 160))
        if len(body) > limit:
            return _Answer(None, f"an answer of more than {limit} bytes")
        return _Answer(response.status_code, f"status {response.status_code}", body)

    async def close(self) -> None:
        if self.client:
            await self.client.aclose()


def load_client() -> None:
    """Reads the library now: a version of it that is installed later must not be the one that a running daemon asks with."""
    from importlib import import_module

    import_module("httpx")


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


async def _drain(response: httpx.Response, limit: int) -> bytes:
    """The body, at most a bit beyond the limit."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            break
    return bytes(body)
