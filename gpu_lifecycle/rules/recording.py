"""What is kept of one start for its picture: memory over time, phases, steps of the engine, and what happened when.

Plain data outside: it is handed over in a reload, and lies in the history, which is the unit's user's to write. What is not
as we write it is dropped, value by value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.life import EngineExited, Life, LifeEvent, Looked, Started, StopRequested
from gpu_lifecycle.rules.phases import Step
from gpu_lifecycle.rules.readiness import Look
from gpu_lifecycle.rules.report import LABEL
from gpu_lifecycle.rules.samples import STEP, Sample, Samples, add, thinned
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.rules.xid import KernelSays

SCHEMA = 1
MIB = 1 << 20  # memory is written in whole MiB: half of the size
MARKS = 32
CHANGES = 64  # of the phase, and of the engine's step
GPUS = 64
POINTS = 400  # more than rules.samples keeps
TEXT = 120
LONGEST = 1e8  # seconds
FROM_HERE = "recorded from here"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened ``at`` so many seconds after the run began; ``word`` says of which kind it is."""

    at: float
    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Recording:
    """``gpus``: UUID and label of each, in the order of the samples. ``needs``: bytes on each that READY=1 asks for."""

    gpus: tuple[tuple[str, str], ...] = ()
    needs: int = 0
    samples: Samples = field(default_factory=Samples)
    phases: tuple[tuple[float, str], ...] = ()
    steps: tuple[tuple[float, str], ...] = ()
    marks: tuple[Mark, ...] = ()
    closed: bool = False


def heard(recording: Recording, life: Life, event: LifeEvent, at: float) -> Recording:
    """With an event, and the life after it, ``at`` seconds after the run began. The start is over with READY."""
    if recording.closed:
        return recording
    needs = life.limits.needs
    recording = replace(recording, gpus=tuple(needs.gpus.items())[:GPUS], needs=needs.min_used)
    recording = replace(recording, phases=_changed(recording.phases, at, str(life.phase)))
    if life.engine_step:
        recording = replace(recording, steps=_changed(recording.steps, at, Step(life.engine_step).words))
    if isinstance(event, Looked):
        recording = _looked(recording, life, event.look, at)
    for word, text in _happened(event):
        recording = marked(recording, at, word, text)
    if life.failure and not any(mark.word == "exit" for mark in recording.marks):  # which tells more
        recording = marked(recording, at, "failure", life.failure, once=True)
    if life.was_ready:
        recording = replace(marked(recording, at, "ready", "READY"), closed=True)
    return recording


def _looked(recording: Recording, life: Life, look: Look, at: float) -> Recording:
    memory = tuple(None if look.nvml_error else look.memory.get(uuid) for uuid, _ in recording.gpus)
    samples, last = recording.samples, recording.samples.latest
    if last is not None and at - last.at > life.limits.gap:  # nobody looked meanwhile: what it held then, nobody knows
        samples = add(samples, Sample((last.at + at) / 2, (None,) * len(memory)))
    recording = replace(recording, samples=add(samples, Sample(at, memory)))
    if look.bound_by_us:
        recording = marked(recording, at, "port", "port opened", once=True)
        if look.health_ok:
            recording = marked(recording, at, "health", "health 200", once=True)
        if look.generated is not None and look.generated.ok:
            recording = marked(recording, at, "token", "first token", once=True)
    elif look.socket.listening:
        recording = marked(recording, at, "taken", f"port taken by {look.socket.owner or 'a stranger'}", once=True)
    return recording


def _happened(event: LifeEvent) -> list[tuple[str, str]]:
    match event:
        case Started():
            return [("engine", "engine started")]
        case EngineExited(status):
            return [("exit", f"engine ended by signal {-status}" if status < 0 else f"engine exited with {status}")]
        case StopRequested():
            return [("stop", "stop asked for")]
        case KernelSays():
            return [("xid", event.text)]
        case _:
            return []


