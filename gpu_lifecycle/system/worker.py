"""A second process that works at the same time, for looks that are worth it."""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from gpu_lifecycle.errors import BusyError


class Worker:
    """A forked child that works at the same time and sends its answer by a pipe; an answer is whole, or None.

    It runs nothing but its work: signals stay blocked in it, so that no handler of ours runs twice, and it keeps no
    descriptor of ours, so that no lock outlives us in it. ``close()`` ends it in any case.
    """

    def __init__(self) -> None:
        self._child = self._reader = -1
        self.failed: OSError | None = None  # why there is no child

    def start(self, work: Callable[[], Any]) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._fork(work)
        except OSError as error:
            self.failed = error  # no descriptors or processes left: there will be no answer
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _fork(self, work: Callable[[], Any]) -> None:
        self._reader, writer = os.pipe()
        try:
            self._child = os.fork()
            if self._child == 0:
                _work(writer, work)
        finally:
            os.close(writer)

    def answer(self, seconds: float) -> Any:
        """None where there is none within so many seconds: what it looks at may block it; or where there is no child."""
        if self._child < 0:
            return None
        until, text = time.monotonic() + seconds, b""
        poller = select.poll()  # select(2) knows no descriptor above 1023
        poller.register(self._reader, select.POLLIN)
        while (left := until - time.monotonic()) > 0 and poller.poll(left * 1000):
            chunk = os.read(self._reader, 1 << 20)
            if not chunk:
                break
            text += chunk
        try:
            return marshal.loads(text)  # noqa: S302 - what our own copy wrote, into a pipe that nobody else has
        except (EOFError, ValueError, TypeError):
            return None  # it ended early

    def must_have_begun(self) -> None:
        """Raises BusyError where there is no child: then nothing is known of what it was to look at."""
        if self.failed:
            from gpu_lifecycle.system.shortage import no_process

            raise no_process(self.failed) or BusyError(f"cannot make another process: {self.failed.strerror}") from self.failed

    def close(self) -> None:
        if self._child > 0:
            os.kill(self._child, signal.SIGKILL)  # not reaped yet: its pid cannot mean another process
            os.waitpid(self._child, 0)
        if self._reader >= 0:
            os.close(self._reader)

    def abandon(self) -> None:
        """``close()`` that waits for nobody: a child that hangs in the kernel takes its SIGKILL when it comes back."""
        if self._child > 0:
            os.kill(self._child, signal.SIGKILL)
            until = time.monotonic() + 0.1
            while os.waitpid(self._child, os.WNOHANG) == (0, 0) and time.monotonic() < until:
                time.sleep(0.001)
        self._child = -1
        if self._reader >= 0:
            os.close(self._reader)


def in_child(work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any] | None:
    """What ``work`` finds, done in a child that is left behind where it hangs. None: not within so many seconds.

    Raises BusyError where no child can be made.
    """
    worker = Worker()
    try:
        worker.start(work)
        worker.must_have_begun()
        found = worker.answer(seconds)
        return found if isinstance(found, dict) else None
    finally:
        worker.abandon()


def _work(writer: int, work: Callable[[], Any]) -> None:
    """What the child does. It never returns into the program that it is a copy of."""
    try:
        gc.disable()  # what is collected might close a descriptor whose number is another's by now
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != writer:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        text = marshal.dumps(work())
        while text:
            text = text[os.write(writer, text) :]
    finally:
        os._exit(0)
