"""Tells people of events, by a command of the user's: never in the way of a run, of a stop least of all.

What was not told in time is left in the state file, and the next daemon of the unit tells it. So an event is told at least
once, and now and then twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.notice import OURS, Row, alike, document, wanted, worst
from gpu_lifecycle.system.callout import call_out
from gpu_lifecycle.system.engine import engine_environment

if TYPE_CHECKING:
    from gpu_lifecycle.jobs.state import StateFile
    from gpu_lifecycle.rules.config import Notify
    from gpu_lifecycle.system.journal import Journal

AT_ONCE = 4
WAITING = 32
QUIET = 60.0  # seconds in which the same event is told once
LAST = 10.0  # ... that the end of a failed run, which nobody has asked for, waits at most for what is being told


class Notices:
    """The commands of one process. ``apart`` holds the sessions of those that run: they are no part of the engine."""

    def __init__(self, config: Notify, state: StateFile, journal: Journal, apart: set[int]) -> None:
        self.config = config
        self.state = state
        self.journal = journal
        self.apart = apart
        self.counts = {"done": 0, "failed": 0, "dropped": 0}
        self.waiting: list[Row] = []
        self.running: dict[asyncio.Task[None], Row] = {}
        self._told: dict[tuple[str, ...], float] = {}
        self._skipped: dict[tuple[str, ...], int] = {}
        self._complained = False

    def take(self, rows: Iterable[Row]) -> None:
        """What of them is wanted waits until ``go_on``."""
        for row in rows:
            if wanted(row, self.config.events) and not self._is_repeated(row):
                self.waiting, dropped = worst([*self.waiting, row], WAITING)
                self.counts["dropped"] += dropped

    def _is_repeated(self, row: Row) -> bool:
        key, now = alike(row), time.monotonic()
        if now - self._told.get(key, -QUIET) < QUIET:
            self._skipped[key] = self._skipped.get(key, 0) + 1
            return True
        if len(self._told) > 1000:  # pids make keys of their own
            self._told.clear()
        self._told[key] = now
        return False

    def go_on(self) -> None:
        """Starts as many as may run at once."""
        while self.waiting and len(self.running) < AT_ONCE:
            row = self.waiting.pop(0)
            task = asyncio.create_task(self._tell(row))
            self.running[task] = row
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.running.pop(task, None)
            task.result()
            self.go_on()

    async def _tell(self, row: Row) -> None:
        data = json.dumps(document(row, os.uname().nodename, self._skipped.pop(alike(row), 0))).encode() + b"\n"
        environment = engine_environment(os.environ, {}, self.state.unit, self.state.run)
        born: list[int] = []
        try:
            trouble = await call_out(self.config.command or (), environment, data, self.config.limit, self._born(born))
        finally:
            self.apart.difference_update(born)
        self.counts["failed" if trouble else "done"] += 1
        self._complain(trouble)

    def _born(self, born: list[int]) -> Callable[[int], None]:
        def note(pid: int) -> None:
            born.append(pid)
            self.apart.add(pid)

        return note

    def _complain(self, trouble: str) -> None:
        """Once, until it has worked again."""
        if trouble and not self._complained:
            self.journal.tell(Event(OURS, f"people were not told: notify.command {trouble}"))
        self._complained = bool(trouble)

    async def rest(self) -> None:
        """Ends those that run. They, and what was waiting, are left for the next daemon."""
        unfinished = [*self.running.values(), *self.waiting]
        self.waiting = []
        tasks = list(self.running)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.running.clear()
        if unfinished:
            self.state.keep_untold(unfinished)
            self.state.write()  # what cannot be kept is lost: the journal has it all the same

    async def finish(self, hurry: Coroutine[Any, Any, None]) -> None:
        """Gives what is being told a little time, which ``hurry`` ends; then rests."""
        self.go_on()
        stop = asyncio.create_task(hurry)
        try:
            async with asyncio.timeout(min(self.config.limit, LAST)):
                while self.running and not stop.done():
                    await asyncio.wait({stop, *self.running}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            stop.cancel()
            await asyncio.wait({stop})
            await self.rest()
