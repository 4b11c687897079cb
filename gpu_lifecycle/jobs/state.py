"""The state file of a unit: what ``status`` shows, and what one process of a run tells the next one.

Written by the root hooks and by the daemon, in turn, never at once; replaced atomically. Losing it loses words, never safety.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_lifecycle.errors import Exit, LifecycleError
from gpu_lifecycle.facts import Layout, Phase, UnitName
from gpu_lifecycle.system.files import read_state, write_state

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
    def kernel_log(self) -> str:
        """Why the pre-start hook of this run could not hand the kernel log over; "" where it could, or was not asked."""
        return str(self.document.get("kernel_log") or "") if self.allowed else ""

    @property
    def failed_starts(self) -> int:
        return max(0, int(self.document.get("failed_starts", 0)))

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
    "refusal": _object,
    "allowed": _text,
    "kernel_log": _text,
    "last_end": _object,
}
