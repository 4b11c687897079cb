"""A start as a picture: bands, lines and marks on one time axis, from what the history has of a run and of those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpu_lifecycle.rules.account import number, phases
from gpu_lifecycle.rules.curve import BANDS, Curve, Mark, read
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.rules.text import printable

START = ("pre-start", "loading", "warming")  # phases before READY=1
EARLIER = 5  # runs that are shown behind
LONGEST = 7 * 86400.0  # seconds; a start that took longer is a wrong clock


@dataclass(frozen=True, slots=True)
class Band:
    """From ``begin`` to ``end``, seconds since the run began."""

    name: str
    begin: float
    end: float

    @property
    def words(self) -> str:
        return BANDS.get(self.name, self.name)


@dataclass(frozen=True, slots=True)
class Line:
    """Memory of one GPU, named by its index: pairs of seconds and bytes."""

    gpu: str
    points: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """``earlier``: how long the starts of earlier runs took, newest first. ``top``: the most bytes that any line reaches."""

    unit: str
    run: str
    began: float
    ready: bool
    end: float
    bands: tuple[Band, ...]
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...]
    earlier: tuple[float, ...]
    note: str = ""

    @property
    def top(self) -> int:
        return max((amount for line in self.lines for _, amount in line.points), default=0)

    @property
    def span(self) -> float:
        """Seconds that the time axis covers."""
        return max(self.end, *self.earlier, 0.001)

    @property
    def summary(self) -> str:
        if self.ready:
            return f"ready after {show_duration(round(self.end, 1))}"
        return f"not ready: ended after {show_duration(round(self.end, 1))}"


def picture(unit: str, row: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> Picture:
    """``row``: the run; ``before``: the runs before it, newest first. Without a curve the bands are as long as its phases."""
    curve = read(row)
    ready = number(row, "ready_at") is not None
    bands = _bands(curve) or _sums(row)
    marks = tuple(Mark(mark.at, printable(mark.text, 80)) for mark in curve.marks)
    end = max((item.end for item in bands), default=0.0)
    note = "" if curve.points else "this run was not recorded: its bands are the sums of its phases"
    return Picture(
        unit, printable(str(row.get("run", "")), 64), number(row, "began") or 0.0, ready, end, bands,
        _lines(curve, row.get("curve_gpus")), tuple(mark for mark in marks if mark.at <= end + 1), earlier(before), note,
    )  # fmt: skip


def earlier(before: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """How long the last starts took that came to READY=1, in seconds."""
    took = (_took(row) for row in before)
    return tuple(seconds for seconds in took if seconds is not None)[:EARLIER]


def _took(row: Mapping[str, Any]) -> float | None:
    began, ready = number(row, "began"), number(row, "ready_at")
    return ready - began if began is not None and ready is not None and 0 < ready - began < LONGEST else None


def _bands(curve: Curve) -> tuple[Band, ...]:
    """What is written at a point holds from there on: a point is made with each event, and a change is one."""
    bands: list[Band] = []
    points = [point for point in curve.points if point.at < LONGEST]
    for point, after in pairwise(points):
        if bands and bands[-1].name == point.band:
            bands[-1] = Band(point.band, bands[-1].begin, after.at)
        elif after.at > point.at:
            bands.append(Band(point.band, point.at, after.at))
    return tuple(band for band in bands if band.name != "ready")


def _sums(row: Mapping[str, Any]) -> tuple[Band, ...]:
    bands: list[Band] = []
    for name, seconds in phases(row).items():
        if name in START and 0 < seconds < LONGEST:
            begin = bands[-1].end if bands else 0.0
            bands.append(Band(name, begin, begin + seconds))
    return tuple(bands)


def _lines(curve: Curve, names: object) -> tuple[Line, ...]:
    """``names``: the indices as the history has them; where they do not fit, a GPU is named by its place among the claimed."""
    count = max((len(point.memory) for point in curve.points), default=0)
    known = names.split(",") if isinstance(names, str) else []
    fit = len(known) == count and all(name.isascii() and name.isdigit() and len(name) < 4 for name in known)
    lines = (Line(known[at] if fit else f"#{at + 1}", _line(curve, at)) for at in range(count))
    return tuple(line for line in lines if line.points)


def _line(curve: Curve, gpu: int) -> tuple[tuple[float, int], ...]:
    seen = ((point.at, point.memory[gpu]) for point in curve.points if gpu < len(point.memory) and point.at < LONGEST)
    return tuple((at, amount) for at, amount in seen if amount is not None)


def ticks(span: float, most: int = 8) -> tuple[float, ...]:
    """Round seconds for a time axis from 0 to ``span``, at most so many beside 0."""
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
    step = next((step for step in steps if span / step <= most), 2 * 86400)
    return tuple(round(step * index, 1) for index in range(int(span / step) + 1))


def show_tick(seconds: float) -> str:
    return show_duration(seconds) if seconds else "0"
