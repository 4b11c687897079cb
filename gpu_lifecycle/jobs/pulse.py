"""Signs of a ready engine's core: its counters, its health endpoint, one token; what is asked for is decided by a rule."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_lifecycle.jobs.keys import EngineKey
from gpu_lifecycle.rules.engines import metrics_of
from gpu_lifecycle.rules.life import Life
from gpu_lifecycle.rules.liveness import BEHIND_OTHERS, NOT_NOW, Ask, asks, health_wanted
from gpu_lifecycle.rules.metrics import Answer, Scrape, counters
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.rules.readiness import NOT_ASKED, Health, Signs
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.system.probe import HealthProbe
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.sockets import connections

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

SCRAPE_SECONDS = 10.0  # for a page that is made from memory
QUICK_ANSWER = 0.5  # seconds that a look waits for the token: READY=1 is not to wait for the next look


class Pulse:
    """Asks one engine. Use ``await close()`` at the end."""

    def __init__(self, config: Config, key: EngineKey, proc: Proc) -> None:
        server = config.server
        self.key = key
        self.proc = proc
        self.preset = server.preset
        self.endpoint = server.endpoint()
        self.probe = HealthProbe(self.endpoint)
        wanted = config.ready.generate and self.preset.generate is not None
        self.request = self.preset.generate.for_model(server.served_name() or "") if wanted and self.preset.generate else None
        self.metrics = metrics_of(self.preset, server.command)
        aside = self.metrics is not None and self.metrics.port not in (None, self.endpoint.port)
        self.page = replace(self.endpoint, port=self.metrics.port or 0, uds="") if self.metrics and aside else None
        self.pages = HealthProbe(self.page) if self.page else self.probe
        self.asking: asyncio.Task[Health] | None = None
        self.asked = 0.0

    async def take(self, life: Life, deadline: float, page_is_ours: Callable[[], bool]) -> tuple[Health, Signs]:
        """What one look at a ready engine shows. ``page_is_ours``: whether a metrics port of its own is the unit's."""
        ask = self._ask(life)
        scrape = await self._scrape(min(deadline / 3, SCRAPE_SECONDS), page_is_ours)
        known = counters(scrape, self.metrics) if scrape and self.metrics else None
        signs = Signs(scrape, known, None, self.preset.health_generates, within=self.metrics is None or self.metrics.within)
        health = await self.probe.get(self.preset.live_path, deadline) if health_wanted(ask, life.heart, signs) else NOT_ASKED
        longest = life.limits.busy_grace * (BEHIND_OTHERS + 1)  # the verdict comes before it is given up
        token = await self.token(longest) if ask.token or self.asking else None
        waited = time.monotonic() - self.asked if self.asking else None
        return health, replace(signs, token=token, waited=waited, others=self._others(token) if known is None else 0)

    def _others(self, token: Health | None) -> int:
        """How many have a connection to the engine beside us, counted where that tells why there is no token."""
        if self.asking is None and not (token and token.code in NOT_NOW):
            return 0
        return max(0, connections(self.endpoint, self.proc) - (self.asking is not None))

    def _ask(self, life: Life) -> Ask:
        return asks(
            life.heart, life.limits.pace, time.monotonic(),
            can_generate=self.request is not None, health_generates=self.preset.health_generates,
        )  # fmt: skip

    async def _scrape(self, deadline: float, page_is_ours: Callable[[], bool]) -> Scrape | None:
        if self.metrics is None:
            return None
        if self.page and not page_is_ours():
            return Scrape(Answer.FAILED, f"nobody of this unit listens on its metrics port {self.page.port}")
        return await self.pages.scrape(self.metrics.path, self.metrics.names, self.key.now()[0], deadline)

    async def token(self, deadline: float) -> Health | None:
        """The answer to a request for one token, asked beside the looks: it may take minutes. None: there is none yet."""
        assert self.request
        if self.asking is None:
            self.asked = time.monotonic()
            self.asking = asyncio.create_task(self._generate(deadline))
        await asyncio.wait({self.asking}, timeout=QUICK_ANSWER)
        if not self.asking.done():
            return None
        answer, self.asking = self.asking.result(), None
        return answer

    async def _generate(self, deadline: float) -> Health:
        assert self.request
        key, why = self.key.now()
        answer = await self.probe.generate(self.request, key, deadline)
        return replace(answer, text=f"{answer.text} ({printable(f'its key file: {why}', 200)})") if why else answer

    def waiting(self) -> str:
        """How long the token has been asked for."""
        return f"no answer yet, asked {show_duration(round(time.monotonic() - self.asked))} ago"

    def give_up(self) -> None:
        """The engine is to end, and shall not wait for us: no question stays open, and none is asked any more."""
        self.probe.give_up()
        self.pages.give_up()

    async def close(self) -> None:
        if self.asking:
            self.asking.cancel()
            await asyncio.wait({self.asking})
        await self.probe.close()
        await self.pages.close()
