"""One run as flat values, under fixed keys: in the state file while it lasts, in the history after it.

The state file is the unit's user's to write: a value that is not of its kind counts as none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.budget import signature
from gpu_lifecycle.rules.cause import CAUSES, Cause, Ended, Outcome
from gpu_lifecycle.rules.signatures import Signs

Row = Mapping[str, Any]
PHASES = (Phase.PRE_START, Phase.LOADING, Phase.WARMING, Phase.READY, Phase.SUSPECT, Phase.DRAINING, Phase.STOPPING)


def phase_key(phase: Phase) -> str:
    return f"seconds_{phase.replace('-', '_')}"


def phases(row: Row) -> dict[str, float]:
    """How long the run was in each phase that it has had, in seconds, in their order."""
    found = {str(phase): number(row, phase_key(phase)) for phase in PHASES}
    return {phase: round(seconds, 1) for phase, seconds in found.items() if seconds is not None}


def spend(row: dict[str, Any], phase: Phase, seconds: float) -> None:
    """Adds to the time that the run has been in a phase."""
    if phase in PHASES and seconds > 0:
        row[phase_key(phase)] = round((number(row, phase_key(phase)) or 0.0) + seconds, 3)


def since_began(row: Row, wall: float, monotonic: float) -> float:
    """Seconds since the run began, at these readings of the two clocks, both of its own boot of the machine.

    By the monotonic one where the row has its ``zero``: the clock on the wall may have been set meanwhile, as after a boot.
    """
    zero, began = number(row, "zero"), number(row, "began")
    if zero is not None and zero <= monotonic:
        return monotonic - zero
    return max(0.0, wall - began) if began is not None else 0.0


def text(row: Row, key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def number(row: Row, key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15 else None


def whole(row: Row, key: str) -> int | None:
    value = number(row, key)
    return None if value is None else int(value)


def lines(row: Row, key: str) -> tuple[str, ...]:
    """A text of several lines, such as the evidence."""
    return tuple(line for line in text(row, key).split("\n") if line)


def times(row: Row) -> int:
    """How many runs in a row this one stands for."""
    return max(1, whole(row, "times") or 1)


def joined(parts: Sequence[str]) -> str:
    return "\n".join(part.replace("\n", " ") for part in parts)


def ended_of(
    row: Row, signs: Signs = (), said: tuple[str, ...] = (), probes: tuple[str, ...] = (), nvml: str = "", **systemd: str
) -> Ended:
    """What a row knows of its end, with what only the daemon, or only systemd (``result``, ``code``, ``status``), has seen."""
    return Ended(
        failure=text(row, "failure"),
        verdict=text(row, "verdict"),
        stop=row.get("stop") is True,
        refusal=whole(row, "refusal") or 0,
        refused=text(row, "refused"),
        gpu=text(row, "gpu"),
        exit=whole(row, "exit"),
        oom=whole(row, "oom") or 0,
        xids=lines(row, "xids"),
        nvml=nvml,
        probes=probes,
        signs=signs,
        lines=said,
        spent=text(row, "spent"),
        **systemd,
    )


def cause_row(cause: Cause) -> dict[str, Any]:
    return {
        "code": cause.code,
        "outcome": str(cause.outcome),
        "text": cause.text,
        "cure": cause.cure,
        "evidence": joined(cause.evidence),
        "like": signature(f"{cause.code}: {cause.evidence[0]}") if cause.outcome is Outcome.REFUSED and cause.evidence else "",
    }


def cause_of(row: Row) -> Cause | None:
    """The cause in a row; None where it holds none that is known here."""
    code, outcome = text(row, "code"), text(row, "outcome")
    if code not in CAUSES or outcome not in list(Outcome):
        return None
    said, cure = CAUSES[code]
    return Cause(code, Outcome(outcome), said, cure, lines(row, "evidence"))
