"""Busy is not hung: what the counters that only the engine's core can move say of it, from look to look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_lifecycle.rules.metrics import Counters


class Beat(StrEnum):
    """What one look shows. Only STALLED is a verdict; UNKNOWN leaves it to the health endpoint."""

    UNKNOWN = "unknown"  # no counters: nothing follows
    MOVING = "moving"
    IDLE = "idle"  # no work in hand: a counter that stands still is fine, for hours
    QUIET = "quiet"  # work in hand, and nothing has moved for less than the grace: a long prefill looks like that
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Pulse:
    """What is remembered between two looks: the counters, and since when (seconds, monotonic) nothing has moved."""

    progress: Mapping[str, float] = field(default_factory=dict)
    since: float = 0.0


def feel(pulse: Pulse, seen: Counters | None, now: float, grace: float, *, gap: bool, within: bool) -> tuple[Pulse, Beat]:
    """The next pulse and what it says.

    After a ``gap`` in our own looks, and where a counter fell, as when the engine's core began anew, the clock starts again.
    ``within``: the counters move within a request, not only at its end; else their silence proves nothing.
    """
    if seen is None:
        return Pulse(pulse.progress, now), Beat.UNKNOWN
    fell = any(seen.progress.get(name, 0.0) < value for name, value in pulse.progress.items())
    if gap or fell or not pulse.progress:
        return Pulse(seen.progress, now), Beat.QUIET if _work(seen) else Beat.IDLE
    if seen.progress != pulse.progress:
        return Pulse(seen.progress, now), Beat.MOVING
    if not _work(seen):
        return Pulse(seen.progress, now), Beat.IDLE  # the clock starts with the work
    if now - pulse.since > grace:
        return pulse, Beat.STALLED if within else Beat.UNKNOWN  # silence that proves nothing excuses nothing for ever, either
    return pulse, Beat.QUIET


def _work(seen: Counters) -> int:
    return (seen.running or 0) + (seen.queued or 0)


def in_hand(seen: Counters | None) -> str:
    """How much work there is, in words; "" where the engine does not say."""
    if seen is None or (seen.running is None and seen.queued is None):
        return ""
    return f"{seen.running or 0} running, {seen.queued or 0} waiting"
