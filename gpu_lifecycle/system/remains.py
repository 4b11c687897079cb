"""The door to the files that engines leave in the host's ``/dev/shm`` and ``/tmp``: lists, asks who holds them, removes.

A directory is opened once, through no link; all else happens through its descriptor, on names in it, following nothing and
never descending. Everybody may write there: what was judged is looked at again in the moment before it is removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import signal
import socket
import stat as st
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Self

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.rules.quantity import show_count
from gpu_lifecycle.rules.remains import FILE, SHM, SOCKET, TMP, Moment, Owner, Remain, Seen, meant, named
from gpu_lifecycle.system.holders import is_refused, shares_table
from gpu_lifecycle.system.procfs import GONE, Proc, Stat, read_bytes
from gpu_lifecycle.system.statx import Look

ENTRIES = 10_000  # of one directory, at most
ROUNDS = 5  # over /proc: a file may be handed on to a process that began during the last one
SECONDS = 5.0  # for the look at all processes
MAPS_LIMIT = 64 << 20

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {st.S_IFREG: FILE, st.S_IFSOCK: SOCKET, st.S_IFLNK: "link", st.S_IFDIR: "directory", st.S_IFIFO: "pipe"}
_MAP_LINE = re.compile(rb"^\S+ \S+ \S+ (\S+) (\d+)[ ]*(?:.*/)?([^/\n]*)$", re.MULTILINE)  # proc_pid_maps(5)


def places(proc: Proc) -> dict[str, str]:
    """Where the host's directories are to be found from here: a hook of a unit with its own ``/dev/shm`` sees its own.

    Where process 1 refuses even root, as in some virtual machines, what is seen from here is all that can be looked at.
    """
    prefix = ""
    with suppress(OSError):
        here, there = (os.readlink(f"{proc.root}/{name}/ns/mnt") for name in ("self", "1"))
        prefix = "" if here == there else f"{proc.root}/1/root"
    return {place: prefix + place for place in (SHM, TMP)}


def owner(user: str) -> Owner:
    """The user of a unit whose ``User=`` is this. Raises BlindError where there is none of that name."""
    if not user:
        return Owner(0, "root")
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        if user.isdecimal():
            return Owner(int(user), user)
        raise BlindError(f"cannot find user {user}") from None
    return Owner(entry.pw_uid, entry.pw_name)


def moment(proc: Proc) -> Moment:
    found = re.search(rb"^btime (\d+)$", read_bytes(f"{proc.root}/stat", 8 << 20), re.MULTILINE)
    return Moment(time.time(), float(found[1]) if found else 0.0)


class Folder:
    """One directory, for use in ``with``. Opening it raises OSError where it is a link or not there."""

    def __init__(self, place: str, path: str) -> None:
        self.place = place
        self.path = path
        self.cut = False  # there were more entries than are looked at
        self._fd = -1

    def __enter__(self) -> Self:
        self._fd = os.open(self.path, _DIRECTORY)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def find(self) -> list[Remain]:
        """The entries that the table means."""
        names = []
        with os.scandir(self._fd) as entries:
            for number, entry in enumerate(entries):
                if number >= ENTRIES:
                    self.cut = True
                    break
                if named(self.place, entry.name):
                    names.append(entry.name)
        found = (self._remain(name) for name in names)
        return [remain for remain in found if remain and meant(remain)]

    def used(self) -> float | None:
        """How full its file system is, of 1; None where that has no meaning."""
        info = os.fstatvfs(self._fd)
        return 1 - info.f_bavail / info.f_blocks if info.f_blocks else None

    def remove(self, remain: Remain) -> str:
        """Removes what is still exactly this and held by nobody. Returns why not; "" where it is gone."""
        try:
            fd = os.open(remain.name, os.O_PATH | os.O_NOFOLLOW if remain.kind == SOCKET else _LOOK, dir_fd=self._fd)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"it cannot be looked at: {error.strerror}"
        try:
            return self._remove(remain, fd)
        except OSError as error:
            return f"it cannot be removed: {error.strerror}"
        finally:
            os.close(fd)

    def _remove(self, remain: Remain, fd: int) -> str:
        if _of_info(self.place, remain.name, os.fstat(fd)) != remain:
            return "it has changed meanwhile"
        holds = _socket_in_use(fd) if remain.kind == SOCKET else _file_in_use(fd)
        if holds:
            return holds
        if self._remain(remain.name) != remain:
            return "it has changed meanwhile"
        os.unlink(remain.name, dir_fd=self._fd)
        return ""

    def _remain(self, name: str) -> Remain | None:
        try:
            return _of_info(self.place, name, os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        except OSError:
            return None


def _of_info(place: str, name: str, info: os.stat_result) -> Remain:
    return Remain(
        place=place,
        name=name,
        kind=_KINDS.get(st.S_IFMT(info.st_mode), "device"),
        uid=info.st_uid,
        device=info.st_dev,
        inode=info.st_ino,
        modified_ns=info.st_mtime_ns,
        size=info.st_blocks * 512,
        links=info.st_nlink,
    )


# The kernel's own word, beside what /proc shows: it knows of descriptors in flight, in rings and in other namespaces.


def _file_in_use(fd: int) -> str:
    """A write lease is given only where no other descriptor or mapping of the file exists (fcntl(2), F_SETLEASE).

    It ends with the descriptor; until then an open of the file waits. A file system without leases leaves it at ``/proc``.
    """
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # one that is ignored: the usual SIGIO would end us
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return "somebody has it open" if error.errno == errno.EAGAIN else ""
    return ""


def _socket_in_use(fd: int) -> str:
    """Only a socket that nobody is bound to refuses a datagram peer; of another type, it says so and notices nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        try:
            peer.connect(f"/proc/self/fd/{fd}")
        except ConnectionRefusedError:
            return ""
        except OSError as error:
            return f"a socket may be bound to it: {error.strerror}"
    return "a socket is bound to it"


