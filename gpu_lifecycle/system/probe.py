"""The door to the engine's HTTP endpoint: one bounded question at a time, on a fresh connection, past any proxy."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gpu_lifecycle.rules.endpoints import Endpoint
from gpu_lifecycle.rules.engines import Request
from gpu_lifecycle.rules.readiness import Health
from gpu_lifecycle.rules.text import printable

if TYPE_CHECKING:
    import httpx

BODY_LIMIT = 64 * 1024


class HealthProbe:
    """Asks one endpoint. Use ``await close()`` at the end."""

    def __init__(self, endpoint: Endpoint) -> None:
        import httpx

        self.endpoint = endpoint
        # trust_env=False: http_proxy and the like in the unit's environment must not stand between us and loopback.
        # No connection is kept: engines close idle ones after seconds, and a kept one would hide a dead listener.
        transport = httpx.AsyncHTTPTransport(
            uds=endpoint.uds or None, limits=httpx.Limits(max_keepalive_connections=0), trust_env=False, verify=False
        )  # certificates of a loopback engine prove nothing that the socket's owner does not prove better
        self.client = httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)

    async def get(self, path: str, deadline: float) -> Health:
        """GET within ``deadline`` seconds in all. Never raises: what is no answer comes back as words."""
        code, text, _, seconds = await self._within(deadline, Request("GET", path), "")
        return Health(code, text, seconds)

    async def generate(self, request: Request, key: str, deadline: float) -> Health:
        """Asks for one token. An answer counts if it is 200 with a JSON object that reports no error. Never raises."""
        code, text, body, seconds = await self._within(deadline, request, key)
        if code != 200:
            return Health(code, text, seconds)
        import json

        try:
            answer = json.loads(body)
        except ValueError:
            return Health(None, "the answer is not JSON", seconds)
        if not isinstance(answer, dict) or answer.get("error"):
            return Health(None, printable(f"the answer is {body[:100]!r}", 160), seconds)
        return Health(200, "one token generated", seconds)

    async def _within(self, deadline: float, request: Request, key: str) -> tuple[int | None, str, bytes, float]:
        began = time.monotonic()
        body = b""
        code: int | None = None
        try:
            async with asyncio.timeout(deadline):
                code, text, body = await self._ask(request, key)
        except TimeoutError:
            text = f"no answer within {deadline:g} s"
        except OSError as error:
            text = printable(f"cannot connect: {error}", 160)
        return code, text, body, time.monotonic() - began

    async def _ask(self, request: Request, key: str) -> tuple[int | None, str, bytes]:
        import httpx

        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        url = self.endpoint.url(request.path)
        sent = self.client.stream(request.method, url, json=request.body, headers=headers, timeout=None)
        try:
            async with sent as response:
                body = await _drain(response)
        except httpx.ConnectError:
            return None, "connection refused", b""
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return None, printable(f"no usable answer: {type(error).__name__}: {error}", 160), b""
        if len(body) > BODY_LIMIT:
            return None, f"an answer of more than {BODY_LIMIT} bytes", b""
        return response.status_code, f"status {response.status_code}", body

    async def close(self) -> None:
        await self.client.aclose()


async def _drain(response: httpx.Response) -> bytes:
    """The body, at most a bit beyond the limit."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > BODY_LIMIT:
            break
    return body
