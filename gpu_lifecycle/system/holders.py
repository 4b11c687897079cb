"""The door to the question "who has an NVIDIA device node open or mapped", asked by device number.

A number finds a holder whatever the node is called in its mount namespace, deleted or not; ``fuser`` and ``lsof`` compare
inodes and miss containers. Looked at: the descriptor table of each process and of each thread that has one of its own, the
tables of threads whose leader has exited, mappings whose descriptor is closed, and files registered with an io_uring.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import stat as st
from collections.abc import Callable, Iterator

from gpu_lifecycle.facts import Identity, Process, Scan, Sight
from gpu_lifecycle.system import sight
from gpu_lifecycle.system.cgroup import Cgroup
from gpu_lifecycle.system.devices import Devices
from gpu_lifecycle.system.patience import Patience
from gpu_lifecycle.system.procfs import GONE, Proc, read_bytes
from gpu_lifecycle.system.statx import HERE, own_look
from gpu_lifecycle.system.worker import Worker

# Start, end, "s" for a shared mapping, path: a device is mapped shared, or is named as one (proc_pid_maps(5)).
_MAP_LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) ...([sp]) \S+ \S+ \d+ +(/.*)")
_MARKS = (b"s ", b"/dev/", b"nvidia")
_NO_DEVICES = (b"/dev/shm/", b"/memfd:", b"/SYSV", b"/dev/zero")
_RING_FILE = re.compile(r"^\s+\d+: (.+)$", re.MULTILINE)
SPLIT = 200  # from so many processes on, a second process looks through half of them: its start costs about as much as 10
ANSWER_SECONDS = 3.0  # for the worker to end its half after we have ended ours
KCMP_FILES = 2  # kcmp(2): do two tasks share their descriptor table
KCMP_NUMBERS = {"x86_64": 312, "aarch64": 272}  # its system call, by machine

Held = tuple[frozenset[int], tuple[str, ...]]
NONE: Held = (frozenset(), ())


class Scanner:
    """Looks through all processes once per ``scan()``."""

    def __init__(self, proc: Proc, devices: Devices, *, split: int = SPLIT, worker: Callable[[], Worker] | None = None) -> None:
        """``split``: from so many processes on, half is left to a ``worker``."""
        self.proc = proc
        self.devices = devices
        self.split = split
        self.worker = worker or Worker
        self.helped = False  # whether a worker gave the answer for its half at the last scan
        # Of its own: a kernel may show the mappings of a process whose command line it does not (6.18 does: per-VMA locks).
        self.patience = Patience()
        self._unreadable: list[int] = []
        self._blocked: list[int] = []
        self._hidden: str | None = None  # why some processes are not even listed; None: not asked yet

    def scan(self, cgroup: str = "") -> Scan:
        """All holders, and the members of ``cgroup`` (a path as ``/proc/PID/cgroup`` shows it; "": none).

        Raises OSError only where ``/proc`` itself cannot be listed.
        """
        self._unreadable, self._blocked, self._hidden = [], [], None
        pids = self.proc.pids()
        looked = ((pid, self._describe(pid, *held)) for pid, held in self._all_held(pids).items())
        holders = {pid: process for pid, process in looked if process}
        inside = self._members(cgroup, pids) if cgroup else []
        members = [member for pid in inside if (member := holders.get(pid) or self.proc.describe(pid))]
        alive = tuple(member for member in members if self.proc.is_alive(member.identity))
        return Scan(tuple(holders.values()), alive, self._sight(len(pids)), len(pids), self._blocking())

    def _members(self, cgroup: str, pids: list[int]) -> list[int]:
        """Processes of a cgroup: from its own list where the hierarchy is mounted, else from every process."""
        group = Cgroup(cgroup)
        if group.usable:
            return sorted(group.pids())
        return [pid for pid in pids if _inside(self.proc.cgroup(pid), cgroup)]

    def _all_held(self, pids: list[int]) -> dict[int, Held]:
        """What each of them holds, without those that hold nothing.

        Of many, half is looked through by a worker. A half that it does not give an answer for is looked through here.
        """
        if len(pids) < self.split or not self._may_fork():
            return self._each(pids)
        with contextlib.closing(self.worker()) as worker:
            worker.start(lambda: ({pid: held for pid in pids[1::2] if (held := self._held(pid))[0]}, self._unreadable))
            self._hidden = sight.hidden(self.proc)  # here it costs nothing: the worker begins later than we
            found = self._each(pids[::2])
            answer = worker.answer(ANSWER_SECONDS)
        self.helped = answer is not None
        if answer is None:
            return found | self._each(pids[1::2])
        others: dict[int, Held] = answer[0]
        self._unreadable += answer[1]
        return found | others

    def _each(self, pids: list[int]) -> dict[int, Held]:
        """A process that blocks whoever looks at its memory holds what its descriptors show."""
        found = self.patience.each(pids, self._held)
        blocked = [pid for pid in pids if pid not in found]
        self._blocked += blocked
        found |= {pid: (frozenset(by_fd), ("fd",)) for pid in blocked if (by_fd := self._by_fd(pid))}
        return {pid: held for pid, held in found.items() if held[0]}

    def _may_fork(self) -> bool:
        """A fork copies only the thread that calls it, and its end must be ours to wait for."""
        alone = self._threads(os.getpid()) == 1 and signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
        return alone and len(os.sched_getaffinity(0)) > 1

    def _describe(self, pid: int, devices: frozenset[int], how: tuple[str, ...]) -> Process | None:
        stat = self.proc.stat(pid)
        return self.proc.describe(pid, devices=devices, how=how) if stat and not stat.kernel_thread else None

    def held(self, pid: int) -> Held:
        """Device numbers that one process holds right now, and how ("fd", "map")."""
        return self._each([pid]).get(pid, NONE)

    def _held(self, pid: int) -> Held:
        by_fd = self._by_fd(pid)
        if by_fd is None:
            return NONE
        by_map = self._by_map(pid)
        if not by_fd and not by_map:
            return NONE
        how = tuple(word for word, found in (("fd", by_fd), ("map", by_map)) if found)
        return frozenset(by_fd | by_map), how

    # Descriptors

    def _by_fd(self, pid: int) -> set[int] | None:
        """None: a thread of the kernel, which has neither descriptors nor mappings."""
        found, count, refused = self._fd_table(f"{self.proc.root}/{pid}")
        if refused:
            self._unreadable.append(pid)
        elif count == 0:
            # A leader that has exited shows an empty table while its threads still hold everything.
            stat = self.proc.stat(pid)
            if stat and stat.kernel_thread:
                return None
            found |= self._by_tasks(pid, lambda _: True) if stat else set()
        elif self._threads(pid) > 1:
            found |= self._by_tasks(pid, lambda task: not shares_table(pid, task))
        return found

    def _threads(self, pid: int) -> int:
        """A folder of ``/proc`` has two links and one for each folder in it: so many threads, for one call."""
        try:
            return os.stat(f"{self.proc.root}/{pid}/task").st_nlink - 2
        except OSError:
            return 0

    def _by_tasks(self, pid: int, wanted: Callable[[int], bool]) -> set[int]:
        try:
            tasks = os.listdir(f"{self.proc.root}/{pid}/task")
        except OSError:
            return set()
        found: set[int] = set()
        for task in tasks:
            if task != str(pid) and wanted(int(task)):
                found |= self._fd_table(f"{self.proc.root}/{pid}/task/{task}")[0]
        return found

    def _fd_table(self, folder: str) -> tuple[set[int], int, bool]:
        """Numbers held through one descriptor table, how many descriptors it has, and whether it was refused."""
        try:
            directory = os.open(f"{folder}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            return set(), 0, error.errno not in GONE
        try:
            return self._numbers(directory, folder)
        finally:
            os.close(directory)

    def _numbers(self, directory: int, folder: str) -> tuple[set[int], int, bool]:
        try:
            names = os.listdir(directory)
        except OSError as error:
            return set(), 0, error.errno not in GONE
        found, anonymous, failed = own_look().sort(directory, names, self.devices.majors)
        for name in anonymous:
            found |= self._by_ring(name, directory, folder)
        return found, len(names), any(is_refused(directory, name) for name in failed)

    def _by_ring(self, name: str, directory: int, folder: str) -> set[int]:
        """Files registered with an io_uring have no descriptor; its ``fdinfo`` shows their names, if not their numbers."""
        try:
            if os.readlink(name, dir_fd=directory) != "anon_inode:[io_uring]":
                return set()
            text = read_bytes(f"{folder}/fdinfo/{name}").decode("utf-8", "replace")
        except OSError:
            return set()
        registered = text.partition("UserFiles:")[2].partition("UserBufs:")[0]
        names = {os.path.basename(shown) for shown in _RING_FILE.findall(registered)}
        return {node.rdev for node in self.devices.nodes if os.path.basename(node.path) in names}

    # Mappings

    def _by_map(self, pid: int) -> set[int]:
        """Numbers held by mappings (proc_pid_maps(5)); the link in ``map_files`` gives the number of the node."""
        try:
            text = read_bytes(f"{self.proc.root}/{pid}/maps", 64 * 1024 * 1024)
        except OSError as error:
            if error.errno not in GONE:
                self._unreadable.append(pid)
            return set()
        found: set[int] = set()
        for line in set(_marked_lines(text)):
            match = _MAP_LINE.fullmatch(line)
            if match is None:
                continue
            start, end, shared, path = match.groups()
            # Also a file that others map is looked at here: where the lock of a process's memory hangs, the kernel may show its
            # mappings all the same, and this look is what finds that out.
            if (shared == b"s" or b"/dev/" in path or b"nvidia" in path) and not path.startswith(_NO_DEVICES):
                found |= self._mapped(pid, start, end, path)
        return found

    def _mapped(self, pid: int, start: bytes, end: bytes, path: bytes) -> set[int]:
        area = f"{start.lstrip(b'0').decode() or '0'}-{end.lstrip(b'0').decode() or '0'}"
        look = own_look()
        mode = look.at(HERE, f"{self.proc.root}/{pid}/map_files/{area}")
        if not mode and (path.startswith(b"/dev/") or b"nvidia" in path):  # the path of another may lead us anywhere
            mode = look.at(HERE, os.fsdecode(path))
        return {look.rdev} if st.S_ISCHR(mode) and self.devices.has(look.rdev) else set()

    def _blocking(self) -> tuple[Identity, ...]:
        found = (self.proc.identity(pid) for pid in sorted(set(self._blocked)))
        return tuple(identity for identity in found if identity)

    def _sight(self, total: int) -> Sight:
        # The init of some virtual machines refuses even root. It alone is let pass: process 1 starts no CUDA, and a machine
        # that hides it would never start a unit at all. Any other process that cannot be read makes sight partial.
        why = sight.hidden(self.proc) if self._hidden is None else self._hidden
        limits = [why] if why else []
        hidden = [pid for pid in sorted(set(self._unreadable)) if os.path.lexists(f"{self.proc.root}/{pid}")]
        if hidden and not (os.geteuid() == 0 and hidden == [1]):
            shown = ", ".join(str(pid) for pid in hidden[:5]) + (", ..." if len(hidden) > 5 else "")
            limits.append(f"{len(hidden)} of {total} processes cannot be read (pid {shown}): {sight.grant(self.proc)}")
        return Sight(tuple(limits))


def _marked_lines(text: bytes) -> Iterator[bytes]:
    """The few lines of a list of mappings that may be of a device; taking every line apart would cost most of a look."""
    for mark in _MARKS:
        at = text.find(mark)
        while at >= 0:
            end = text.find(b"\n", at)
            end = len(text) if end < 0 else end
            yield text[text.rfind(b"\n", 0, at) + 1 : end]
            at = text.find(mark, end)


def is_refused(directory: int, name: str) -> bool:
    """Whether a descriptor is there and may not be looked at: an open folder of them may be listed all the same."""
    try:
        os.readlink(name, dir_fd=directory)
    except OSError as error:
        return error.errno not in GONE
    return False


def _inside(path: str, cgroup: str) -> bool:
    return path == cgroup or path.startswith(cgroup + "/")


@functools.cache
def _kcmp() -> Callable[[int, int], int] | None:
    """kcmp(2) for descriptor tables; None on a machine whose number for it is not known."""
    import ctypes

    number = KCMP_NUMBERS.get(os.uname().machine)
    if number is None:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return lambda one, two: int(libc.syscall(number, one, two, KCMP_FILES, 0, 0))


def shares_table(pid: int, task: int) -> bool:
    """Whether a thread uses its process's descriptor table. False where that cannot be found out: then it is looked at."""
    compare = _kcmp()
    return compare is not None and compare(pid, task) == 0
