"""Looks at processes that may not come back, each with a deadline.

``cmdline``, ``environ`` and ``maps`` take the lock of a process's memory (fs/proc/base.c, fs/proc/task_mmu.c). A thread of it
that hangs in the kernel with that lock, such as in mmap(2) of a file on a dead server, blocks every reader; only SIGKILL ends
such a read. So it is done in a thread, which is left behind where it does not come back, and ends with this program.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
SECONDS = 2.0  # an unhindered look takes microseconds, and milliseconds where a machine is busy


class Patience:
    """Remembers who blocks, so that nobody is waited for twice."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._left: dict[int, threading.Event] = {}  # pid: set once the look that was left behind has come back

    def blocked(self, pid: int) -> bool:
        """Whether an earlier look at it has still not come back. A pid cannot be reused as long as that is so."""
        left = self._left.get(pid)
        if left and left.is_set():
            del self._left[pid]
        return pid in self._left

    def each(self, pids: Sequence[int], look: Callable[[int], T]) -> dict[int, T]:
        """What ``look`` finds at each pid. One that blocks for 1 to 2 times ``seconds`` is left out: see ``blocked``.

        Raises what ``look`` raises.
        """
        found: dict[int, T] = {}
        rest = [pid for pid in pids if not self.blocked(pid)]
        while rest:
            walk = _Walk(rest, look)
            whole = walk.wait(self.seconds)
            found |= walk.found
            if whole:
                break
            self._left[rest[walk.at]] = walk.done
            rest = rest[walk.at + 1 :]
        return found

    def one(self, pid: int, look: Callable[[int], T]) -> T:
        """Raises TimeoutError, which is an OSError, where it blocks."""
        found = self.each([pid], look)
        if pid not in found:
            raise TimeoutError(f"process {pid} blocks whoever looks at its memory")
        return found[pid]


class _Walk(Generic[T]):
    """One thread that goes from process to process."""

    def __init__(self, pids: Sequence[int], look: Callable[[int], T]) -> None:
        self.pids = pids
        self.look = look
        self.at = 0
        self.found: dict[int, T] = {}
        self.done = threading.Event()
        self._left = False
        self._error: Exception | None = None
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # no thread to be had: then without a deadline
            self._run()

    def wait(self, seconds: float) -> bool:
        """True when it is through; False, and it is left behind, where it has not moved for ``seconds``."""
        at = -1
        while not self.done.wait(seconds):
            if self.at == at:
                self._left = True
                return False
            at = self.at
        if self._error:
            raise self._error
        return True

    def _run(self) -> None:
        try:
            for at, pid in enumerate(self.pids):
                self.at = at
                seen = self.look(pid)
                if self._left:
                    break
                self.found[pid] = seen
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error
        finally:
            self.done.set()
