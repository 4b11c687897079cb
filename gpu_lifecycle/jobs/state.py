"""The state file of a unit: what ``status`` shows, and what one process of a run tells the next one.

Written by the root hooks and by the daemon, in turn, never at once; replaced atomically. Losing it loses words, never safety.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.errors import Exit, LifecycleError
from gpu_lifecycle.facts import Gpu, GpuView, Layout, Phase, UnitName
from gpu_lifecycle.rules.budget import Budget, known
from gpu_lifecycle.system.files import read_state, write_state

if TYPE_CHECKING:
    from gpu_lifecycle.rules.lifecycle import Life
    from gpu_lifecycle.rules.readiness import Look

SCHEMA = 1


@dataclass
class StateFile:
    """The document of one unit, held in memory and saved as a whole."""

    layout: Layout
    unit: UnitName
    run: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    complaint: str = ""

    @classmethod
    def load(cls, layout: Layout, unit: UnitName, run: str = "") -> StateFile:
        """The last document, or an empty one; a torn or foreign file counts as none, and ``complaint`` says why.

        The unit's own user may write there: what is not of the kind that we write is dropped, key by key.
        """
        found, complaint = read_state(layout.state(unit))
        document = clean(found) if found and found.get("schema") == SCHEMA else {}
        return cls(layout, unit, run, document, complaint)

    @property
    def refusal(self) -> tuple[Exit, str] | None:
        """What the pre-start hook of this very run found to be wrong."""
        refusal = self.document.get("refusal")
        if not refusal or not self.run or refusal.get("run") != self.run or refusal.get("status") not in list(Exit):
            return None
        return Exit(refusal["status"]), str(refusal.get("text", ""))

    @property
    def allowed(self) -> bool:
        """Whether the pre-start hook of this very run has proven the GPUs free."""
        return bool(self.run) and self.document.get("allowed") == self.run

    @property
    def smallest_gpu(self) -> int | None:
        """Bytes of memory of the smallest claimed GPU, as the pre-start hook of this very run saw it; None: not known."""
        rows = self.document.get("gpus") if self.allowed else None
        sizes = [row.get("memory_total") for row in rows or ()]
        return min((size for size in sizes if isinstance(size, int) and size > 0), default=None)

    @property
    def kernel_log(self) -> str:
        """Why the pre-start hook of this run could not hand the kernel log over; "" where it could, or was not asked."""
        return str(self.document.get("kernel_log") or "") if self.allowed else ""

    @property
    def budget(self) -> Budget:
        """What the chain of restarts has used up."""
        document = self.document
        return known(document.get("failed_starts", 0), document.get("same_failures", 0), document.get("failure") or "")

    def keep_budget(self, budget: Budget) -> None:
        self.document |= {"failed_starts": budget.failed, "same_failures": budget.same, "failure": budget.like}

    def save(self, phase: Phase, text: str, **fields: Any) -> str:
        """Writes the document; returns "" or why it could not be written (the caller says so once and goes on)."""
        now = round(time.time(), 3)
        if self.document.get("phase") != str(phase) or self.document.get("run") != self.run:
            self.document["since"] = now
        self.document.update(
            schema=SCHEMA, unit=self.unit.service, run=self.run, phase=str(phase), text=text, updated=now, **fields
        )
        try:
            write_state(self.layout.state(self.unit), self.document)
        except LifecycleError as error:
            self.complaint = str(error)
            return self.complaint
        return ""


def clean(found: dict[str, Any]) -> dict[str, Any]:
    """Only the keys that we write, each only with a value of its kind."""
    return {key: found[key] for key, fits in KINDS.items() if key in found and fits(found[key])}


def _text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62


def _number(value: object) -> bool:
    return value is None or _whole(value) or (isinstance(value, float) and abs(value) < 1e15)


def _rows(value: object) -> bool:
    """A list of flat objects: sizes, texts, truth values."""
    return isinstance(value, list) and all(_object(row) and row is not None for row in value)


def _object(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, dict) and all(_text(item) or _number(item) or isinstance(item, bool) for item in value.values())


KINDS: dict[str, Callable[[object], bool]] = {
    "schema": _whole,
    "unit": _text,
    "run": _text,
    "phase": lambda value: value in list(Phase),
    "since": _number,
    "updated": _number,
    "text": _text,
    "progress": _number,
    "eta": _number,
    "gpus": _rows,
    "probes": _rows,
    "engine_pid": lambda value: value is None or _whole(value),
    "failed_starts": _whole,
    "same_failures": _whole,
    "failure": _text,
    "refusal": _object,
    "reload": _object,
    "allowed": _text,
    "kernel_log": _text,
    "last_end": _object,
}


def state_fields(life: Life, look: Look | None, view: GpuView | None, gpus: tuple[Gpu, ...]) -> dict[str, object]:
    """What ``status --json`` shows beside the phase."""
    seen = {gpu.uuid: gpu for gpu in view.gpus} if view else {}
    shown = [
        {
            "uuid": gpu.uuid,
            "index": gpu.index,
            "memory_total": gpu.total,
            "memory_used": seen[gpu.uuid].used if gpu.uuid in seen else None,
            "memory_own": life.memory.get(gpu.uuid),
        }
        for gpu in gpus
    ]
    probes = [probe_row(look)] if look else []
    return {
        "gpus": shown,
        "probes": probes,
        "progress": None,
        "eta": None,
        "engine_pid": life.engine or None,
        "failed_starts": life.budget.failed,
        "same_failures": life.budget.same,
        "failure": life.budget.like,
        "refusal": None,
    }


def probe_row(look: Look) -> dict[str, object]:
    """One answer of the health endpoint, as ``status --json`` shows it."""
    health = look.health
    return {
        "probe": "health",
        "ok": health.ok,
        "code": health.code,
        "text": health.text,
        "seconds": round(health.seconds, 3),
    }
