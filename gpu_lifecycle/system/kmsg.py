"""The door to the kernel log, ``/dev/kmsg`` (Documentation/ABI/testing/dev-kmsg of the kernel).

Permission is asked for when it is opened, never when it is read (kernel/printk/printk.c, ``devkmsg_open``): so root can open
it and hand it to a process that has no privilege. Between unit and hook that goes through the service manager's file
descriptor store (sd_notify(3), "FDSTORE=1"), and ends as one of the daemon's LISTEN_FDS (sd_listen_fds(3)).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gpu_lifecycle.errors import BlindError

NAME = "kmsg"  # FDNAME=
FIRST_PASSED = 3  # SD_LISTEN_FDS_START
# One read gives one record. A smaller buffer than the longest record loses that record with EINVAL; the longest is 8 KiB
# (CONSOLE_EXT_LOG_MAX of old kernels; 2 KiB in new ones).
BUFFER = 16 * 1024
MOST = 1000  # records of one reading: a log that is flooded must not hold the loop
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h

_CURES = {
    errno.ENOENT: "in a container, bind the host's /dev/kmsg into it, read-only",
    errno.EPERM: "kernel.dmesg_restrict=1 asks for CAP_SYSLOG: run it by the unit, whose root hook opens the log;"
    " in a container, set kernel.dmesg_restrict=0 on the host, or allow device c 1:11 r",
    errno.EACCES: "run it by the unit, whose root hook opens the log; is FileDescriptorStoreMax=1 still in the unit?",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What was new. ``lost``: how often records were gone before they could be read. ``failed``: why no more will come."""

    data: bytes = b""
    lost: int = 0
    failed: str = ""


class KernelLog:
    """An open kernel log, read without waiting. As a context it closes itself."""

    def __init__(self, fd: int) -> None:
        """Takes the descriptor over; no child inherits it."""
        self.fd = fd
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)

    @classmethod
    def open(cls, path: str) -> Self:
        """Opens it by its path. Raises BlindError where it is missing or not permitted, or is no log."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            hint = _CURES.get(error.errno or 0, "")
            raise BlindError(f"no kernel log: cannot open {path}: {error.strerror}", hint=hint) from error
        if os.isatty(fd):  # containers link it to their console: reading would take away what is typed there
            os.close(fd)
            raise BlindError(f"no kernel log: {path} is a terminal", hint=_CURES[errno.ENOENT])
        return cls(fd)

    @classmethod
    def passed(cls, environment: Mapping[str, str]) -> Self | None:
        """The one that the service manager has handed over (sd_listen_fds(3)); None where it has handed over none."""
        names = environment.get("LISTEN_FDNAMES", "").split(":")
        if environment.get("LISTEN_PID") != str(os.getpid()) or environment.get("LISTEN_FDS") != str(len(names)):
            return None
        return cls(FIRST_PASSED + names.index(NAME)) if NAME in names else None

    def skip(self) -> None:
        """Passes over all that is there. What cannot seek is emptied by reading; what fails here fails at the next read."""
        try:
            os.lseek(self.fd, 0, os.SEEK_END)
        except OSError:
            while not (reading := self.read()).failed and reading.data:
                pass

    def read(self, most: int = MOST) -> Reading:
        """All records that are new, or ``most`` of them. Never waits, never raises."""
        chunks: list[bytes] = []
        lost = 0
        while len(chunks) + lost < most:
            try:
                chunk = os.read(self.fd, BUFFER)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EINVAL):  # overwritten before it was read; longer than the buffer
                    return Reading(b"".join(chunks), lost, f"the kernel log can no longer be read: {error.strerror}")
                lost += 1
                continue
            if not chunk:  # the end of a file that stands in
                break
            chunks.append(chunk)
        return Reading(b"".join(chunks), lost)

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sees_host_pids() -> bool:
    """Whether our pids are the ones that the kernel log names: not so in a PID namespace of a container."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return False
