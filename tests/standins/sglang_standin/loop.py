"""A small event loop: readable and writable files, and timers."""

from __future__ import annotations

import heapq
import selectors
import time
from collections.abc import Callable
from socket import socket

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Timer:
    """A call that is due at a time and can be taken back."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.cancelled = False

    def __lt__(self, other: Timer) -> bool:
        return self.at < other.at

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Runs for ever; a callback ends the process."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call once after so many seconds."""
        timer = Timer(time.monotonic() + seconds, call)
        heapq.heappush(self._timers, timer)
        return timer

    def watch(self, file: socket, events: int, call: Callable[[int], None]) -> None:
        """Call with the events that came; watching again replaces."""
        if file.fileno() in self._selector.get_map():
            self._selector.modify(file, events, call)
        else:
            self._selector.register(file, events, call)

    def forget(self, file: socket) -> None:
        """Watch no longer."""
        if file.fileno() in self._selector.get_map():
            self._selector.unregister(file)

    def run(self) -> None:
        while True:
            for key, events in self._selector.select(self._patience()):
                # an earlier callback of this round may have closed the file
                if self._selector.get_map().get(key.fd) is key:
                    key.data(events)
            self._ring()

    def _patience(self) -> float | None:
        return max(0.0, self._timers[0].at - time.monotonic()) if self._timers else None

    def _ring(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].at <= now:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.call()
