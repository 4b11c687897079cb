"""The door to the members of a cgroup: ``cgroup.procs`` of cgroups(7), version 2."""

from __future__ import annotations

import os

from gpu_lifecycle.errors import BlindError


def mount_point(mountinfo: str) -> str:
    """Where cgroup v2 is mounted, from the text of ``/proc/self/mountinfo`` (proc_pid_mountinfo(5)); "": nowhere."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if right.split(" ", 1)[0] == "cgroup2":
            return left.split(" ")[4]
    return ""


class Cgroup:
    """One cgroup of our own, by its path as ``/proc/PID/cgroup`` shows it."""

    def __init__(self, path: str, mount: str | None = None) -> None:
        self.path = path
        if mount is None:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
                mount = mount_point(file.read())
        self.folder = f"{mount}{path}" if mount else ""

    @property
    def usable(self) -> bool:
        return bool(self.folder) and self.path not in ("", "/") and os.path.isdir(self.folder)

    def pids(self) -> set[int]:
        """All processes in it and below. Raises BlindError where it cannot be read."""
        found: set[int] = set()
        for folder, _, _ in os.walk(self.folder):
            try:
                with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
                    found |= {int(line) for line in file}
            except FileNotFoundError:
                continue  # removed meanwhile: nobody was in it
            except OSError as error:
                raise BlindError(f"cannot read the members of cgroup {self.path}: {error.strerror}") from error
        return found

    def oom_kills(self) -> int | None:
        """How many processes in it the kernel has ended for memory (memory.events of cgroup-v2); None: not counted here."""
        try:
            with open(f"{self.folder}/memory.events", encoding="ascii") as file:
                counts = dict(line.split() for line in file)
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            return None
