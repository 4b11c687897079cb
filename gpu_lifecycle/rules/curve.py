"""What a start looked like over time: memory of each claimed GPU and what went on, thinned to a few points, as plain text.

The text lies in the history, which the unit's user may write: what does not fit is left out when it is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.phases import Step

POINTS = 120  # of 16 GPUs they are about 11,000 characters
GPUS = 64
UNIT = 1 << 26  # bytes that a written number counts: 64 MiB
MOST = 1 << 40  # seconds or units of one number; more is no measurement
MARKS = 20
MARK_TEXT = 80  # characters


@dataclass(frozen=True, slots=True)
class Point:
    """``at``: seconds since the run began. ``band``: a Phase or the name of a Step. ``memory``: bytes, None where not known."""

    at: float
    band: str
    memory: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    points: tuple[Point, ...] = ()
    marks: tuple[Mark, ...] = ()
    gap: float = field(default=0.0)  # seconds that two points of one band have to be apart


def band(phase: Phase, step: int) -> str:
    """The finest name for what goes on: while an engine loads, its own step where its log shows one."""
    loading = phase in (Phase.LOADING, Phase.WARMING)
    return Step(step).name.lower() if loading and step in list(Step) and step not in (Step.NONE, Step.SERVING) else str(phase)


def further(curve: Curve, point: Point, most: int = POINTS) -> Curve:
    """With one point more. Those that are closer together than ``gap`` are left out, and ``gap`` grows as the run does.

    The first and the last point of a band are always kept, so that bands begin and end where they did.
    """
    points = list(curve.points)
    if len(points) > 1 and _dispensable(points[-2], points[-1], point, curve.gap):
        points.pop()
    points.append(point)
    if len(points) <= most:
        return Curve(tuple(points), curve.marks, curve.gap)
    gap = max(2 * curve.gap, 2 * (points[-1].at - points[0].at) / most)
    thinned = _thinned(points, gap)
    return Curve((thinned[0], *thinned[1:][1 - most :]), curve.marks, gap)  # a run of very many bands loses the early ones


def _dispensable(before: Point, point: Point, after: Point, gap: float) -> bool:
    return before.band == point.band == after.band and after.at - before.at <= gap


def _thinned(points: list[Point], gap: float) -> tuple[Point, ...]:
    kept = points[:1]
    for point, after in pairwise(points[1:]):
        if not _dispensable(kept[-1], point, after, gap):
            kept.append(point)
    return (*kept, points[-1])


def marked(curve: Curve, at: float, text: str) -> Curve:
    """With one mark more, unless it is there or there are many."""
    if len(curve.marks) >= MARKS or any(mark.text == text for mark in curve.marks):
        return curve
    return Curve(curve.points, (*curve.marks, Mark(at, text)), curve.gap)


# As text


def row(curve: Curve) -> dict[str, str]:
    """The keys of the history's row: one line for each point, and for each mark."""
    points = "\n".join(f"{point.at:.1f} {point.band} {_numbers(point.memory)}" for point in curve.points)
    marks = "\n".join(f"{mark.at:.1f} {' '.join(mark.text.split())[:MARK_TEXT]}" for mark in curve.marks)
    return {"curve": points, "marks": marks}


def _numbers(memory: tuple[int | None, ...]) -> str:
    return ",".join("-" if amount is None else str(round(amount / UNIT)) for amount in memory[:GPUS])


def read(row: Mapping[str, object]) -> Curve:
    """Back from a row. Lines that are none, or that do not go on in time, are left out."""
    points: list[Point] = []
    for at, name, numbers in (found for line in _lines(row, "curve", POINTS) if (found := _three(line))):
        if not points or at >= points[-1].at:
            points.append(Point(at, name, numbers))
    marks = ((_seconds(line), line.partition(" ")[2]) for line in _lines(row, "marks", MARKS))
    return Curve(tuple(points), tuple(Mark(at, text) for at, text in marks if at is not None and text))


def _lines(row: Mapping[str, object], key: str, most: int) -> list[str]:
    value = row.get(key)
    return value.split("\n")[:most] if isinstance(value, str) else []


def _seconds(line: str) -> float | None:
    try:
        at = float(line.partition(" ")[0])
    except ValueError:
        return None
    return at if math.isfinite(at) and 0 <= at < MOST else None


def _three(line: str) -> tuple[float, str, tuple[int | None, ...]] | None:
    words, at = line.split(" "), _seconds(line)
    if at is None or len(words) != 3 or words[1] not in BANDS:
        return None
    numbers = words[2].split(",")[:GPUS] if words[2] else []
    try:
        return at, words[1], tuple(None if number == "-" else _amount(number) for number in numbers)
    except ValueError:
        return None


def _amount(text: str) -> int:
    """Raises ValueError for what is no amount."""
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(text)
    return int(text) * UNIT


_PHASES = {
    Phase.PRE_START: "sweep and proof",
    Phase.LOADING: "loading",
    Phase.WARMING: "warming up",
    Phase.READY: "ready",
    Phase.SUSPECT: "suspect",
    Phase.DRAINING: "draining",
    Phase.STOPPING: "stopping",
}
BANDS: Mapping[str, str] = {str(phase): words for phase, words in _PHASES.items()} | {
    step.name.lower(): step.words for step in Step if step not in (Step.NONE, Step.SERVING)
}  # what each band is called, by its name in the text
