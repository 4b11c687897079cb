"""Which machines exist: each has a locked record, so that what a killed test run left is known to be dead."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

RECORDS = Path("/run")
PREFIX = "gpu-lifecycle-test-machine-"


def cgroup2() -> Path:
    """Where the unified hierarchy is mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(place.split()[4])
    raise RuntimeError("no cgroup v2 hierarchy is mounted: a test machine needs one")


class Record:
    """A machine's name, cgroup and disk; its lock goes with the process that holds it."""

    def __init__(self, disk: Path) -> None:
        self.name = f"{PREFIX}{os.getpid()}-{time.monotonic_ns()}"
        self.cgroup = cgroup2() / self.name
        self.disk = disk
        self.path = RECORDS / f"{self.name}.json"
        new = RECORDS / f".{self.name}"
        self._lock = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.write_text(json.dumps({"cgroup": str(self.cgroup), "disk": str(disk)}))
        new.rename(self.path)

    def erase(self) -> None:
        remove_cgroup(self.cgroup)
        shutil.rmtree(self.disk, ignore_errors=True)
        self.path.unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def erase_the_dead() -> None:
    """Remove what machines left whose test run is gone."""
    for path in RECORDS.glob(f"{PREFIX}*.json"):
        with _record_of_the_dead(path) as text:
            if text:
                record = json.loads(text)
                remove_cgroup(Path(record["cgroup"]))
                shutil.rmtree(record["disk"], ignore_errors=True)
                path.unlink(missing_ok=True)


def remove_cgroup(top: Path, timeout: float = 10) -> None:
    """Kill what is in it and take it away, from the leaves up."""
    deadline = time.monotonic() + timeout
    while top.is_dir():
        with contextlib.suppress(OSError):
            (top / "cgroup.kill").write_text("1")
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{top} does not go away: {processes(top)}")
        time.sleep(0.005)


def processes(top: Path) -> list[int]:
    """Every process in a group and those below it, as this process sees them."""
    found: list[int] = []
    for folder, _, _ in os.walk(top):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()]
    return found


@contextlib.contextmanager
def _record_of_the_dead(path: Path) -> Iterator[str]:
    """The record, locked, if no living process has it; else nothing."""
    try:
        file = path.open("r+")
    except FileNotFoundError:
        yield ""
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield ""
        else:
            yield file.read()
