"""The daemon: how soon it says READY=1, and what it costs while nothing happens."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from tests.systemd.site import UNIT

from .bench import Bench, must
from .rows import MB, Row

STARTS = 5
IDLE_SECONDS = 60
KEEP = 3  # milliseconds for which the stand-in driver keeps what it read: a driver reads no files for a call
SETTLE_SECONDS = 6  # more than one interval: the first looks after READY=1 are over
UP = "fired up and ready to roll"
DEFAULTS = '[watch]\ninterval = "5s"\ntimeout = "25s"\n[stop]\ndrain = "5s"\n'


def rows(bench: Bench) -> Iterator[Row]:
    delays = [_start(bench, number) for number in range(STARTS)]
    yield Row(
        "/health turns 200 → the unit is active",
        median(delays),
        "s",
        limit=0.3,
        detail=f"{STARTS} starts; {min(delays) * 1000:.0f} to {max(delays) * 1000:.0f} ms",
    )
    yield from _idle(bench)


def _start(bench: Bench, number: int) -> float:
    """Each start turns healthy at another moment between two looks of the daemon; the last one stays up."""
    bench.site.stop()
    bench.site.configure("--warmup-seconds", f"{0.5 + 0.07 * number:.2f}", extra=DEFAULTS)
    bench.site.start()
    active = int(bench.site.show("ActiveEnterTimestampMonotonic"))
    return (active - _turned_healthy(bench)) / 1e6


def _turned_healthy(bench: Bench) -> int:
    """The stand-in's status flips just before it logs this line, in the same step of its loop (launcher.py, ``_ready``)."""
    run = bench.site.show("InvocationID")
    lines = bench.machine.journal(None, f"_SYSTEMD_INVOCATION_ID={run}")
    seen = [int(line["__MONOTONIC_TIMESTAMP"]) for line in lines if UP in str(line["MESSAGE"])]
    must(len(seen) == 1, f"the engine of one start said {len(seen)} times that it is up")
    return seen[0]


def _idle(bench: Bench) -> Iterator[Row]:
    daemon = int(bench.site.show("MainPID"))
    helper = _helper(bench, daemon)
    bench.machine.nvml.set(f"keep {KEEP}")
    time.sleep(SETTLE_SECONDS)
    before, began = [_cpu(bench, pid) for pid in (daemon, helper)], time.monotonic()
    time.sleep(IDLE_SECONDS)
    after, seconds = [_cpu(bench, pid) for pid in (daemon, helper)], time.monotonic() - began
    must(bench.site.state() == "active", f"{UNIT} did not stay up")
    bench.machine.nvml.clear("keep")
    own, helpers = (100 * (new - old) / seconds for old, new in zip(before, after, strict=True))
    detail = f"{seconds:.0f} s, watch.interval 5s, 8 GPUs, 8 workers; daemon {own:.2f} %, helper {helpers:.2f} %"
    yield Row("daemon and NVML helper, ready and idle: share of one core", own + helpers, "%", limit=0.2, detail=detail)
    for name, limit in (("Pss", 60 * MB), ("Rss", 80 * MB)):
        yield _memory(bench, name, limit, {"daemon": daemon, "helper": helper})


def _helper(bench: Bench, daemon: int) -> int:
    found = bench.site.ask("pgrep", "-P", str(daemon), "-f", "nvml_helper").split()
    must(len(found) == 1, f"the daemon has {len(found)} NVML helpers")
    return int(found[0])


def _cpu(bench: Bench, pid: int) -> float:
    """Seconds of CPU so far: utime and stime of proc_pid_stat(5), the 14th and 15th field; the 3rd comes after ``)``."""
    fields = bench.machine.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(bench: Bench, name: str, limit: int, pids: dict[str, int]) -> Row:
    sizes = {who: _rollup(bench, pid)[name] for who, pid in pids.items()}
    shown = ", ".join(f"{who} {size / MB:.1f} MB" for who, size in sizes.items())
    note = "shared pages divided among their users" if name == "Pss" else "shared pages counted twice"
    what = f"daemon and NVML helper, ready and idle: memory ({name.upper()})"
    return Row(what, sum(sizes.values()), "B", limit=limit, detail=f"{note}; {shown}")


def _rollup(bench: Bench, pid: int) -> dict[str, Any]:
    """Bytes by name, from smaps_rollup of proc(5)."""
    lines = bench.machine.read(f"/proc/{pid}/smaps_rollup").splitlines()[1:]
    return {key: int(value.split()[0]) * 1024 for key, _, value in (line.partition(":") for line in lines)}
