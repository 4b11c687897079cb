"""The door to a command of the user's that is to be told something: bounded in time, with all that it starts.

It gets a session of its own; whatever is left of that is killed at its end. It is executed by a shell that only executes it
(``exec "$@"``): a program on a dead network file system then hangs in a child, not in the fork of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping

from gpu_lifecycle.rules.quantity import show_duration

LAST = 0.2  # seconds for what was killed to be gone; the loop waits, so that no cancellation leaves half of it
NOT_EXECUTED = {126: "it may not be executed", 127: "it is not there"}  # exit statuses of sh(1)


async def call_out(
    command: tuple[str, ...], environment: Mapping[str, str], data: bytes, limit: float, born: Callable[[int], None]
) -> str:
    """Runs it with ``data`` on its standard input. Returns "" for well, else how it failed, in words.

    ``born`` gets its pid, which is its session's, too. Cancelled, it is killed.
    """
    try:
        process = _start(command, environment, data)
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    born(process.pid)
    in_time = await _end(process, limit)
    status = process.poll()
    if not in_time:
        return f"took longer than {show_duration(limit)} (notify.limit), and was killed"
    if status in NOT_EXECUTED:
        return f"exited with status {status}: mostly, {NOT_EXECUTED[status]}"
    if status is None or status == 0:
        return ""
    return f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"


def _start(command: tuple[str, ...], environment: Mapping[str, str], data: bytes) -> subprocess.Popen[bytes]:
    """Its output is ours: under systemd the journal. The input is a file in memory, which nobody has to wait for."""
    given = os.memfd_create("event", os.MFD_CLOEXEC)
    try:
        os.write(given, data)
        os.lseek(given, 0, os.SEEK_SET)
        words = ["/bin/sh", "-c", 'exec "$@"', "sh", *command]
        return subprocess.Popen(words, env=dict(environment), stdin=given, start_new_session=True)
    finally:
        os.close(given)


async def _end(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Waits for its end, then kills what its session still holds. False where it had to be cut off."""
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(process.pid)
    done = asyncio.Event()
    loop.add_reader(pidfd, done.set)
    try:
        return await _within(done, limit)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the number cannot mean another group
        loop.remove_reader(pidfd)
        os.close(pidfd)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that cannot be interrupted is left to the end of the unit
            process.wait(LAST)


async def _within(done: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await done.wait()
    except TimeoutError:
        return False
    return True
