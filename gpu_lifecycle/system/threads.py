"""The door to a process that does not end: its threads, what has frozen it, what it may wait for. And to thawing our own.

Nothing here can get stuck behind it: of a process only stat, status, wchan, cgroup and mountinfo are read, none of which
takes its memory's lock, as cmdline, environ and maps do (fs/proc/base.c). What cannot be read is left out, never an error.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

from gpu_lifecycle.facts import Identity
from gpu_lifecycle.rules.stuck import Frozen, FuseMount, Stuck, Thread
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.system.procfs import Proc, parse_stat, read_bytes

PF_EXITING = 0x00000004  # include/linux/sched.h; field 9 of proc_pid_stat(5)
KILL = 1 << (signal.SIGKILL - 1)
THREADS = 4096  # looked at, at most


def look_closely(identity: Identity, proc: Proc) -> Stuck:
    """What can be seen of a process that does not end; without a thread where it is gone or is another by now."""
    pid = identity.pid
    threads = tuple(_threads(pid, proc))
    leader = parse_stat(_read(f"{proc.root}/{pid}/stat"))
    if leader is None or leader.start_ticks != identity.start_ticks:
        return Stuck(pid)
    mounts = list(_mounts(_text(f"{proc.root}/self/mountinfo")))
    groups = _text(f"{proc.root}/{pid}/cgroup").splitlines()
    freezer = _group(groups, "freezer")
    tracer = next((thread.tracer for thread in threads if thread.tracer), 0)
    return Stuck(
        pid,
        threads,
        (*frozen_v1(mounts, freezer), *frozen_v2(mounts, _group(groups, ""))),
        printable(freezer, 200),
        tuple(_fuse(pid, threads, mounts, proc)),
        printable(_text(f"{proc.root}/{tracer}/comm").strip(), 20) if tracer else "",
    )


def thaw_below(cgroup: str, groups: set[str], proc: Proc) -> list[str]:
    """Thaws those of ``groups`` (version 2) that are frozen at or below ``cgroup``; returns what was thawed."""
    if cgroup in ("", "/"):
        return []
    mounts = list(_mounts(_text(f"{proc.root}/self/mountinfo")))
    below = cgroup + "/"
    inside = {group for group in groups if f"{group}/".startswith(below)}
    frozen = {item for group in inside for item in frozen_v2(mounts, group) if f"{item.cgroup}/".startswith(below)}
    return sorted(item.cgroup for item in frozen if item.file and _write(item.file, "0"))


class Mount:
    """One line of mountinfo (proc_pid_mountinfo(5))."""

    def __init__(self, left: list[str], right: list[str]) -> None:
        self.minor = int(left[2].partition(":")[2])
        self.root = _unescape(left[3])
        self.place = _unescape(left[4])
        self.kind = right[0]
        self.options = right[2].split(",")


def _mounts(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if len(fields) >= 6 and len(tail) >= 3:
            yield Mount(fields, tail)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _threads(pid: int, proc: Proc) -> Iterator[Thread]:
    try:
        names = os.listdir(f"{proc.root}/{pid}/task")
    except OSError:
        return
    for name in names[:THREADS]:
        folder = f"{proc.root}/{pid}/task/{name}"
        stat = parse_stat(_read(f"{folder}/stat"))
        if stat is not None:
            status = dict(line.partition(":")[::2] for line in _text(f"{folder}/status").splitlines())
            where = printable(_text(f"{folder}/wchan"), 60)
            yield Thread(
                int(name),
                stat.state,
                "" if where == "0" else where,
                bool((_number(status, "SigPnd", 16) | _number(status, "ShdPnd", 16)) & KILL),
                bool(stat.flags & PF_EXITING),
                _number(status, "TracerPid", 10),
            )


def _number(status: dict[str, str], key: str, base: int) -> int:
    try:
        return int(status.get(key, "0"), base)
    except ValueError:
        return 0


def _group(lines: list[str], controller: str) -> str:
    """The path in the hierarchy of one controller, "" for version 2 (cgroups(7)). "": in none."""
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            return path.removesuffix(" (deleted)")
    return ""


def _folder(mounts: list[Mount], kind: str, option: str, path: str) -> str:
    """Where a cgroup lies in the file system here; "" where its hierarchy is not mounted, or not down to there."""
    for mount in mounts:
        if mount.kind == kind and (not option or option in mount.options) and not path.startswith("/.."):
            root = mount.root.rstrip("/")
            if path == root or path.startswith(root + "/"):
                return mount.place + path.removeprefix(root).rstrip("/")
    return ""


def frozen_v1(mounts: list[Mount], path: str) -> list[Frozen]:
    """The version 1 groups that keep ``path`` frozen, itself and above (Documentation/admin-guide/cgroup-v1/freezer)."""
    folder = _folder(mounts, "cgroup", "freezer", path) if path else ""
    if not folder or _text(f"{folder}/freezer.state").strip() not in ("FROZEN", "FREEZING"):
        return []
    found = [
        Frozen(1, name, f"{at}/freezer.state")
        for name, at in _upwards(path, folder)
        if _text(f"{at}/freezer.self_freezing").strip() == "1"
    ]
    return found or [Frozen(1, path)]


def frozen_v2(mounts: list[Mount], path: str) -> list[Frozen]:
    """The version 2 groups that keep ``path`` frozen, itself and above (cgroups(7), Documentation/admin-guide/cgroup-v2)."""
    folder = _folder(mounts, "cgroup2", "", path) if path else ""
    above = list(_upwards(path, folder)) if folder else []
    found = [Frozen(2, name, f"{at}/cgroup.freeze") for name, at in above if _text(f"{at}/cgroup.freeze").strip() == "1"]
    if not found and folder and "frozen 1" in _text(f"{folder}/cgroup.events").splitlines():
        return [Frozen(2, path)]  # by a group above what can be seen here
    return found


def _upwards(path: str, folder: str) -> Iterator[tuple[str, str]]:
    """A cgroup and those above it, each with its folder."""
    while path not in ("", "/"):
        yield path, folder
        path, folder = path.rpartition("/")[0], folder.rpartition("/")[0]


def _fuse(pid: int, threads: tuple[Thread, ...], ours: list[Mount], proc: Proc) -> Iterator[FuseMount]:
    """The FUSE file systems that it can see: a connection's number is its device's minor (fs/fuse/control.c)."""
    control = next((mount.place for mount in ours if mount.kind == "fusectl"), "")
    tid = next((thread.tid for thread in threads if thread.lives), pid)  # one that has exited has no mounts
    theirs = list(_mounts(_text(f"{proc.root}/{pid}/task/{tid}/mountinfo")))
    minors = {mount.minor for mount in theirs or ours if _is_fuse(mount)}
    places = {mount.minor: mount.place for mount in ours if _is_fuse(mount)}
    for minor in sorted(minors):
        waiting = _text(f"{control}/{minor}/waiting").strip() if control else ""
        number = int(waiting) if waiting.isdecimal() else None
        yield FuseMount(printable(places.get(minor, ""), 200), control and f"{control}/{minor}/abort", number)


def _is_fuse(mount: Mount) -> bool:
    return mount.kind in ("fuse", "fuseblk", "virtiofs") or mount.kind.startswith("fuse.")


def _read(path: str) -> bytes:
    try:
        return read_bytes(path)
    except OSError:
        return b""


def _text(path: str) -> str:
    return _read(path).decode("utf-8", "backslashreplace")


def _write(path: str, text: str) -> bool:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        return False
    return True
