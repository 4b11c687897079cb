"""The engine's output in one run: where it goes, and how it is handed over in a reload."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpu_lifecycle.facts import Phase, UnitName
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.handover import Handover
from gpu_lifecycle.rules.output import Line, kept
from gpu_lifecycle.rules.phases import Load, Step, advance
from gpu_lifecycle.rules.quantity import show_count
from gpu_lifecycle.rules.secrets import Secrets
from gpu_lifecycle.rules.signatures import Sign, Signs, current, first_cause, hear, match
from gpu_lifecycle.system.journal import SOCKET, Journal, is_journal
from gpu_lifecycle.system.output import JournalSink, Left, Output

LOOKED_AT = 1000  # bytes of a line: a marker stands in its beginning
SIGNED = 2000  # ... and the words of an error within these
TELLING = 5  # of the last lines, where none of them tells more than another


class EngineOutput(Output):
    """``load``: how far the load is by the lines that have come; ``signs``: what they say of a failure.

    ``moved`` is called with each step of the load when a line tells it.
    """

    def __init__(self, journal: JournalSink | None, engine: str, load: Load, secrets: Secrets) -> None:
        super().__init__(journal, self._hear, secrets)
        self.engine = engine
        self.load = load
        self.signs: Signs = ()
        self.moved: Callable[[Load], None] = lambda _: None
        self._serving = asyncio.Event()
        self._since = time.monotonic()

    def _hear(self, line: Line) -> None:
        if line.whole and (found := match(line.data[:SIGNED].decode("utf-8", "replace"))):
            self.signs = hear(self.signs, found.code, kept(line.data[:SIGNED]), time.monotonic())
        if self.load.step < Step.SERVING:
            before = self.load.step
            self.load = advance(self.load, line.data[:LOOKED_AT].decode("utf-8", "replace"), self.engine)
            if self.load.step > before:
                self.moved(self.load)
            if self.load.step is Step.SERVING:
                self._since = time.monotonic()
                self._serving.set()

    async def pause(self, seconds: float) -> None:
        """Ends at once when a line says that the engine serves from now on: no reason to look any later."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._serving.wait()
        self._serving.clear()

    def serving(self) -> float | None:
        """For how many seconds the engine has said that it serves (or this program knows it, after a reload); None: not yet."""
        return time.monotonic() - self._since if self.load.step is Step.SERVING else None

    def current(self) -> Signs:
        """What speaks of an end that comes now, the likeliest cause first."""
        return current(self.signs, time.monotonic())

    def telling_lines(self) -> tuple[str, ...]:
        """The most telling lines of the newest trouble, else the last ones."""
        return tuple(text for _, text in self.first) if super().telling() else tuple(self.tail()[-TELLING:])

    def telling(self) -> str:
        """The line of the likeliest cause; where none is known, the first line of the newest trouble."""
        cause = first_cause(self.current())
        return cause.line if cause else super().telling()


def output_of(unit: UnitName, run: str, engine: str, handover: Handover | None, secrets: Secrets) -> EngineOutput:
    """Where the unit's lines go as ours do: to the journal, or to our own stdout and stderr. Raises ValueError."""
    packed = handover.output if handover else {}
    left = unpack_output(packed)
    fields = {"SYSLOG_IDENTIFIER": unit.service.removesuffix(".service"), "GPU_LIFECYCLE_UNIT": unit.service}
    fields |= {"GPU_LIFECYCLE_RUN": run, "GPU_LIFECYCLE_PHASE": str(Phase.LOADING)}
    native = is_journal(1) and os.path.exists(SOCKET)
    sink = JournalSink(fields, waiting=left.waiting, lost=left.lost) if native else None
    output = EngineOutput(sink, engine, _load_of(packed), secrets)
    output.adopt(left)
    output.signs = _signs_of(packed or {})
    return output


def go_on(output: Output, phase: Phase, journal: Journal) -> None:
    """To be called now and then: lines bear the run's phase, and what was lost is said."""
    if output.journal:
        output.journal.fields["GPU_LIFECYCLE_PHASE"] = str(phase)
    _tell_lost(output, journal)


def end_output(output: Output, journal: Journal) -> None:
    """Passes on what can be passed on at once, and says what could not."""
    output.close()
    _tell_lost(output, journal)


def _tell_lost(output: Output, journal: Journal) -> None:
    if count := output.lost():
        journal.tell(Event("output-lost", f"the journal was too busy: {show_count(count, 'line')} of the engine's output lost"))


def _load_of(packed: Mapping[str, Any]) -> Load:
    step, done, total = packed.get("load", (0, 0, 0))
    return Load(Step(step), int(done), int(total))


def pack_output(output: EngineOutput) -> dict[str, Any]:
    """As plain data, for a handover."""
    left, load = output.leave(), output.load
    return {
        "load": [int(load.step), load.done, load.total],
        "fds": list(left.fds),
        "pending": [base64.b64encode(data).decode() for data in left.pending],
        "waiting": [base64.b64encode(data).decode() for data in left.waiting],
        "lost": left.lost,
        "tail": list(left.tail),
        "first": [list(said) for said in left.first],
        "inside": [list(state) for state in left.inside],
        "signs": [[sign.code, sign.line, sign.first, sign.last, sign.count] for sign in output.signs],
    }


def _signs_of(packed: Mapping[str, Any]) -> Signs:
    found = packed.get("signs", ())
    return tuple(Sign(str(code), str(line), float(first), float(last), int(count)) for code, line, first, last, count in found)


def unpack_output(packed: Mapping[str, Any]) -> Left:
    """What was packed; nothing where an older version had no pipes. Raises ValueError where it does not fit."""
    try:
        _load_of(packed)
        _signs_of(packed)
        return Left(
            fds=tuple(int(fd) for fd in packed.get("fds", ())),
            pending=tuple(base64.b64decode(text) for text in packed.get("pending", ())),
            waiting=tuple(base64.b64decode(text) for text in packed.get("waiting", ())),
            lost=int(packed.get("lost", 0)),
            tail=tuple(str(line) for line in packed.get("tail", ())),
            first=tuple((float(at), str(text)) for at, text in packed.get("first", ())),
            inside=tuple((str(who), int(left), bool(over)) for who, left, over in packed.get("inside", ())),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"its output is not as this version would write it: {error!r}") from error
