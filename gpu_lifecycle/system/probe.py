"""The door to the engine's HTTP endpoint: one bounded question at a time, on a fresh connection, past any proxy."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gpu_lifecycle.rules.endpoints import Endpoint
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
        began = time.monotonic()
        try:
            async with asyncio.timeout(deadline):
                code, text = await self._ask(path)
        except TimeoutError:
            return Health(None, f"no answer within {deadline:g} s", time.monotonic() - began)
        except OSError as error:
            return Health(None, printable(f"cannot connect: {error}", 160), time.monotonic() - began)
        return Health(code, text, time.monotonic() - began)

    async def _ask(self, path: str) -> tuple[int | None, str]:
        import httpx

        try:
            async with self.client.stream("GET", self.endpoint.url(path), timeout=None) as response:
                size = await _drain(response)
        except httpx.ConnectError:
            return None, "connection refused"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return None, printable(f"no usable answer: {type(error).__name__}: {error}", 160)
        if size > BODY_LIMIT:
            return None, f"an answer of more than {BODY_LIMIT} bytes"
        return response.status_code, f"status {response.status_code}"

    async def close(self) -> None:
        await self.client.aclose()


async def _drain(response: httpx.Response) -> int:
    """Reads the body, at most a bit beyond the limit."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > BODY_LIMIT:
            break
    return size
