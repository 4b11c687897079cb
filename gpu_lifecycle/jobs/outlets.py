"""Where the daemon's view goes beside journal and state file: metrics and notices. What is off is not even imported."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Gpu, GpuView, Layout, UnitName
from gpu_lifecycle.jobs.settings import load_config
from gpu_lifecycle.rules.lifecycle import LifeEvent, StopRequested

if TYPE_CHECKING:
    from gpu_lifecycle.jobs.metrics import MetricsPage
    from gpu_lifecycle.jobs.notices import Notices
    from gpu_lifecycle.jobs.state import StateFile
    from gpu_lifecycle.rules.config import Config
    from gpu_lifecycle.rules.life import Life
    from gpu_lifecycle.rules.readiness import Look
    from gpu_lifecycle.system.journal import Journal


class Outlets:
    """One daemon's. ``apart`` is told which sessions are not the engine's."""

    def __init__(self, config: Config, unit: UnitName, state: StateFile, journal: Journal, apart: set[int]) -> None:
        self.unit = unit
        self.state = state
        self.journal = journal
        self.page: MetricsPage | None = None
        self.notices: Notices | None = None
        if config.metrics.listen or config.metrics.textfile:
            from gpu_lifecycle.jobs.metrics import MetricsPage

            self.page = MetricsPage(config, unit, state, journal)
        if config.notify.command:
            from gpu_lifecycle.jobs.notices import Notices

            self.notices = Notices(config.notify, state, journal, apart)
        if self.page and self.notices:
            self.page.notices = self.notices.counts
        self._told_before = self.state.take_untold()

    def begin(self) -> None:
        """To be called in the loop, again after a ``rest``."""
        if not (self.page or self.notices):
            self.journal.heard = deque(maxlen=0)
            return
        loop = asyncio.get_running_loop()
        self.journal.wake = lambda: self._wake(loop)
        if self.page:
            self.page.begin()
        self._hear_and_tell()

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """From any thread; one that was left behind may come after the end."""
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._hear_and_tell)

    def _hear_and_tell(self) -> None:
        self._hear()
        if self.notices and self.journal.wake:
            self.notices.go_on()

    def _hear(self) -> None:
        heard = self.journal.take_heard()
        if self.page:
            self.page.events.update(event.word for event in heard)
        if self.notices:
            from gpu_lifecycle.rules.notice import row_of

            rows = [row_of(event, self.unit.service, self.state.run, time.time()) for event in heard]
            before, self._told_before = self._told_before, []
            self.notices.take([*before, *rows])

    def see(
        self, life: Life, look: Look | None, view: GpuView | None, gpus: tuple[Gpu, ...], account: Mapping[str, Any]
    ) -> None:
        if self.page:
            self.page.see(life, look, view, gpus, account)

    async def rest(self) -> None:
        """Lets go of all that the next program in this process is to have."""
        self.journal.wake = None
        self._hear()
        if self.page:
            await self.page.rest()
        if self.notices:
            await self.notices.rest()

    async def close(self, life: Life | None, events: asyncio.Queue[LifeEvent]) -> None:
        """The end of the run. Only one that has failed waits a little for what is being told, and a stop ends that."""
        self._hear()
        if self.notices and life and life.failure and not life.stopping:
            await self.notices.finish(_stop_of(events))
        await self.rest()
        if self.page:
            await self.page.close()


async def _stop_of(events: asyncio.Queue[LifeEvent]) -> None:
    while not isinstance(await events.get(), StopRequested):
        pass


def tell_refusal(unit: UnitName, layout: Layout, state: StateFile, journal: Journal) -> None:
    """Tells of a start that ends before there is a daemon, hooks' events among it. SIGTERM ends this at once."""
    try:
        config = load_config(layout, unit)
    except LifecycleError:
        return  # whom to tell stands in the config
    if config.notify.command:
        asyncio.run(_tell_all(config, unit, state, journal))


async def _tell_all(config: Config, unit: UnitName, state: StateFile, journal: Journal) -> None:
    outlets = Outlets(config, unit, state, journal, set())
    outlets.page = None
    outlets.begin()
    if outlets.notices:
        await outlets.notices.finish(asyncio.sleep(3600))
