"""The door to the question "who has an NVIDIA device node open or mapped", asked by device number.

A number finds a holder whatever the node is called in its mount namespace, deleted or not; ``fuser`` and ``lsof`` compare
inodes and miss containers. Numbers: 195 is NVIDIA's static major (``Documentation/admin-guide/devices.txt``), the rest
is what the driver registered in ``/proc/devices``.
"""

from __future__ import annotations

import os
import re
import stat as st
from dataclasses import dataclass

from gpu_lifecycle.facts import Node, Process, Scan, Sight
from gpu_lifecycle.system.cgroup import Cgroup
from gpu_lifecycle.system.procfs import Proc, read_bytes

NVIDIA_MAJOR = 195
_NODE = re.compile(r"^nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-nvswitch\d+|-nvswitchctl|-nvlink|-vgpuctl|-vgpu\d+)$")
_MAP_LINE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ +(/.*)$")


@dataclass(frozen=True, slots=True)
class Devices:
    """What counts as an NVIDIA device on this machine. ``wrong``: nodes whose major the driver never registered."""

    nodes: tuple[Node, ...]
    majors: frozenset[int]
    wrong: tuple[str, ...] = ()

    def has(self, rdev: int) -> bool:
        return os.major(rdev) in self.majors

    def minor_of(self, rdev: int) -> int | None:
        """The GPU minor behind a device number; None for nodes that belong to no particular GPU."""
        for node in self.nodes:
            if node.rdev == rdev:
                return node.minor
        if os.major(rdev) == NVIDIA_MAJOR and os.minor(rdev) < 248:
            return os.minor(rdev)  # nv-chardev-numbers.h: 0..247 are GPUs
        return None

    def is_uvm(self, rdev: int) -> bool:
        return any(node.rdev == rdev and node.path.endswith("nvidia-uvm") for node in self.nodes)


def parse_majors(text: str) -> frozenset[int]:
    """Majors of NVIDIA's character devices in ``/proc/devices`` (proc_devices(5)), and the static one."""
    characters = text.partition("Block devices:")[0]
    found = {NVIDIA_MAJOR}
    for line in characters.splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and name.strip().startswith("nvidia"):
            found.add(int(number))
    return frozenset(found)


def find_devices(dev: str = "/dev", proc: str = "/proc") -> Devices:
    """The nodes of this machine. A missing ``/proc/devices`` leaves the static major."""
    try:
        majors = parse_majors(read_bytes(f"{proc}/devices").decode("utf-8", "replace"))
    except OSError:
        majors = frozenset({NVIDIA_MAJOR})
    nodes: list[Node] = []
    wrong: list[str] = []
    for name in sorted(os.listdir(dev)) if os.path.isdir(dev) else []:
        match = _NODE.match(name)
        if not match:
            continue
        path = f"{dev}/{name}"
        try:
            info = os.stat(path)
        except OSError:
            continue
        if not st.S_ISCHR(info.st_mode) or os.major(info.st_rdev) not in majors:
            wrong.append(path)
            continue
        minor = int(match[1]) if match[1].isdecimal() else None
        nodes.append(Node(path, info.st_rdev, minor))
    return Devices(tuple(nodes), majors, tuple(wrong))


