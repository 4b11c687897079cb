"""The metrics of one unit: kept up to date by the daemon's loop, served and written where the config says so."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_lifecycle import __version__
from gpu_lifecycle.errors import Exit, LifecycleError
from gpu_lifecycle.facts import Gpu, GpuView, Phase, UnitName
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.listening import parse_listening
from gpu_lifecycle.rules.measured import Seen, Tally, samples
from gpu_lifecycle.rules.metric_names import Distribution
from gpu_lifecycle.rules.readiness import NOT_ASKED
from gpu_lifecycle.system.exposition import CONTENT_TYPE, load, render
from gpu_lifecycle.system.files import write_page
from gpu_lifecycle.system.page_server import PageServer
from gpu_lifecycle.system.patience import Patience

if TYPE_CHECKING:
    from gpu_lifecycle.jobs.state import StateFile
    from gpu_lifecycle.rules.config import Config
    from gpu_lifecycle.rules.life import Life
    from gpu_lifecycle.rules.readiness import Look
    from gpu_lifecycle.system.journal import Journal

WRITE_EVERY = 10.0  # seconds
FILE_SECONDS = 2.0  # for a disk that hangs
TRY_AGAIN = 30.0  # seconds until an address that is taken is tried again


class MetricsPage:
    """One daemon's. Nothing that fails here is in the way of the run: it is told once."""

    def __init__(self, config: Config, unit: UnitName, state: StateFile, journal: Journal) -> None:
        self.config = config
        self.unit = unit
        self.state = state
        self.journal = journal
        self.events: Counter[str] = Counter()
        self.notices: Mapping[str, int] = {}
        self.server = PageServer(self.page, CONTENT_TYPE)
        self.patience = Patience(FILE_SECONDS)
        self.seen: Seen | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.loaded = False
        self._probes = Distribution()
        self._complained: set[str] = set()
        self._changed = asyncio.Event()

    def begin(self) -> None:
        """Opens it, beside the run."""
        self.tasks = [asyncio.create_task(self._open())]

    def see(
        self, life: Life, look: Look | None, view: GpuView | None, gpus: tuple[Gpu, ...], account: Mapping[str, Any]
    ) -> None:
        """What there is to be shown from now on."""
        before = self.seen
        if look and look.health is not NOT_ASKED and (before is None or look is not before.look):
            self._probes = self._probes.plus(look.health.seconds)
        engine, blind = self.config.server.engine, self.state.kernel_log
        self.seen = Seen(__version__, engine, time.time(), life, look, view, gpus, account, self.state.document, blind)
        if before is None or before.life.phase is not life.phase:
            self._changed.set()

    def page(self) -> bytes:
        """The page as of now; empty before the run has begun."""
        if self.seen is None:
            return b""
        tally = Tally(self._probes, self.events, self.notices, self.server.refused)
        return render(self.unit.service, samples(self.seen, tally))

    async def _open(self) -> None:
        try:
            await asyncio.to_thread(load)
        except LifecycleError as error:
            self._complain("library", str(error))
            return
        self.loaded = True
        if self.config.metrics.textfile:
            self.tasks.append(asyncio.create_task(self._keep_writing(self._file())))
        if self.config.metrics.listen:
            await self._serve(self.config.metrics.listen)

    async def _serve(self, listen: str) -> None:
        while True:
            try:
                await self.server.open(parse_listening(listen))
            except LifecycleError as error:
                self._complain("listen", str(error))
                await asyncio.sleep(TRY_AGAIN)
            else:
                return

    def _file(self) -> str:
        return os.path.join(self.config.metrics.textfile or "", f"gpu_lifecycle_{self.unit.name}.prom")

    async def _keep_writing(self, path: str) -> None:
        """At once where the phase has changed, else every ten seconds."""
        while True:
            self._changed.clear()
            await self._write(path)
            try:
                async with asyncio.timeout(WRITE_EVERY):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _write(self, path: str) -> None:
        data = self.page()
        try:
            await asyncio.to_thread(self.patience.one, os.getpid(), lambda _: write_page(path, data))
        except LifecycleError as error:
            self._complain("textfile", str(error))
        except OSError:
            self._complain("textfile", f"cannot write {path}: its disk does not answer")

    def _complain(self, what: str, text: str) -> None:
        if what not in self._complained:
            self._complained.add(what)
            self.journal.tell(Event("metrics-failed", text))

    async def rest(self) -> None:
        """Gives the address free, and ends whoever is connected."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        self.tasks = []
        await self.server.close()

    async def close(self) -> None:
        """The file says last that the unit is down, or has failed: nobody is there to renew it."""
        await self.rest()
        if self.loaded and self.config.metrics.textfile and self.seen:
            life = self.seen.life
            phase = Phase.FAILED if life.status not in (None, Exit.OK) else Phase.DOWN
            self.seen = replace(self.seen, life=replace(life, phase=phase, stage=life.stage or 1), look=None, view=None)
            await self._write(self._file())
