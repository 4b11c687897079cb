"""A piece of work in a real child process that is killed at a chosen step of it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

PTRACE_TRACEME, PTRACE_SYSCALL = 0, 24  # ptrace(2)
LIBC = ctypes.CDLL(None, use_errno=True)


def killed_after(stops: int, work: Callable[[], object]) -> bool:
    """Runs ``work`` in a child that is killed at its n-th entry into or return from the kernel; True where it got through."""
    child = os.fork()
    if child == 0:
        LIBC.ptrace(PTRACE_TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    for _ in range(stops):
        LIBC.ptrace(PTRACE_SYSCALL, child, None, None)
        if os.WIFEXITED(os.waitpid(child, 0)[1]):
            return True
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False
