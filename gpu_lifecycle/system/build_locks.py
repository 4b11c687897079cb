"""The door to the lock files of just-in-time builds, and to who has them open or locked. Bounded in time and number."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from gpu_lifecycle.rules.build_locks import BATON, BuildLock
from gpu_lifecycle.system.procfs import Proc, read_bytes
from gpu_lifecycle.system.statx import Look

DEPTH = 6
ENTRIES = 50_000
SECONDS = 3.0


def find(places: Iterable[str], proc: Proc) -> list[BuildLock]:
    """All lock files below ``places``, following no links."""
    until = time.monotonic() + SECONDS
    found: dict[tuple[int, int], tuple[str, float]] = {}
    budget = [ENTRIES]
    for place in places:
        for path in _walk(place, DEPTH, until, budget):
            with suppress(OSError):
                info = os.stat(path, follow_symlinks=False)
                found[info.st_dev, info.st_ino] = (path, info.st_mtime)
    if not found:
        return []
    holders = _open_by(set(found), proc, until)
    for key, pid in _locked(proc):
        if key in found:
            holders.setdefault(key, set()).add(pid)
    return [BuildLock(path, modified, frozenset(holders.get(key, ()))) for key, (path, modified) in found.items()]


def _walk(folder: str, depth: int, until: float, budget: list[int]) -> Iterator[str]:
    try:
        entries = os.scandir(folder)
    except OSError:
        return
    with entries:
        for entry in entries:
            budget[0] -= 1
            if budget[0] < 0 or time.monotonic() > until:
                return
            if entry.name == BATON or entry.name.endswith(".lock"):
                if entry.is_file(follow_symlinks=False):
                    yield entry.path
            elif depth and entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, depth - 1, until, budget)


def _open_by(keys: set[tuple[int, int]], proc: Proc, until: float) -> dict[tuple[int, int], set[int]]:
    """Who has one of these files open, of the processes that may be looked at."""
    found: dict[tuple[int, int], set[int]] = {}
    look = Look()
    for pid in proc.pids():
        if time.monotonic() > until:
            break
        with suppress(OSError):
            directory = os.open(f"{proc.root}/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for name in os.listdir(directory):
                    if look.at(directory, name) and (key := (look.device, look.inode)) in keys:
                        found.setdefault(key, set()).add(pid)
            finally:
                os.close(directory)
    return found


def _locked(proc: Proc) -> Iterator[tuple[tuple[int, int], int]]:
    """Lines of proc_locks(5): number, kind, mode, access, pid, MAJOR:MINOR:INODE, range. One that waits has an arrow."""
    try:
        lines = read_bytes(f"{proc.root}/locks").decode("ascii", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if len(fields) == 8 and fields[4].isdecimal() and fields[5].count(":") == 2:
            major, minor, inode = fields[5].split(":")
            with suppress(ValueError):
                yield (os.makedev(int(major, 16), int(minor, 16)), int(inode)), int(fields[4])
