"""The state file of a unit: what ``status`` shows, and what one process of a run tells the next one.

Written by the root hooks and by the daemon, in turn, never at once; replaced atomically. Losing it loses words, never safety.
"""

from __future__ import annotations

import time
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
        """The last document, or an empty one; a torn or foreign file counts as none, and ``complaint`` says why."""
        found, complaint = read_state(layout.state(unit))
        document = dict(found) if found and found.get("schema") == SCHEMA else {}
        return cls(layout, unit, run, document, complaint)

    @property
    def refusal(self) -> tuple[Exit, str] | None:
        """What the pre-start hook of this very run found to be permanently wrong."""
        refusal = self.document.get("refusal")
        if not isinstance(refusal, dict) or not self.run or refusal.get("run") != self.run:
            return None
        try:
            return Exit(int(refusal.get("status", 1))), str(refusal.get("text", ""))
        except (TypeError, ValueError):
            return None

    @property
    def failed_starts(self) -> int:
        count = self.document.get("failed_starts", 0)
        return count if isinstance(count, int) and count >= 0 else 0

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
