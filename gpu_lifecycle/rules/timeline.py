"""The start of one run as a picture, beside those before it: what is to be drawn, in seconds and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.account import cause_of, number, phases, whole
from gpu_lifecycle.rules.cause import Outcome
from gpu_lifecycle.rules.quantity import show_count, show_duration, show_size
from gpu_lifecycle.rules.recording import LONGEST, Mark, Recording
from gpu_lifecycle.rules.samples import Sample
from gpu_lifecycle.rules.text import printable

Row = Mapping[str, Any]
EARLIER = 5  # runs
GRID = 120  # times at which earlier runs are compared
TAIL = 1.06  # the picture goes on so far after READY
LATER = 1.5  # ... and to the READY of an earlier run, where that took no longer than so many times this one
BEFORE_READY = (Phase.PRE_START, Phase.LOADING, Phase.WARMING)
_LENGTHS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Band:
    """A phase of the run, or a step of the engine, from ``began`` to ``ended``: seconds since the run began."""

    name: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Line:
    """The memory of the unit's own on one GPU over time; None: not known then."""

    label: str
    uuid: str
    points: tuple[tuple[float, int | None], ...]

    @property
    def last(self) -> int | None:
        return next((size for _, size in reversed(self.points) if size is not None), None)


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run before this one. ``ready``: seconds from its beginning to READY."""

    run: str
    ready: float


@dataclass(frozen=True, slots=True)
class Picture:
    """``seconds`` is how long the time shown is. ``spread``: time, least and most of the mean per GPU of the earlier runs.

    ``note`` says why there is no memory to show, where there is none.
    """

    unit: str
    run: str
    seconds: float
    ready: float | None
    ending: str
    phases: tuple[Band, ...] = ()
    steps: tuple[Band, ...] = ()
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    needs: int = 0
    earlier: tuple[Earlier, ...] = ()
    spread: tuple[tuple[float, float | None, float | None], ...] = ()
    note: str = ""

    @property
    def most(self) -> float:
        """The most memory that is to be shown, in bytes."""
        own = [size for line in self.lines for _, size in line.points if size is not None]
        return max([*own, *(high for _, _, high in self.spread if high is not None), self.needs if own else 0, 1])


def picture(
    unit: str, row: Row, recording: Recording | None, before: Sequence[tuple[Row, Recording]], now: float | None = None
) -> Picture:
    """The picture of a run. ``before``: runs before it, newest first. ``now``: seconds since it began, where it is alive."""
    recording = recording or Recording()
    if now is not None and recording.samples.latest is not None:
        now = min(now, recording.samples.latest.at)  # what it holds since then is not known here yet
    ready = _ready(row, recording)
    end = _end(row, recording, now)
    earlier = [(item, ready_at, record) for item, record in before if (ready_at := _ready(item, record)) is not None][:EARLIER]
    seconds = max(end if ready is None else TAIL * max([ready, *(at for _, at, _ in earlier if at <= ready * LATER)]), 1.0)
    over = ready if ready is not None else end
    return Picture(
        unit=unit,
        run=printable(str(row["run"]), 64),
        seconds=seconds,
        ready=ready,
        ending=_ending(row, ready, end, now),
        phases=_phases(row, recording, ready, seconds),
        steps=_bands(recording.steps, min([over, seconds, *(mark.at for mark in recording.marks if mark.word == "exit")])),
        lines=_lines(recording),
        marks=tuple(mark for mark in _marks(row, recording, ready, end, now) if mark.at <= seconds),
        needs=recording.needs,
        earlier=tuple(Earlier(printable(str(item["run"]), 64), at) for item, at, _ in earlier),
        spread=_spread([record.samples.series for _, _, record in earlier], seconds) if recording.samples.points else (),
        note=_cut_off(row, ready, now) if recording.samples.points else _unrecorded(row, ready, now),
    )


def _lines(recording: Recording) -> tuple[Line, ...]:
    late = any(mark.word == "reload" for mark in recording.marks)  # what it held before, nobody has seen
    series = recording.samples.series
    return tuple(
        Line(label, uuid, (*([(0.0, None)] if late else []), *((item.at, item.memory[at]) for item in series)))
        for at, (uuid, label) in enumerate(recording.gpus)
    )


def _cut_off(row: Row, ready: float | None, now: float | None) -> str:
    """What the picture lacks although there is memory to show."""
    if now is not None:
        return "It is still going on: this is what was known some seconds ago."
    if ready is None and "stop" not in row:
        return "Its daemon was killed before READY: what its last seconds held is not known."
    return ""


def _unrecorded(row: Row, ready: float | None, now: float | None) -> str:
    """Why there is no memory to show."""
    if now is not None:
        return "It is still going on, and nothing was recorded yet."
    cause = cause_of(row)
    if cause and cause.outcome is Outcome.REFUSED:
        return "No engine was started, so there is no memory to show."
    if ready is None and "stop" not in row:  # which the daemon writes with the end
        return "Its daemon was killed before READY, and its recording was lost: only the phases are known, as last saved."
    return "No memory was recorded in this run, or it is no longer kept."


def _ready(row: Row, recording: Recording) -> float | None:
    """By the monotonic clock where it is known: the clock on the wall may have been set meanwhile."""
    marked = next((mark.at for mark in recording.marks if mark.word == "ready"), None)
    if marked is not None or "ready_at" not in row:
        return marked
    lasted = _spent(row)
    return min(LONGEST, sum(lasted.get(phase, 0.0) for phase in BEFORE_READY))


def _spent(row: Row) -> dict[str, float]:
    """Seconds by phase; a row may hold anything, but no phase takes less than no time."""
    return {name: seconds for name, seconds in phases(row).items() if 0 < seconds < LONGEST}


def _end(row: Row, recording: Recording, now: float | None) -> float:
    if now is not None:
        return min(max(now, 0.0), LONGEST)
    began, ended, lasted = number(row, "began"), number(row, "ended"), number(row, "lasted")
    if lasted is None:  # of a version that had only the clock on the wall
        lasted = ended - began if began is not None and ended is not None else 0.0
    seen = max([0.0, *(mark.at for mark in recording.marks), *(item.at for item in recording.samples.series)])
    return min(max(lasted, seen, sum(_spent(row).values())), LONGEST)


def _ending(row: Row, ready: float | None, end: float, now: float | None) -> str:
    cause = cause_of(row)
    if ready is not None:
        after = f"; it {_how(row)} later" if cause else ""
        return f"READY after {show_duration(round(ready, 1))}{after}"
    if now is not None:
        return f"is starting, for {show_duration(round(end, 1))} by now"
    said = f": {cause.text} ({cause.code})" if cause else ""
    return f"{_how(row)} after {show_duration(round(end, 1))}{said}"


def _how(row: Row) -> str:
    cause = cause_of(row)
    outcome = str(cause.outcome) if cause else "not ended"
    return "failed" if outcome == "failed" else f"was {outcome}"


def _phases(row: Row, recording: Recording, ready: float | None, seconds: float) -> tuple[Band, ...]:
    if recording.phases:
        first = recording.phases[0][0]
        before = min(first, number(row, "seconds_pre_start") or first)
        changes = ((0.0, str(Phase.PRE_START)), (before, recording.phases[0][1]), *recording.phases[1:])
        return _bands(changes, seconds)
    bands, at = [], 0.0
    for name, lasted in _spent(row).items():
        if ready is None or name in BEFORE_READY:
            bands.append(Band(name, at, min(at + lasted, seconds)))
            at += lasted
    if ready is not None:
        bands.append(Band(str(Phase.READY), ready, seconds))
    return tuple(band for band in bands if band.ended > band.began)


def _bands(changes: Sequence[tuple[float, str]], end: float) -> tuple[Band, ...]:
    pairs = pairwise((*changes, (end, "")))
    return tuple(Band(name, at, min(until, end)) for (at, name), (until, _) in pairs if min(until, end) > at)


def _marks(row: Row, recording: Recording, ready: float | None, end: float, now: float | None) -> list[Mark]:
    marks = list(recording.marks)
    after, reaped = number(row, "reaped_after"), whole(row, "reaped")
    if after is not None and reaped and reaped > 0 and 0 <= after < LONGEST:
        marks.append(Mark(after, "reaped", f"{show_count(reaped, 'process')} reaped"))
    if ready is not None and not any(mark.word == "ready" for mark in marks):
        marks.append(Mark(ready, "ready", "READY"))
    if ready is None and now is None:
        marks.append(Mark(end, "end", _how(row).removeprefix("was ")))
    return sorted(marks, key=lambda mark: mark.at)


def _spread(runs: Sequence[Sequence[Sample]], seconds: float) -> tuple[tuple[float, float | None, float | None], ...]:
    lines = [line for line in map(_means, runs) if any(value is not None for _, value in line)]
    found = []
    for at in (seconds * step / GRID for step in range(GRID + 1 if lines else 0)):
        amounts = [value for line in lines if (value := value_at(line, at)) is not None]
        found.append((at, min(amounts, default=None), max(amounts, default=None)))
    return tuple(found)


def _means(series: Sequence[Sample]) -> list[tuple[float, float | None]]:
    """The mean per GPU of a run over time, of those that were ever seen; None while one of them is not known.

    After its READY it stays as it was.
    """
    seen = [gpu for gpu, sizes in enumerate(zip(*(item.memory for item in series), strict=False)) if any(map(_known, sizes))]
    rows = ((item.at, [size for gpu in seen if (size := item.memory[gpu]) is not None]) for item in series)
    return [(at, sum(sizes) / len(sizes) if sizes and len(sizes) == len(seen) else None) for at, sizes in rows]


def _known(size: int | None) -> bool:
    return size is not None


def value_at(points: Sequence[tuple[float, float | None]], at: float) -> float | None:
    """The value of a line at a time: between two points on the straight line; None beside one that is not known.

    Before the first there is nothing yet, so 0; after the last it stays.
    """
    if not points or at < points[0][0]:
        return 0.0 if points else None
    for (left, low), (right, high) in pairwise(points):
        if left <= at < right:
            return None if low is None or high is None else low + (high - low) * (at - left) / (right - left)
    return points[-1][1]


def ticks(seconds: float, most: int) -> list[float]:
    """Times for an axis: 0, and round ones, ``most`` at most."""
    length = next((length for length in _LENGTHS if seconds / length < most), 86400.0 * (1 + seconds // (86400 * most)))
    return [length * step for step in range(int(seconds / length) + 1)]


def size_ticks(size: float, most: int) -> list[int]:
    """Sizes for an axis, from 0 up to at least ``size``: round numbers of GiB, or of MiB."""
    unit = GIB if size > GIB else GIB >> 10
    steps = (digit * 10**power for power in range(12) for digit in (1, 2, 5))
    step = next(step for step in steps if size / (step * unit) <= most)
    return [unit * step * number for number in range(int(-(-size // (unit * step))) + 1)]


def numbers(labels: Sequence[str]) -> str:
    """``0-3, 5, 6:1`` for 0, 1, 2, 3, 5 and an instance of 6."""
    groups: list[list[int]] = []
    for value in sorted({int(label) for label in labels if label.isdecimal()}):
        if groups and value == groups[-1][-1] + 1:
            groups[-1].append(value)
        else:
            groups.append([value])
    ranges = (f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0]) for group in groups)
    return ", ".join((*ranges, *(label for label in labels if not label.isdecimal())))


def most_words(values: Sequence[int | None]) -> str:
    """``68.1 GiB``, or ``≤ 68.1 GiB`` where they differ: there is no room for two figures."""
    most = show_size(max((value for value in values if value is not None), default=None))
    return most if len(set(values)) < 2 else f"≤ {most}"


def gpus_words(labels: Sequence[str]) -> str:
    return f"GPU {numbers(labels)}"


def earlier_words(picture: Picture) -> str:
    """How many earlier runs there are, and when they were ready; "" where there is none."""
    if not picture.earlier:
        return ""
    times = sorted(run.ready for run in picture.earlier)
    least, most = show_duration(round(times[0], 1)), show_duration(round(times[-1], 1))
    return f"{show_count(len(times), 'earlier run')}, READY after {least if least == most else f'{least} to {most}'}"


def lasted_words(bands: Sequence[Band]) -> str:
    """``pre-start 12s, loading 3min 2s``: each name once, with all of its time."""
    lasted: dict[str, float] = {}
    for band in bands:
        lasted[band.name] = lasted.get(band.name, 0.0) + band.ended - band.began
    return ", ".join(f"{name} {show_duration(round(seconds, 1))}" for name, seconds in lasted.items())