def marked(recording: Recording, at: float, word: str, text: str, *, once: bool = False) -> Recording:
    """With a mark; without it where there are too many, or where there is one of its kind and ``once`` is enough."""
    full = len(recording.marks) >= MARKS and word != "ready"
    if full or (once and any(mark.word == word for mark in recording.marks)):
        return recording
    return replace(recording, marks=(*recording.marks, Mark(at, word, printable(text, TEXT))))


def _changed(changes: tuple[tuple[float, str], ...], at: float, name: str) -> tuple[tuple[float, str], ...]:
    same = bool(changes) and changes[-1][1] == name
    return changes if same or len(changes) >= CHANGES else (*changes, (at, name))


# As plain data


def document(recording: Recording) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "gpus": [list(gpu) for gpu in recording.gpus],
        "needs": recording.needs,
        "step": recording.samples.step,
        "samples": [[round(item.at, 2), *map(_mib, item.memory)] for item in recording.samples.series],
        "phases": [[round(at, 2), name] for at, name in recording.phases],
        "steps": [[round(at, 2), name] for at, name in recording.steps],
        "marks": [[round(mark.at, 2), mark.word, mark.text] for mark in recording.marks],
        "closed": recording.closed,
    }


def written(recording: Recording, most: int) -> str:
    """As text of at most ``most`` characters, where fewer points can do it: with 56 instances of GPUs, 300 are too many."""
    text = json.dumps(document(recording), separators=(",", ":"))
    points = recording.samples.series
    if len(text) <= most or len(points) < 4:
        return text
    fewer = thinned(points)
    return written(replace(recording, samples=Samples(fewer, fewer[-1], 2 * recording.samples.step)), most)


def _mib(size: int | None) -> int | None:
    return None if size is None else round(size / MIB)


def recording_of(found: object) -> Recording | None:
    """The recording in a document; None where it holds none of a version that is known here. Never raises."""
    if not isinstance(found, Mapping) or found.get("schema") != SCHEMA:
        return None
    gpus = _rows(found, "gpus", GPUS, lambda row: (_text(row[0]), _label(row[1])))
    needs, step = found.get("needs"), found.get("step")
    points = _rows(found, "samples", POINTS, lambda row: _sample(row, len(gpus)))
    points = tuple(point for number, point in enumerate(points) if not number or point.at >= points[number - 1].at)
    return Recording(
        gpus,
        needs if type(needs) is int and 0 <= needs < 1 << 50 else 0,
        Samples(points, points[-1] if points else None, step if isinstance(step, float) and STEP <= step < LONGEST else STEP),
        _rows(found, "phases", CHANGES, lambda row: (_time(row[0]), str(Phase(row[1])))),
        _rows(found, "steps", CHANGES, lambda row: (_time(row[0]), _text(row[1]))),
        _rows(found, "marks", MARKS + 1, lambda row: Mark(_time(row[0]), _text(row[1]), _text(row[2]))),
        found.get("closed") is True,
    )


def _rows(found: Mapping[str, Any], key: str, most: int, make: Callable[[Any], T]) -> tuple[T, ...]:
    """What can be made of the rows of a list, in their order; those of another kind are left out."""
    rows = found.get(key)
    made: list[T] = []
    for row in rows[:most] if isinstance(rows, list) else ():
        try:
            made.append(make(row))
        except (TypeError, ValueError, LookupError):
            continue
    return tuple(made)


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LONGEST or math.isnan(value):
        raise ValueError("no time of a run")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return printable(value, TEXT)


def _label(value: object) -> str:
    """As facts.Gpu has one; earlier versions wrote the index of a GPU alone."""
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not LABEL.fullmatch(text):
        raise ValueError("no label of a GPU")
    return text


def _sample(row: Any, gpus: int) -> Sample:
    at, *memory = row
    if len(memory) != gpus:
        raise ValueError("not one figure for each GPU")
    return Sample(_time(at), tuple(None if item is None else round(_time(item) * MIB) for item in memory))
