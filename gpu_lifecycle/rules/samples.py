"""The memory of a start over time, in a bounded number of points, however long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

KEPT = 300  # points at most
STEP = 0.25  # seconds between two of them, at first


@dataclass(frozen=True, slots=True)
class Sample:
    """``at`` is seconds since the run began; ``memory`` bytes of the unit's own on each claimed GPU, None: not known."""

    at: float
    memory: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Samples:
    """``points`` are at least ``step`` seconds apart; ``latest`` is the newest of all, kept or not."""

    points: tuple[Sample, ...] = ()
    latest: Sample | None = None
    step: float = STEP

    @property
    def series(self) -> tuple[Sample, ...]:
        """The points, the first and the newest always among them."""
        if self.latest is None or (self.points and self.points[-1].at >= self.latest.at):
            return self.points
        return (*self.points, self.latest)


def add(samples: Samples, sample: Sample) -> Samples:
    """With one more. When they are full, every other one goes, and from then on they come half as often."""
    if samples.latest is not None and sample.at < samples.latest.at:
        return samples  # time does not go back
    samples = replace(samples, latest=sample)
    if samples.points and sample.at - samples.points[-1].at < samples.step:
        return samples
    points = (*samples.points, sample)
    if len(points) < KEPT:
        return replace(samples, points=points)
    return replace(samples, points=thinned(points), step=2 * samples.step)


def thinned(points: Sequence[Sample]) -> tuple[Sample, ...]:
    """Half of them: the first, the last, and of each two between them that which lies farther from the straight line.

    So a peak or a step stays where it is, and a line that is straight loses nothing.
    """
    if len(points) < 4:
        return tuple(points)
    kept = [points[0]]
    for at in range(1, len(points) - 2, 2):
        right = points[at + 2]
        kept.append(max(points[at : at + 2], key=lambda point: _away(kept[-1], point, right)))
    return (*kept, points[-1])


def _away(left: Sample, point: Sample, right: Sample) -> float:
    """How far a point is from the line between two others, on the GPU where it is farthest. Bytes."""
    span = right.at - left.at
    part = (point.at - left.at) / span if span > 0 else 0.0
    triples = zip(left.memory, point.memory, right.memory, strict=False)
    return max((_off(part, *triple) for triple in triples), default=0.0)


def _off(part: float, left: int | None, here: int | None, right: int | None) -> float:
    """On one GPU. Where it begins or ceases to be known is farther than anything: a gap must not be closed."""
    if (left is None) != (here is None):
        return inf
    return abs((here or 0) - (left or 0) - part * ((right or 0) - (left or 0)))
