"""How a unit's loads go: what is learned from each, and what is seen of one while it lasts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Gpu, Identity, Layout, UnitName
from gpu_lifecycle.rules.doing import Doing, summary
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.loading import silent
from gpu_lifecycle.rules.loads import Loaded, fingerprint, learned, unfit, with_load
from gpu_lifecycle.rules.phases import Step
from gpu_lifecycle.system.files import read_state, write_state
from gpu_lifecycle.system.patience import Patience
from gpu_lifecycle.system.threads import look_closely

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config
    from gpu_lifecycle.rules.life import Life, Limits
    from gpu_lifecycle.system.journal import Journal
    from gpu_lifecycle.system.procfs import Proc

FILE_SECONDS = 2.0  # for the file: a disk that hangs is not waited for
DOING_EVERY = 5.0  # seconds between two looks at what the processes do
PROCESSES = 64  # looked at


class Loads:
    """The loads of one unit, and the one that is going on. Nothing that fails here is in the way of a run: it is told once."""

    def __init__(self, layout: Layout, unit: UnitName, config: Config, proc: Proc, journal: Journal) -> None:
        self.path = layout.loads(unit)
        self.config = config
        self.proc = proc
        self.journal = journal
        self.patience = Patience(FILE_SECONDS)
        self.key = ""
        self.told = False
        self.keeping: set[asyncio.Task[None]] = set()
        self._doing = ""
        self._asked = 0.0

    def limits(self, limits: Limits, gpus: Iterable[Gpu]) -> Limits:
        """The limits of a run, with what is learned of loads on these GPUs."""
        server = self.config.server
        models = [server.target() or "", server.draft() or ""]
        boards = {gpu.board for gpu in gpus}
        self.key = fingerprint(server.engine, server.command, models, limits.weights, boards)
        document, trouble = self._read()
        if trouble:
            self._tell(f"how earlier loads went is not known: {self.path}: {trouble}")
        return replace(limits, learned=learned(document, self.key))

    def _read(self) -> tuple[dict[str, object] | None, str]:
        try:
            document, trouble = self.patience.one(os.getpid(), lambda _: read_state(self.path))
        except OSError:
            return None, "its disk does not answer"
        return document, trouble or unfit(document)

    def keep(self, loaded: Loaded) -> None:
        """Learns from a load, beside the run: READY=1 has been said."""
        task = asyncio.create_task(asyncio.to_thread(self._keep, loaded))
        self.keeping.add(task)
        task.add_done_callback(self.keeping.discard)

    def _keep(self, loaded: Loaded) -> None:
        try:
            self.patience.one(os.getpid(), lambda _: self._write(loaded))
        except (OSError, LifecycleError) as error:
            self._tell(f"how this load went is not kept: {error if isinstance(error, LifecycleError) else self.path}")

    def _write(self, loaded: Loaded) -> None:
        """Replaced as a whole. Nothing is synced: a file that a power cut has torn counts for nothing."""
        document, _ = read_state(self.path)
        write_state(self.path, with_load(document, self.key, time.time(), loaded))

    def _tell(self, text: str) -> None:
        if not self.told:
            self.told = True
            self.journal.tell(Event("loads-not-kept", text))

    async def seen(self, life: Life, alive: Iterable[Identity]) -> tuple[int | None, str]:
        """What the unit's processes have read by now, and, where nothing has moved for long, what they are doing."""
        if life.was_ready:
            return None, ""
        now = time.monotonic()
        alive = sorted(alive, key=lambda identity: identity.pid)[:PROCESSES]
        if not silent(life, now):
            self._doing = ""
        elif not self._doing or now - self._asked >= DOING_EVERY:
            self._asked = now
            self._doing = await asyncio.to_thread(self._look, alive)
        return self._bytes_read(alive), self._doing

    def _bytes_read(self, alive: Iterable[Identity]) -> int | None:
        amounts = [amount for identity in alive if (amount := self.proc.bytes_read(identity.pid)) is not None]
        return sum(amounts) if amounts else None

    def _look(self, alive: Iterable[Identity]) -> str:
        found = []
        for identity in alive:
            stat = self.proc.stat(identity.pid)
            if stat:
                title = self.proc.title(identity.pid, stat)
                found.append(Doing(identity.pid, title, look_closely(identity, self.proc).threads))
        return summary(found)

    async def close(self) -> None:
        if self.keeping:
            await asyncio.wait(self.keeping)


def load_fields(life: Life | None) -> Mapping[str, object]:
    """How far a load was, for the evidence of its end; empty where it was over."""
    if life is None or life.was_ready:
        return {}
    return {
        "phase": Step(life.engine_step).words,
        "done": life.done if life.total else None,
        "total": life.total or None,
        "progress": life.progress,
        "seconds": round(time.monotonic() - life.began, 1),
        "last_progress": life.last_progress or None,
        "seconds_without_progress": round(time.monotonic() - life.progressed, 1),
        "bytes_read": life.read or None,
        "doing": life.doing or None,
    }
