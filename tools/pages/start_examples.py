"""Starts for pictures, made by rule and always the same."""

from __future__ import annotations

import math
from typing import Any

from gpu_lifecycle.rules.recording import FROM_HERE, Mark, Recording
from gpu_lifecycle.rules.samples import Sample, Samples
from gpu_lifecycle.rules.timeline import Picture, picture

GIB = 1 << 30
UNIT = "sglang-kimi.service"
BEGAN = 1_796_200_000.0  # seconds since 1970
WHEN = "2026-12-02 10:00:00"
STOPPED = {"outcome": "stopped", "code": "stopped"}


def rising(load: float, gpus: int, *, slow: int = -1, most: float = 68.4) -> Samples:
    """Weights that come for ``load`` seconds, then a step for the KV cache; one GPU may be slow."""
    points = []
    for number in range(241):
        at = 14 + (load - 14) * number / 240
        memory = []
        for gpu in range(gpus):
            part = min(1.0, number / (216 if gpu == slow else 150 + gpu % 3))
            own = 0.5 + (most * 0.8 - 0.5) * (part + 0.015 * math.sin(9 * part)) + (most * 0.2 if number > 220 else 0)
            memory.append(round(own * GIB))
        points.append(Sample(at, tuple(memory)))
    return Samples(tuple(points), points[-1])


def start(load: float = 222.0, gpus: int = 8, *, slow: int = -1, most: float = 68.4) -> Recording:
    """A start that is ready after ``load`` seconds."""
    at = [load * part for part in (0.08, 0.12, 0.7, 0.88, 0.95)]
    return Recording(
        gpus=tuple((f"GPU-{gpu:08x}", str(gpu)) for gpu in range(gpus)),
        needs=34 * GIB,
        samples=rising(load, gpus, slow=slow, most=most),
        phases=((12.0, "loading"), (at[4], "warming"), (load, "ready")),
        steps=((at[0], "initialising"), (at[1], "loading weights"), (at[2], "allocating the KV cache"),
               (at[3], "capturing CUDA graphs"), (at[4], "warming up")),
        marks=(Mark(12.0, "engine", "engine started"), Mark(at[4], "port", "port opened"),
               Mark(load - 3, "health", "health 200"), Mark(load, "token", "first token"), Mark(load, "ready", "READY")),
        closed=True,
    )  # fmt: skip


def row(run: str, load: float | None, **more: Any) -> dict[str, Any]:
    ready = {} if load is None else {"ready_at": BEGAN + load, "seconds_loading": load - 12}
    return {"run": run * 32, "began": BEGAN, "seconds_pre_start": 12.0, **ready, **more}


def before(*loads: float) -> list[tuple[dict[str, Any], Recording]]:
    return [(row("b", load), start(load)) for load in loads]


def usual() -> Picture:
    """Eight GPUs, one slow; an orphan was reaped; three runs before it."""
    mine = row("a", 222.0, reaped=1, reaped_after=3.5, **STOPPED)
    return picture(UNIT, mine, start(slow=5), before(205.0, 214.0, 251.0))


def older() -> Picture:
    """Of before there were recordings."""
    return picture(UNIT, row("a", 100.0, **STOPPED), None, [])


def refused() -> Picture:
    """In the sweep."""
    mine = row("c", None, lasted=31.4, outcome="refused", code="refused-75", reaped=2, reaped_after=9.0,
               seconds_pre_start=31.4)  # fmt: skip
    return picture(UNIT, mine, None, before(205.0))


def long() -> Picture:
    """Two hours."""
    return picture(UNIT, row("d", 7260.0), start(7260.0, 4), [])


def many() -> Picture:
    """Sixteen GPUs, no two alike."""
    recording = start(300.0, 16, slow=3)
    apart = [
        Sample(item.at, tuple(round(size * (0.6 + gpu * 0.03)) for gpu, size in enumerate(item.memory) if size is not None))
        for item in recording.samples.points
    ]
    samples = Samples(tuple(apart), apart[-1])
    return picture(UNIT, row("e", 300.0), Recording(recording.gpus, recording.needs, samples, recording.phases,
                                                    recording.steps, recording.marks, closed=True), [])  # fmt: skip


def failed() -> Picture:
    """The engine dies while it loads; NVML said nothing for a while."""
    whole = start(222.0, 2)
    points = tuple(Sample(item.at, (None, None) if 50 < item.at < 70 else item.memory)
                   for item in whole.samples.points if item.at < 131)  # fmt: skip
    marks = (whole.marks[0], Mark(118.0, "xid", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."),
             Mark(131.0, "exit", "engine ended by signal 9"))  # fmt: skip
    recording = Recording(whole.gpus, whole.needs, Samples(points, points[-1]),
                          (*whole.phases[:1], (131.0, "stopping")), whole.steps[:2], marks)  # fmt: skip
    mine = row("f", None, lasted=133.0, outcome="failed", code="cuda-oom", seconds_loading=119.0, stop=False)
    return picture(UNIT, mine, recording, before(205.0, 260.0))


def killed() -> Picture:
    """The daemon was killed while the engine loaded: what it had in memory is lost."""
    mine = row("9", None, lasted=90.0, outcome="failed", code="daemon-killed", seconds_loading=75.0, reaped=1, reaped_after=3.5)
    return picture(UNIT, mine, None, before(205.0))


def reloaded() -> Picture:
    """By a version that recorded nothing, in the middle of the load; the unit has a long name."""
    whole = start(222.0, 2)
    points = tuple(item for item in whole.samples.points if item.at > 100)
    marks = (Mark(100.0, "reload", FROM_HERE), *whole.marks[1:])
    recording = Recording(whole.gpus, whole.needs, Samples(points, points[-1]), ((100.0, "loading"), *whole.phases[1:]),
                          whole.steps[1:], marks, closed=True)  # fmt: skip
    name = "a-very-long-name-of-a-model-and-of-the-team-that-has-it-and-of-the-node-on-which-it-is-served.service"
    return picture(name, row("7", 222.0, **STOPPED), recording, before(205.0))


PICTURES = {make.__name__: make for make in (usual, older, refused, long, many, failed, killed, reloaded)}