class Scanner:
    """Looks through all processes once per ``scan()``."""

    def __init__(self, proc: Proc, devices: Devices) -> None:
        self.proc = proc
        self.devices = devices
        self._unreadable: list[int] = []

    def scan(self, cgroup: str = "") -> Scan:
        """All holders, and the members of ``cgroup`` (a path as ``/proc/PID/cgroup`` shows it; "": none).

        Raises OSError only where ``/proc`` itself cannot be listed.
        """
        self._unreadable = []
        pids = self.proc.pids()
        holders = {pid: process for pid in pids if (process := self._look(pid))}
        inside = self._members(cgroup, pids) if cgroup else []
        members = [member for pid in inside if (member := holders.get(pid) or self.proc.describe(pid))]
        alive = tuple(member for member in members if self.proc.is_alive(member.identity))
        return Scan(tuple(holders.values()), alive, self._sight(len(pids)), len(pids))

    def _members(self, cgroup: str, pids: list[int]) -> list[int]:
        """Processes of a cgroup: from its own list where the hierarchy is mounted, else from every process."""
        group = Cgroup(cgroup)
        if group.usable:
            return sorted(group.pids())
        return [pid for pid in pids if _inside(self.proc.cgroup(pid), cgroup)]

    def _look(self, pid: int) -> Process | None:
        held, how = self.held(pid)
        if not held:
            return None
        stat = self.proc.stat(pid)
        return self.proc.describe(pid, devices=held, how=how) if stat and not stat.kernel_thread else None

    def held(self, pid: int) -> tuple[frozenset[int], tuple[str, ...]]:
        """Device numbers that one process holds right now, and how ("fd", "map")."""
        by_fd = self._by_fd(pid)
        by_map = self._by_map(pid)
        how = tuple(word for word, found in (("fd", by_fd), ("map", by_map)) if found)
        return frozenset(by_fd | by_map), how

    def _by_fd(self, pid: int) -> set[int]:
        found, count, refused = self._fd_table(f"{self.proc.root}/{pid}/fd")
        if refused:
            self._unreadable.append(pid)
        if count == 0 and not refused:
            # A leader that has exited shows an empty table while its threads still hold everything.
            stat = self.proc.stat(pid)
            found |= self._by_tasks(pid) if stat and not stat.kernel_thread else set()
        return found

    def _by_tasks(self, pid: int) -> set[int]:
        try:
            tasks = os.listdir(f"{self.proc.root}/{pid}/task")
        except OSError:
            return set()
        found: set[int] = set()
        for task in tasks:
            if task != str(pid):
                found |= self._fd_table(f"{self.proc.root}/{pid}/task/{task}/fd")[0]
        return found

    def _fd_table(self, path: str) -> tuple[set[int], int, bool]:
        """Numbers held through one descriptor table, how many descriptors it has, and whether it was refused."""
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            return set(), 0, True
        except OSError:
            return set(), 0, False
        try:
            return self._numbers(directory)
        finally:
            os.close(directory)

    def _numbers(self, directory: int) -> tuple[set[int], int, bool]:
        try:
            names = os.listdir(directory)
        except PermissionError:
            return set(), 0, True
        except OSError:
            return set(), 0, False
        found: set[int] = set()
        for name in names:
            try:
                info = os.stat(name, dir_fd=directory)
            except OSError:
                continue  # closed meanwhile
            if st.S_ISCHR(info.st_mode) and self.devices.has(info.st_rdev):
                found.add(info.st_rdev)
        return found, len(names), False

    def _by_map(self, pid: int) -> set[int]:
        """Numbers held by mappings (proc_pid_maps(5)); the link in ``map_files`` gives the number of the node."""
        try:
            text = read_bytes(f"{self.proc.root}/{pid}/maps", 64 * 1024 * 1024)
        except OSError:
            return set()
        if b"/dev/" not in text and b"nvidia" not in text:
            return set()
        found: set[int] = set()
        for line in text.splitlines():
            if b"/dev/" in line or b"nvidia" in line:
                found |= self._mapped(pid, line)
        return found

    def _mapped(self, pid: int, line: bytes) -> set[int]:
        match = _MAP_LINE.match(line)
        if not match:
            return set()
        start, end = match[1].lstrip(b"0") or b"0", match[2].lstrip(b"0") or b"0"
        for path in (f"{self.proc.root}/{pid}/map_files/{start.decode()}-{end.decode()}", os.fsdecode(match[3])):
            try:
                info = os.stat(path)
            except OSError:
                continue
            return {info.st_rdev} if st.S_ISCHR(info.st_mode) and self.devices.has(info.st_rdev) else set()
        return set()

    def _sight(self, total: int) -> Sight:
        # Processes of a security module's making (the init of some virtual machines) refuse even root; what
        # matters is how many there are, and that nothing is called free because of what could not be seen.
        hidden = [pid for pid in self._unreadable if self.proc.stat(pid) is not None]
        if hidden and not (os.geteuid() == 0 and hidden == [1]):
            shown = ", ".join(str(pid) for pid in hidden[:5]) + (", ..." if len(hidden) > 5 else "")
            return Sight((f"{len(hidden)} of {total} processes cannot be read (pid {shown}): run as root",))
        return Sight()


def _inside(path: str, cgroup: str) -> bool:
    return path == cgroup or path.startswith(cgroup + "/")
