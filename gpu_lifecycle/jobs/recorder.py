"""Records a start for its picture, from what the daemon sees anyway: no question is asked for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpu_lifecycle.rules.life import Life, LifeEvent
from gpu_lifecycle.rules.recording import FROM_HERE, Recording, document, heard, marked, recording_of, written
from gpu_lifecycle.system.history import START


class Recorder:
    """One run's. In memory, and now and then in the state file, until READY or the end; then it goes into the history."""

    def __init__(self, zero: float, handed: Mapping[str, Any] | None, *, over: bool) -> None:
        """``zero``: when the run began, seconds on the monotonic clock. ``over``: the start is, and not to be recorded.

        ``handed``: what the program before this one, in this very process, has of the start; None: there was none before.
        """
        now, given = time.monotonic(), (handed or {}).get("zero")
        self.zero = given if isinstance(given, float) and given <= now else zero
        found = recording_of((handed or {}).get("recording"))
        self.recording = found or Recording(closed=over)
        if handed is not None and not over and not self.recording.closed:
            word, text = ("reloaded", "daemon reloaded") if found else ("reload", FROM_HERE)
            self.recording = marked(self.recording, max(0.0, now - self.zero), word, text)

    def note(self, life: Life, event: LifeEvent) -> None:
        """To be called with each event, and the life after it."""
        self.recording = heard(self.recording, life, event, max(0.0, time.monotonic() - self.zero))

    def row(self) -> dict[str, str]:
        """What the history is to have of it; nothing where nothing was recorded."""
        return {"start": written(self.recording, START)} if self.recording.phases else {}

    def pack(self) -> dict[str, Any]:
        """For the program that takes this one's place."""
        return {"zero": self.zero, "recording": document(self.recording)}
