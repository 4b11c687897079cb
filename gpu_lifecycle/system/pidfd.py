"""The door to signals: a process is held by its pidfd first, identified through it, and signalled through it only.

pidfd_open(2), pidfd_send_signal(2). Once the pidfd is open the pid cannot come to mean another process unnoticed: the
signal goes to the process that the descriptor was opened for, or fails with ESRCH.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.facts import Identity
from gpu_lifecycle.system.procfs import Proc


class Held:
    """One process, held by a pidfd. Use in a ``with`` block."""

    def __init__(self, identity: Identity, fd: int) -> None:
        self.identity = identity
        self.fd = fd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def send(self, number: signal.Signals) -> bool:
        """False: it is gone already. Raises PermissionError where the kernel refuses."""
        try:
            signal.pidfd_send_signal(self.fd, number)
        except ProcessLookupError:
            return False
        return True

    def gone(self) -> bool:
        """True once every thread of the process has exited (a pidfd is readable then)."""
        poller = select.poll()  # select(2) knows no descriptor above 1023
        poller.register(self.fd, select.POLLIN)
        return bool(poller.poll(0))


def make_room() -> None:
    """Raises our own soft limit of descriptors to the hard one (getrlimit(2)): each process held takes one."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def hold(identity: Identity, proc: Proc) -> Held | None:
    """Opens a pidfd and proves that it is that very process. None: it is gone, or the pid is another's by now.

    Raises BlindError where the kernel has no pidfds or a filter forbids them: nothing is signalled then.
    """
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        raise BlindError(
            f"cannot hold process {identity.pid} by a pidfd: {error.strerror}",
            hint="Linux 5.3 or newer is needed, and no seccomp filter on pidfd_open",
        ) from error
    if proc.identity(identity.pid) == identity:
        return Held(identity, fd)
    os.close(fd)
    return None


def wait_gone(held: Iterable[Held], seconds: float, tick: Callable[[int, float], None] | None = None) -> list[Held]:
    """Waits until all are gone, at most ``seconds``; returns those that still live.

    ``tick(left, seconds_left)`` is called at least once a second, so that the wait can be shown.
    """
    rest = [item for item in held if not item.gone()]
    deadline = time.monotonic() + seconds
    while rest:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        if tick:
            tick(len(rest), left)
        poller = select.poll()
        for item in rest:
            poller.register(item.fd, select.POLLIN)
        poller.poll(min(left, 1.0) * 1000)
        rest = [item for item in rest if not item.gone()]
    return rest
