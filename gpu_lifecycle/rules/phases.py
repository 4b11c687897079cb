"""How far a load is, from the lines that the engine writes: one table of markers per engine.

Source of the markers: the released wheels and runs of SGLang 0.5.8 to 0.5.23 and vLLM 0.32.0; the bars of graph
capture, which needs a GPU, are not from runs. An engine that is not in the table has no phases, and is judged by what can be
seen of it from outside alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Step(IntEnum):
    """The phases of a load, in order."""

    NONE = 0
    INIT = 1
    DISTRIBUTED = 2
    WEIGHTS = 3
    KV_CACHE = 4
    GRAPHS = 5
    WARMUP = 6
    SERVING = 7

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Step.NONE: "loading",
    Step.INIT: "initialising",
    Step.DISTRIBUTED: "connecting the GPUs",
    Step.WEIGHTS: "loading weights",
    Step.KV_CACHE: "allocating the KV cache",
    Step.GRAPHS: "capturing CUDA graphs",
    Step.WARMUP: "warming up",
    Step.SERVING: "serving",
}


@dataclass(frozen=True, slots=True)
class Load:
    """Where a load is; ``done`` of ``total`` shards or graphs in this phase, 0 of 0 where nothing is counted."""

    step: Step = Step.NONE
    done: int = 0
    total: int = 0

    @property
    def part(self) -> float:
        return self.done / self.total if self.total else 0.0


NOTHING_SAID = Load()
_BAR = r": +\d+%.{0,80}?\| *(\d{1,6})/(\d{1,6}) \["  # a bar of tqdm; the bracket shows that the number is whole
_SHARDS = (r"loading shards" + _BAR, Step.WEIGHTS), (r"checkpoint shards" + _BAR, Step.WEIGHTS)

_MARKERS: Mapping[str, tuple[tuple[re.Pattern[str], Step], ...]] = {
    engine: tuple((re.compile(pattern, re.IGNORECASE), step) for pattern, step in (*_SHARDS, *markers))
    for engine, markers in {
        "sglang": (
            (r"server_args=", Step.INIT),
            (r"Init (?:torch distributed|parallel) begin", Step.DISTRIBUTED),
            (r"Load weight begin", Step.WEIGHTS),
            (r"KV Cache is allocated|Memory pool end", Step.KV_CACHE),
            (r"Capturing batches.{0,60}?" + _BAR, Step.GRAPHS),
            (r"capture .{0,40}graph begin", Step.GRAPHS),
            (r"Uvicorn running on http", Step.WARMUP),
            (r"The server is fired up and ready to roll", Step.SERVING),
        ),
        "vllm": (
            (r"non-default args:|Initializing a V1 LLM engine", Step.INIT),
            (r"rank \d+ in world size", Step.DISTRIBUTED),
            (r"Starting to load model", Step.WEIGHTS),
            (r"KV cache size: [\d,]+ tokens", Step.KV_CACHE),
            (r"Capturing CUDA graphs?.{0,60}?" + _BAR, Step.GRAPHS),
            (r"Starting vLLM server on", Step.WARMUP),
            (r"Application startup complete", Step.SERVING),
        ),
    }.items()
}


def advance(load: Load, text: str, engine: str) -> Load:
    """The load after this line. A phase never goes back, nor does what is counted in it: ranks speak in any order."""
    for pattern, step in _MARKERS.get(engine, ()):
        match = pattern.search(text) if step >= load.step else None
        if match:
            return _counted(load if step == load.step else Load(step), match)
    return load


def _counted(load: Load, match: re.Match[str]) -> Load:
    if match.lastindex != 2:
        return load
    new = Load(load.step, int(match[1]), int(match[2]))
    return new if 0 < new.done <= new.total and new.part > load.part else load


def left(part: float, seconds: float) -> float | None:
    """Seconds until a phase is done of which ``part`` (0..1) took ``seconds``; None where too little is known."""
    return seconds * (1 - part) / part if part >= 0.05 and seconds >= 1.0 else None
