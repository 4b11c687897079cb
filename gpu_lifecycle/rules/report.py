"""How findings are said: one line for a person, fields for the journal, JSON for a program."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_lifecycle.facts import Gpu, Judged, Owner, OwnerKind, Process, Sight, Verdict
from gpu_lifecycle.rules.quantity import show_count, show_size

LABEL = re.compile(r"[0-9]{1,6}(:[0-9]{1,6}){0,2}")  # facts.Gpu.label


def describe(item: Judged) -> str:
    """One process in words: pid, title, user, owner, memory."""
    process = item.process
    parts = [f'process {process.pid} "{process.command}"', f"of user {process.user}"]
    if item.owner.kind is not OwnerKind.NONE:
        parts.append(f"in {item.owner.kind} {item.owner.name}")
    amounts = [amount for amount in item.memory.values() if amount is not None]
    if amounts:
        parts.append(f"with {show_size(sum(amounts))} on {show_count(len(item.memory), 'GPU')}")
    return " ".join(parts)


def advice(item: Judged) -> str:
    """The command that would clear a conflict, through the holder's owner; "" where there is none to give."""
    return f"; {clearing(item.process, item.owner)}" if item.verdict is Verdict.CONFLICT else ""


def clearing(process: Process, owner: Owner) -> str:
    """The command that ends a process through whoever answers for it: what systemd or Docker keeps alive comes back else."""
    name = owner.name
    if owner.kind is OwnerKind.UNIT and "/" not in name:
        return f"to clear it: systemctl stop {name}"
    if owner.kind is OwnerKind.UNIT:
        return f"to clear it: systemctl --user --machine={process.user}@ stop {name.rpartition('/')[2]}"
    if owner.kind is OwnerKind.CONTAINER:
        engine, _, container = name.partition(":")
        command = {"docker": "docker stop", "podman": "podman stop", "lxc": "lxc-stop -n", "machine": "machinectl poweroff",
                   "nspawn": "machinectl poweroff"}.get(engine)  # fmt: skip
        return f"to clear it: {command} {container}" if command else "stop its container or pod"
    return f"to clear it: kill {process.pid} (look first: ps -fp {process.pid})"


def judged_fields(item: Judged) -> dict[str, str]:
    """Journal fields of a decision about one process.

    OBJECT_PID makes journald read what the process's files in ``/proc`` say (systemd.journal-fields(7)): one that blocks
    its readers would bring the journal of the whole machine to a halt.
    """
    fields = {
        "GPU_LIFECYCLE_VERDICT": str(item.verdict),
        "GPU_LIFECYCLE_RULE": item.rule,
        "GPU_LIFECYCLE_PID": str(item.process.pid),
    }
    if not item.process.blocks:
        fields["OBJECT_PID"] = str(item.process.pid)
    if item.gpus:
        fields["GPU_LIFECYCLE_GPU"] = item.gpus[0] if len(item.gpus) == 1 else " ".join(item.gpus)
    if item.owner.kind is OwnerKind.UNIT:
        fields["OBJECT_SYSTEMD_UNIT"] = item.owner.name
    return fields


def memory_text(gpus: Sequence[Gpu]) -> str:
    """How much each GPU holds; one figure where all hold about the same."""
    used = [gpu.used for gpu in gpus if gpu.used is not None]
    if not used:
        return "memory unknown"
    low, high = show_size(min(used)), show_size(max(used))
    return f"{high} used on each" if low == high else f"{low} to {high} used"


def holder_json(item: Judged, result: str | None = None, *, with_result: bool = False) -> dict[str, Any]:
    """One entry of ``holders --json``."""
    process = item.process
    shown: dict[str, Any] = {
        "pid": process.pid,
        "start_ticks": process.identity.start_ticks,
        "command": process.command,
        "user": process.user,
        "how": [*process.how, *(["nvml"] if item.memory else [])],
        "gpus": list(item.gpus),
        "memory": dict(item.memory),
        "owner": {"kind": str(item.owner.kind), "name": item.owner.name},
        "verdict": str(item.verdict),
        "rule": item.rule,
        "why": item.why,
    }
    if with_result:
        shown["result"] = result
    return shown


def sight_json(sight: Sight) -> dict[str, Any]:
    return {"full": sight.full, "limits": list(sight.limits)}


def label_of(item: Mapping[str, Any]) -> str:
    """Of a GPU in a document that may hold anything; earlier versions wrote its index alone. "?" where there is none."""
    for value in (item.get("label"), item.get("index")):
        text = str(value) if type(value) is int else value
        if isinstance(text, str) and LABEL.fullmatch(text):
            return text
    return "?"


def gpu_json(
    gpu: Gpu,
    claimed_by: Sequence[str] = (),
    unexplained: int | None = None,
    fitness: tuple[str, Sequence[str]] = ("unknown", ()),
) -> dict[str, Any]:
    """One entry of ``gpus --json``; ``fitness`` as rules/fitness.py gives it: its word, and the reasons."""
    word, reasons = ("bad", [gpu.error.text]) if gpu.error else fitness
    health = {"state": word, "reasons": list(reasons)}
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "label": gpu.label,
        "minor": gpu.minor,
        "pci": gpu.pci,
        "name": gpu.name,
        "instance_of": gpu.parent or None,
        "divided": gpu.divided,
        "memory_total": gpu.total,
        "memory_used": gpu.used,
        "memory_unexplained": unexplained,
        "health": health,
        "claimed_by": list(claimed_by),
    }