# All processes


class Processes:
    """One look at everybody who might own or hold one of ``wanted``."""

    def __init__(self, proc: Proc, wanted: Sequence[Remain]) -> None:
        self.proc = proc
        self.keys = {remain.key for remain in wanted}
        # A mapping's device number may be the file system's own, not the one that stat(2) shows: its name counts too.
        self.mapped = {(_device(remain), str(remain.inode).encode()): remain.key for remain in wanted}
        self.names = {os.fsencode(remain.name): remain.key for remain in wanted}
        self.pids: set[int] = set()
        self.uids: set[int] = set()
        self.held: set[tuple[int, int]] = set()
        self.unreadable: list[int] = []

    def look(self, seconds: float = SECONDS) -> Seen:
        """Until a round finds nobody new. Raises OSError only where ``/proc`` cannot be listed."""
        until = time.monotonic() + seconds
        done: set[int] = set()
        for _ in range(ROUNDS):
            new = [pid for pid in self.proc.pids() if pid not in done]
            if not new:
                return self._seen()
            looked = self.proc.patience.each(new, lambda pid: self._look_until(until, pid))
            self.unreadable += [pid for pid in new if pid not in looked]  # they block whoever looks at their memory
            if not all(looked.values()):
                return self._seen(f"the look at all processes took more than {seconds:g} s")
            done.update(new)
        return self._seen("processes come and go too fast")

    def _seen(self, *limits: str) -> Seen:
        hidden = [pid for pid in self.unreadable if os.path.exists(f"{self.proc.root}/{pid}")]
        if hidden:
            limits = (*limits, f"{show_count(len(hidden), 'process')} cannot be read, such as {hidden[0]}")
        return Seen(frozenset(self.pids), frozenset(self.uids), frozenset(self.held), limits)

    def _look_until(self, until: float, pid: int) -> bool:
        """False where the time was up before."""
        if time.monotonic() > until:
            return False
        self._look(pid)
        return True

    def _look(self, pid: int) -> None:
        try:
            stat = self.proc.stat(pid)
        except BlindError:
            stat = None
        status = self.proc.status(pid)
        if stat is None or "Uid" not in status:
            self.unreadable.append(pid)  # gone, if it does not exist at the end
            return
        if stat.kernel_thread or (stat.zombie and stat.threads <= 1):
            return
        self.pids.update((pid, *map(int, status.get("NSpid", "").split())))
        self.uids.update(map(int, status["Uid"].split()))
        try:
            self._files(pid, stat)
            self._mappings(pid)
        except OSError as error:
            if error.errno not in GONE:
                self.unreadable.append(pid)

    def _files(self, pid: int, stat: Stat) -> None:
        folder = f"{self.proc.root}/{pid}"
        self._table(f"{folder}/fd")
        if stat.threads > 1:
            for task in os.listdir(f"{folder}/task"):
                if task != str(pid) and (stat.zombie or not shares_table(pid, int(task))):
                    with suppress(FileNotFoundError, ProcessLookupError):
                        self._table(f"{folder}/task/{task}/fd")

    def _table(self, path: str) -> None:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            look = Look()
            for name in os.listdir(directory):
                if look.at(directory, name):
                    self.held.update(self.keys & {(look.device, look.inode)})
                elif is_refused(directory, name):
                    raise PermissionError(errno.EACCES, f"descriptor {name}")
        finally:
            os.close(directory)

    def _mappings(self, pid: int) -> None:
        text = read_bytes(f"{self.proc.root}/{pid}/maps", MAPS_LIMIT)
        if len(text) >= MAPS_LIMIT:
            self.unreadable.append(pid)
        self.held.update(self._held_by_maps(_MAP_LINE.findall(text)))

    def _held_by_maps(self, lines: Iterable[tuple[bytes, bytes, bytes]]) -> set[tuple[int, int]]:
        found = set()
        for device, inode, name in lines:
            found.update({self.mapped.get((device, inode)), self.names.get(name)} - {None})
        return {key for key in found if key}


def _device(remain: Remain) -> bytes:
    """As a line of maps shows it."""
    return f"{os.major(remain.device):02x}:{os.minor(remain.device):02x}".encode()
