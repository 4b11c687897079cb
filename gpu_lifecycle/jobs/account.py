"""What a run leaves for the history: how long its phases were, how it ended, and why. Kept by the daemon, beside its life."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from gpu_lifecycle.facts import Layout, Phase, UnitName
from gpu_lifecycle.jobs.history import keep
from gpu_lifecycle.jobs.output import EngineOutput
from gpu_lifecycle.jobs.recorder import Recorder
from gpu_lifecycle.jobs.state import StateFile
from gpu_lifecycle.rules import lifecycle as life_rules
from gpu_lifecycle.rules.account import cause_row, ended_of, joined, lines, number, since_began, spend
from gpu_lifecycle.rules.cause import Cause, classify, for_unit, one_line
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.lifecycle import Life
from gpu_lifecycle.rules.loading import steps_text
from gpu_lifecycle.rules.readiness import NOT_ASKED, Look, blind
from gpu_lifecycle.rules.verdict import FOREGROUND
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.procfs import Proc

PROBES = 5  # the last answers of the health endpoint
XIDS = 5
SAVE_START = 5.0  # seconds between two pictures of a start in the state file: a daemon that is killed loses so many at most


class Account:
    """One run's. ``row`` goes into the state file with each save: so the post-stop hook has it, whatever ends the daemon."""

    def __init__(
        self, layout: Layout, unit: UnitName, state: StateFile, journal: Journal, output: EngineOutput,
        recorded: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``recorded``: what the program before this one, in this process, hands over of the start; None: there was none."""
        self.layout = layout
        self.unit = unit
        self.journal = journal
        self.output = output
        saved = state.document.get("account") or {}
        mine = bool(state.run) and saved.get("run") == state.run
        self.row: dict[str, Any] = dict(saved) if mine else state.begun(Proc().boot_id)
        self.phase = Phase.PRE_START
        self.at = time.monotonic()
        at, lasted = number(self.row, "at"), since_began(self.row, time.time(), self.at)
        if at is not None and at <= self.at:  # a reload: the program before this one was here
            self.phase, self.at = Phase(state.document.get("phase", Phase.LOADING)), at
        else:
            spend(self.row, Phase.PRE_START, lasted)
        self.start = Recorder(time.monotonic() - lasted, recorded, over="ready_at" in self.row)
        self.drawn = 0.0  # when the picture of the start was last put into the row
        self.probes: deque[str] = deque(maxlen=PROBES)
        self.nvml = ""
        self.cause: Cause | None = None
        self.writes: set[asyncio.Task[int]] = set()

    def note(self, life: Life, event: life_rules.LifeEvent) -> None:
        """To be called with each event, and the life after it."""
        now = time.monotonic()
        spend(self.row, self.phase, now - self.at)
        self.phase, self.at = life.phase, now
        self.row["at"] = round(now, 3)
        self._hear(event)
        self.start.note(life, event)
        if life.was_ready and "ready_at" not in self.row:
            self.row |= {"ready_at": round(time.time(), 3), "steps": steps_text(life, now)}
            self._write()
        if isinstance(event, life_rules.Started):
            self._write()
        if life.failure and "failure" not in self.row:
            self.row |= {"failure": life.failure, "verdict": life.verdict}
        if life.status is not None and self.cause is None:
            self._end(life)
        self._draw(now)

    def _draw(self, now: float) -> None:
        """The start so far, for whoever asks while it goes on, and for the post-stop hook should this daemon be killed.

        Once more when it is over: until the history has it.
        """
        over = self.start.recording.closed or self.cause is not None
        if self.drawn == math.inf or (not over and now - self.drawn < SAVE_START):
            return
        self.drawn = math.inf if over else now
        self.row |= self.start.row()

    def _hear(self, event: life_rules.LifeEvent) -> None:
        match event:
            case life_rules.Looked(look):
                self._looked(look)
            case life_rules.EngineExited(status, oom):
                self.row |= {"exit": status, "oom": oom}
            case life_rules.KernelSays():
                said = (*lines(self.row, "xids"), event.text)
                self.row["xids"] = joined(said[-XIDS:])
            case _:
                pass

    def _looked(self, look: Look) -> None:
        self.nvml = blind(look)
        for name, answer in (("", look.health), ("token: ", look.signs.token)):
            if answer is not None and answer != NOT_ASKED:
                self.probes.append(f"{name}{answer.text} in {answer.seconds:.1f} s")
        if look.signs.waited is not None:
            self.probes.append(f"token: no answer yet in {look.signs.waited:.1f} s")

    def _end(self, life: Life) -> None:
        lasted = since_began(self.row, time.time(), time.monotonic())
        self.row |= {"ended": round(time.time(), 3), "lasted": round(lasted, 3)}
        self.row |= {"stop": not life.failure, "gpu": life.refusal if life.failure else ""}
        self.row["spent"] = life.budget.spent if life.failure else ""
        signs, said = self.output.current(), self.output.telling_lines()
        self.cause = classify(ended_of(self.row, signs, said, tuple(self.probes), self.nvml))
        self.row |= cause_row(self.cause)

    def _write(self) -> None:
        """In the background: a slow disk must not hold the loop up."""
        task = asyncio.create_task(self._keep())
        self.writes.add(task)
        task.add_done_callback(self.writes.discard)

    async def _keep(self) -> int:
        over = "ready_at" in self.row or "ended" in self.row
        drawn = self.start.row() if over else {"start": None}  # what the row has of it is for the state file
        kept = await asyncio.to_thread(keep, self.layout, self.unit, self.row | drawn)
        if kept.complaint:
            self.journal.tell(Event("history-not-kept", kept.complaint))
        elif over:
            self.row.pop("start", None)
        return kept.before

    async def close(self) -> None:
        """Writes the end. Under systemd the post-stop hook says the last word; in the foreground there is none."""
        if self.cause is None:
            return
        before = await self._keep()
        await asyncio.gather(*self.writes)
        if str(self.row["run"]).startswith(FOREGROUND):
            self.journal.tell(end_event(self.cause, before, self.unit))


def end_event(cause: Cause, before: int, unit: UnitName) -> Event:
    cure = for_unit(cause.cure, unit.name)
    fields = {"GPU_LIFECYCLE_CAUSE": cause.code, "GPU_LIFECYCLE_CAUSE_TEXT": cause.text, "GPU_LIFECYCLE_CURE": cure}
    return Event("run-ended", one_line(cause, before), fields)
