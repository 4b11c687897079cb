"""What earlier loads of the same model on the same GPUs have taken: kept as plain data, and summed up for the next one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gpu_lifecycle.rules.phases import Step
from gpu_lifecycle.rules.text import redact

SCHEMA = 1
KEPT = 10  # loads, of all models together
LONGEST = 1e7  # seconds; a load of more is none
LARGEST = 1 << 62  # bytes
NAMES = {step: step.name.lower() for step in Step}
STEPS = {name: step for step, name in NAMES.items()}
ROW = ("key", "at", "seconds", "steps", "memory", "read")


@dataclass(frozen=True, slots=True)
class Loaded:
    """One load that became ready: seconds of each step, bytes on each GPU (by UUID) then, and what was read for it.

    ``read`` None: it could not be seen.
    """

    steps: Mapping[Step, float]
    memory: Mapping[str, int]
    read: int | None = None

    @property
    def seconds(self) -> float:
        return sum(self.steps.values())


@dataclass(frozen=True, slots=True)
class Learned:
    """The medians of ``count`` loads."""

    count: int = 0
    steps: Mapping[Step, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    read: int | None = None

    @property
    def seconds(self) -> float:
        return sum(self.steps.values())


NOTHING_LEARNED = Learned()


def fingerprint(engine: str, command: Sequence[str], models: Sequence[str], weights: int, boards: Iterable[str]) -> str:
    """What two loads have to share to be alike: how the engine is started, the models, their size in bytes, and the GPUs.

    ``boards``: the UUIDs of the GPUs, which also tell one machine from another. A key of the command is not in it.
    """
    said = [engine, redact(" ".join(command)), list(models), weights, sorted(boards)]
    return hashlib.sha256(json.dumps(said).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def learned(document: Any, key: str) -> Learned:
    """What the file's content says of loads with this key. Whatever it holds, what is unfit counts for nothing."""
    loads = [load for row in rows(document) if row["key"] == key and (load := _load(row)).seconds > 0]
    if not loads:
        return NOTHING_LEARNED
    steps = {step: [load.steps[step] for load in loads if step in load.steps] for step in Step}
    usual = {step: float(median(seconds)) for step, seconds in steps.items() if 2 * len(seconds) >= len(loads)}
    uuids = {uuid for load in loads for uuid in load.memory}
    memory = {uuid: int(median(load.memory[uuid] for load in loads if uuid in load.memory)) for uuid in uuids}
    read = [load.read for load in loads if load.read]
    return Learned(len(loads), usual, memory, int(median(read)) if read else None)


def unfit(document: Mapping[str, Any] | None) -> str:
    """Why nothing can be learned from a file that is there; "" where something can, or where there is none."""
    if document is None or (document.get("schema") == SCHEMA and isinstance(document.get("loads"), list)):
        return ""
    return f"it is not what this version writes (schema {SCHEMA})"


def with_load(document: Any, key: str, at: float, load: Loaded) -> dict[str, Any]:
    """The file's next content. ``at``: seconds since the epoch."""
    row = {
        "key": key,
        "at": round(at),
        "seconds": round(load.seconds, 1),
        "steps": {NAMES[step]: round(seconds, 2) for step, seconds in sorted(load.steps.items())},
        "memory": dict(load.memory),
        "read": load.read,
    }
    return {"schema": SCHEMA, "loads": [*rows(document), row][-KEPT:]}


def rows(document: Any) -> list[dict[str, Any]]:
    """Those of the file that are as we write them."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not isinstance(document.get("loads"), list):
        return []
    return [{name: row[name] for name in ROW} for row in document["loads"][-KEPT:] if _fits(row)]


def _fits(row: Any) -> bool:
    if not isinstance(row, dict) or not row.keys() >= set(ROW):
        return False
    steps, memory, read = row["steps"], row["memory"], row["read"]
    return (
        isinstance(row["key"], str)
        and _between(row["at"], LARGEST)
        and _between(row["seconds"], LONGEST)
        and isinstance(steps, dict)
        and all(name in STEPS and _between(value, LONGEST) for name, value in steps.items())
        and isinstance(memory, dict)
        and all(_whole(value) for value in memory.values())
        and (read is None or _whole(read))
    )


def _between(value: Any, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most  # nan is not, either


def _whole(value: Any) -> bool:
    return isinstance(value, int) and _between(value, LARGEST)


def _load(row: Mapping[str, Any]) -> Loaded:
    return Loaded({STEPS[name]: float(value) for name, value in row["steps"].items()}, row["memory"], row["read"])
