"""Follows a drain: asks the engine's metrics how many requests are in flight, beside the end that goes on without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_lifecycle.rules.engines import metrics_of
from gpu_lifecycle.rules.life import InFlight
from gpu_lifecycle.rules.metrics import counters
from gpu_lifecycle.system.probe import HealthProbe

if TYPE_CHECKING:
    from gpu_lifecycle.jobs.keys import EngineKey
    from gpu_lifecycle.rules.config import Config

# Seconds before each question. Before the first, too: llama.cpp leaves one that comes on the heels of its SIGTERM without an
# answer, and waits for whoever asked; an idle engine has ended by then.
INTERVAL = 0.5
SECONDS = 2.0  # for one answer


class DrainWatch:
    """At most one drain. ``tell`` gets what is seen."""

    def __init__(self, config: Config, key: EngineKey, ours: Callable[[bool], bool], tell: Callable[[InFlight], None]) -> None:
        """``ours``: whether a port is still this unit's, the engine's own, or (True) one of its metrics beside it."""
        self.config = config
        self.key = key
        self.ours = ours
        self.tell = tell
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self.task is None:
            self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        server = self.config.server
        metrics = metrics_of(server.preset, server.command)
        if metrics is None:
            return  # an engine that does not say is given stop.drain, as ever
        endpoint = server.endpoint()
        aside = metrics.port is not None and not endpoint.uds
        probe = HealthProbe(replace(endpoint, port=metrics.port) if aside and metrics.port else endpoint)
        try:
            while True:
                await asyncio.sleep(INTERVAL)
                if not self.ours(aside):  # a stranger is given no key, and his numbers are nothing to us
                    self.tell(InFlight(None, "its port is closed"))
                else:
                    scrape = await probe.scrape(metrics.path, metrics.names, self.key.now()[0], SECONDS)
                    seen = counters(scrape, metrics)
                    told = [n for n in (seen.running, seen.queued) if n is not None] if seen else []
                    why = scrape.text or "its metrics do not say"
                    self.tell(InFlight(sum(told)) if told else InFlight(None, why))
        finally:
            await probe.close()

    async def close(self) -> None:
        if self.task:
            self.task.cancel()
            await asyncio.wait({self.task})
