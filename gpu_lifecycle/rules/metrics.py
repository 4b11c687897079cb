"""What an engine's metrics page says: Prometheus text read into one sum per metric, and what its answer is worth.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, 0.0.4). The text comes from outside: whatever
it is, reading it raises nothing, and what cannot be read is missing, never zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

LINE_LIMIT = 16 * 1024  # characters; a longer line is no sample of a counter that we know

# Possessive (+): a text made to be slow to read costs no more than its length.
_SAMPLE = re.compile(
    r"[ \t]*+([A-Za-z_:][A-Za-z0-9_:]*+)[ \t]*+"
    r'(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*+")*+\})?[ \t]*+'
    r"([+-]?(?:[0-9.][0-9.eE_+-]*+|(?i:inf|nan)))(?:[ \t]++-?[0-9]++)?[ \t]*+"
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class Answer(StrEnum):
    """What asking for the metrics came to. Only READ says anything about the engine's work."""

    READ = "read"
    REFUSED = "refused"  # nobody took the connection
    FAILED = "failed"  # an answer that is none: late, another status, too large, not Prometheus text


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer; ``sums`` hold the metrics that were found, summed over their labels, and ``text`` why there are none."""

    answer: Answer
    text: str = ""
    sums: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where an engine tells of its work, and under which names.

    ``progress`` are counters that move only when the engine's core works; ``levels`` are gauges that only it changes, up or
    down, such as the share of its KV cache; ``running`` and ``queued`` are gauges of requests. ``option`` is what the
    command must hold for the page to exist (empty: it always does). ``port`` None: the engine's own. ``within`` is False
    where the counters move only at the end of a request: they prove life, and their silence proves nothing.
    """

    progress: tuple[str, ...]
    levels: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    path: str = "/metrics"
    option: str = ""
    port: int | None = None
    port_options: tuple[str, ...] = ()
    within: bool = True

    @property
    def names(self) -> frozenset[str]:
        """Every name to be read. A histogram shows itself as ``NAME_sum`` and ``NAME_count``."""
        more = {f"{name}{end}" for name in self.progress for end in ("_sum", "_count")}
        return frozenset({*self.progress, *self.levels, *self.running, *self.queued, *more})


@dataclass(frozen=True, slots=True)
class Counters:
    """The engine's work at one moment. ``running`` and ``queued`` None: the engine does not say."""

    progress: Mapping[str, float]
    running: int | None = None
    queued: int | None = None
    levels: Mapping[str, float] = field(default_factory=dict)

    @property
    def work(self) -> int | None:
        """Requests that it has and has not finished; None: it does not say."""
        known = [number for number in (self.running, self.queued) if number is not None]
        return sum(known) if known else None


def read(text: str, names: Collection[str]) -> Scrape:
    """The sums of ``names`` in a page of Prometheus text. A sample that is no finite number spoils its sum: it is left out."""
    sums: dict[str, float] = {}
    spoilt: set[str] = set()
    samples = 0
    starts = tuple(names)
    for line in text.split("\n"):
        if samples and not line.lstrip(" \t").startswith(starts):
            continue  # a page may have a hundred thousand lines, of which a few are ours
        match = None if len(line) > LINE_LIMIT else _SAMPLE.fullmatch(line.rstrip("\r"))
        if match is None:
            continue
        samples += 1
        name, value = match.groups()
        if name in names:
            sums[name] = sums.get(name, 0.0) + _number(value)
            if not math.isfinite(sums[name]):
                spoilt.add(name)
    if not samples:
        return Scrape(Answer.FAILED, "the metrics page holds no metrics")
    return Scrape(Answer.READ, sums={name: amount for name, amount in sums.items() if name not in spoilt})


def _number(text: str) -> float:
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def counters(scrape: Scrape, metrics: Metrics) -> Counters | None:
    """The engine's work as the page tells it; None where it shows no counter of progress (which is not "no progress")."""
    if scrape.answer is not Answer.READ:
        return None
    known = {*metrics.names} - {*metrics.levels, *metrics.running, *metrics.queued}
    progress = {name: scrape.sums[name] for name in sorted(known) if name in scrape.sums}
    if not progress:
        return None
    levels = {name: scrape.sums[name] for name in metrics.levels if name in scrape.sums}
    return Counters(progress, _gauge(scrape, metrics.running), _gauge(scrape, metrics.queued), levels)


def _gauge(scrape: Scrape, names: Sequence[str]) -> int | None:
    found = [scrape.sums[name] for name in names if name in scrape.sums]
    return max(0, round(sum(found))) if found and math.isfinite(sum(found)) else None
