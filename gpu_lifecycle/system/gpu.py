"""The door to the GPUs: asks the NVML helper, each question with a deadline.

A helper that misses its deadline is abandoned (it may be stuck in the kernel, where even SIGKILL waits). As long as one
abandoned helper still exists no second one is started: the answer is then "NVML does not answer", at once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from gpu_lifecycle.facts import GpuError, GpuHealth, GpuView
from gpu_lifecycle.rules.nvml import classify, health_from, view_from

ANSWER_LIMIT = 1024 * 1024
DRIVER_VERSION = "/sys/module/nvidia/version"


def _binding_folder() -> str:
    """Where nvidia-ml-py lies, found without importing it."""
    from importlib.util import find_spec

    spec = find_spec("pynvml")
    return os.path.dirname(spec.origin) if spec and spec.origin else ""


class GpuProbe:
    """One helper at a time. ``view()`` may be called from one thread at a time. Use in a ``with`` block."""

    def __init__(self) -> None:
        self._helper: subprocess.Popen[bytes] | None = None
        self._abandoned: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._number = 0
        self.hung = 0  # how many helpers had to be abandoned
        self._asked = 0  # the number of a question that was sent ahead, 0: none
        self._loaded: tuple[str, str, tuple[int, int] | None] | None = None  # the library, the driver, the library's file
        self.quiet_until = 0.0  # on the monotonic clock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pids(self) -> set[int]:
        """Our helpers: they hold device nodes, and are no holders."""
        return {helper.pid for helper in (self._helper, self._abandoned) if helper}

    def view(self, deadline: float, only: Sequence[int] | None = None) -> GpuView:
        """All GPUs, or those of some indices, within ``deadline`` seconds.

        Never raises: what is not known comes back as an error.
        """
        answer = self._answer("view", deadline, only)
        now = time.monotonic()
        return GpuView((), error=answer, at=now) if isinstance(answer, GpuError) else view_from(answer, now)

    def health(self, deadline: float) -> tuple[GpuHealth, ...] | GpuError:
        """What each GPU says of its fitness, within ``deadline`` seconds. Never raises."""
        if self._asked:
            self.view(deadline)  # the answer to a question that was sent ahead comes first
        answer = self._answer("health", deadline)
        return answer if isinstance(answer, GpuError) else health_from(answer)

    def release(self, seconds: float) -> None:
        """Lets go of NVML, and opens it for nobody within so many seconds: somebody wants to reset a GPU, say.

        May be called beside a ``view()`` in another thread, which then ends with an error.
        """
        self.quiet_until = time.monotonic() + seconds
        self.interrupt()

    def _answer(self, op: str, deadline: float, only: Sequence[int] | None = None) -> dict[str, Any] | GpuError:
        left = self.quiet_until - time.monotonic()
        if left > 0:
            return classify("released", f"for {left:.0f} s more")
        if self._still_stuck():
            return classify("hung", "an earlier question is still unanswered")
        end = time.monotonic() + deadline
        try:
            helper = self._started()
            if time.monotonic() < self.quiet_until:  # let go of in between: what was just started must not open it again
                return classify("helper-died", f"let go of, status {self._discard()}")
            if not self._asked:
                self._send(helper, op, only)
            self._asked = 0
            line = self._line(helper, end)
        except (OSError, EOFError) as error:
            status = self._discard()
            return classify("helper-died", f"{str(error) or 'no answer'}, status {status}")
        if line is None:
            self._abandon()
            return classify("hung", f"no answer in {deadline:g} s")
        if self._loaded is None:
            self._note_library(helper)
        return self._read(line)

    def begin(self) -> None:
        """Starts the helper and sends the first question ahead; ``view`` takes the answer. Its start-up is then no wait.

        Never raises: what goes wrong, ``view`` says.
        """
        with contextlib.suppress(OSError):
            self._send(self._started(), "view")

    def _send(self, helper: subprocess.Popen[bytes], op: str, only: Sequence[int] | None = None) -> None:
        self._number += 1
        self._asked = self._number
        self._ask(helper, {"id": self._number, "op": op, "only": only and list(only)})

    def _read(self, line: bytes) -> dict[str, Any] | GpuError:
        try:
            answer: Any = json.loads(line)
            if answer["id"] == self._number:
                return dict(answer)
            problem = f"it answers question {answer['id']}, asked was {self._number}"
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = str(error)
        self._discard()
        return classify("garbled", problem)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._helper and self._loaded and self._stamp(self._loaded[0]) != self._loaded:
            self._discard()  # the driver or its library has been replaced: what this helper has loaded is stale
        if self._helper is None or self._helper.poll() is not None:
            self._discard()
            if self._abandoned:  # it would not go: at most one hangs at a time
                raise OSError(errno.EBUSY, "the helper before hangs")
            self._loaded = None
            program = os.path.join(os.path.dirname(__file__), "nvml_helper.py")
            self._helper = subprocess.Popen(
                [sys.executable, "-I", "-B", "-S", program, _binding_folder()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # a terminal's Ctrl-C is the daemon's business, not the helper's
            )
            self._buffer = b""
            self._asked = 0
        return self._helper

    def _stamp(self, library: str) -> tuple[str, str, tuple[int, int] | None]:
        """What changes with an upgrade: the driver that the kernel runs, and the file behind the library's name."""
        try:
            info = os.stat(library)
            file: tuple[int, int] | None = (info.st_dev, info.st_ino)
        except OSError:
            file = None
        try:
            with open(DRIVER_VERSION, encoding="ascii", errors="replace") as version:
                return library, version.read(100), file
        except OSError:
            return library, "", file

    def _note_library(self, helper: subprocess.Popen[bytes]) -> None:
        """Which file the helper has loaded as NVML (proc_pid_maps(5))."""
        with contextlib.suppress(OSError), open(f"/proc/{helper.pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                if "libnvidia-ml" in line:
                    self._loaded = self._stamp(line.split(maxsplit=5)[5].rstrip("\n").removesuffix(" (deleted)"))
                    return

    def _ask(self, helper: subprocess.Popen[bytes], request: dict[str, object]) -> None:
        assert helper.stdin
        os.write(helper.stdin.fileno(), json.dumps(request).encode() + b"\n")

    def _line(self, helper: subprocess.Popen[bytes], end: float) -> bytes | None:
        """One line, or None at the deadline. Raises EOFError where the helper is gone or floods."""
        assert helper.stdout
        fd = helper.stdout.fileno()
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not _readable(fd, left):
                return None
            chunk = os.read(fd, 65536)
            if not chunk or len(self._buffer) > ANSWER_LIMIT:
                raise EOFError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _abandon(self) -> None:
        self.hung += 1
        helper, self._helper = self._helper, None
        if helper:
            helper.kill()
            self._abandoned = helper

    def _still_stuck(self) -> bool:
        if self._abandoned is None:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._abandoned.wait(0.2)  # SIGKILL was sent: an unstuck one is gone at once
        if self._abandoned.returncode is None:
            return True
        _close_pipes(self._abandoned)
        self._abandoned = None
        return False

    def _discard(self) -> int | None:
        """Ends the helper; returns its exit status, None where it will not go."""
        helper, self._helper = self._helper, None
        if helper is None:
            return None
        _close_pipes(helper)
        if not _ended(helper, 1.0):  # it ends by itself when its input ends
            helper.kill()
            if not _ended(helper, 1.0):
                self._abandoned = helper
                return None
        return helper.wait()

    def interrupt(self) -> None:
        """Makes a question that is being asked in another thread end now, unless its helper is stuck in the kernel."""
        helper = self._helper
        if helper:
            helper.kill()

    def close(self) -> None:
        """Ends all helpers that can be ended, within about 2 s."""
        self._discard()
        if self._abandoned:
            self._still_stuck()


def _ended(helper: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits for its end by a pidfd: ``Popen.wait`` with a timeout sleeps in steps that grow."""
    if helper.poll() is not None:
        return True
    try:
        fd = os.pidfd_open(helper.pid)
    except ProcessLookupError:
        return True  # collected elsewhere meanwhile
    try:
        return _readable(fd, seconds)
    finally:
        os.close(fd)


def _readable(fd: int, seconds: float) -> bool:
    poller = select.poll()  # select(2) knows no descriptor above 1023
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _close_pipes(helper: subprocess.Popen[bytes]) -> None:
    for pipe in (helper.stdin, helper.stdout):
        if pipe:
            pipe.close()
