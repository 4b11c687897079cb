"""The door to the GPU locks: one ``flock`` per GPU below ``/run/gpu-lifecycle``, so that two sweeps never meet.

The files belong to root and are closed to others: anyone who could open one could hold every sweep up (flock(2)).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence

from gpu_lifecycle.errors import BusyError, LifecycleError, NotPermittedError
from gpu_lifecycle.facts import Layout


@contextlib.contextmanager
def hold_gpus(layout: Layout, uuids: Sequence[str], seconds: float, tick: Callable[[str, float], None]) -> Iterator[None]:
    """Takes the locks in a fixed order (so that two sweeps cannot block each other), waiting at most ``seconds``.

    ``tick(text, seconds_left)`` is called while waiting. Raises BusyError at the deadline, NotPermittedError without
    the right to lock.
    """
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        for uuid in sorted(set(uuids)):
            fd = _open(layout, uuid)
            stack.callback(os.close, fd)
            while not _try(fd):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BusyError(
                        f"cannot sweep GPU {uuid}: another sweep has held its lock for {seconds:g} s",
                        hint=f"see who holds it: lslocks | grep {uuid}",
                    )
                tick(f"another sweep of GPU {uuid} is running", left)
                time.sleep(0.1)
        yield


def _open(layout: Layout, uuid: str) -> int:
    path = layout.lock(uuid)
    try:
        os.makedirs(layout.run_dir, mode=0o755, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except PermissionError as error:
        raise NotPermittedError(f"cannot lock GPU {uuid} ({path}): {error.strerror}", hint="run as root") from error
    except OSError as error:  # a planted link, a full or read-only file system
        raise LifecycleError(f"cannot lock GPU {uuid} ({path}): {error.strerror}", hint=f"look at {layout.run_dir}") from error


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
