"""The door to the journal: events through the native protocol (pystemd's binding of sd_journal_sendv(3)).

Where there is no journal, or a person runs a command by hand, the same events are lines on standard error.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable

from gpu_lifecycle.rules.events import EVENTS, Event, fields_of

SOCKET = "/run/systemd/journal/socket"
HEARD = 200  # events that are kept for who takes them on to people


def is_journal(fd: int) -> bool:
    """Whether this descriptor is the one that systemd has connected to the journal (systemd.exec(5), $JOURNAL_STREAM)."""
    try:
        info = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{info.st_dev}:{info.st_ino}"


class Journal:
    """Where the events of one unit's run go."""

    def __init__(self, unit: str, run: str = "", *, terminal: bool | None = None, by_hand: bool = False) -> None:
        """``by_hand``: we are no part of the unit; ``journalctl -u`` shall show what we did to it all the same."""
        self.unit = unit
        self.run = run
        # A field may stand more than once (systemd.journal-fields(7)): journald believes this one of root.
        self.extra = [f"OBJECT_SYSTEMD_UNIT={unit}"] if by_hand else []
        self.heard: deque[Event] = deque(maxlen=HEARD)  # told, and not yet taken
        self.wake: Callable[[], None] | None = None  # called, from any thread, where there is something to take
        self.native = os.path.exists(SOCKET)
        # Under systemd standard error is the journal already: a line there would be a second copy.
        self.terminal = terminal if terminal is not None else "JOURNAL_STREAM" not in os.environ
        if not self.native:
            self.terminal = True

    def prepare(self) -> None:
        """Imports what ``tell`` needs: 30 ms that may be spent while something else is waited for."""
        if self.native:
            import pystemd.journal  # noqa: F401

    def tell(self, event: Event) -> None:
        """Sends one event. Never raises: a full or missing journal must not end a sweep."""
        fields = fields_of(event, self.unit, self.run)
        if self.native:
            from pystemd.journal import sendv

            sendv(*(f"{key}={value}" for key, value in fields.items()), *self.extra)
        if self.terminal:
            priority = EVENTS[event.word].priority
            mark = {3: "error: ", 4: "warning: "}.get(priority, "")
            print(f"{mark}{fields['MESSAGE']}", file=sys.stderr, flush=True)
        self.heard.append(event)
        if self.wake:
            self.wake()

    def take_heard(self) -> list[Event]:
        """What was told since the last time, the newest 200."""
        return [self.heard.popleft() for _ in range(len(self.heard))]
