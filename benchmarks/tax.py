"""What our watching costs a real engine: at its start, at its stop, and in tokens. Each beside the engine alone, in turn."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.engines.conftest import boot
from tests.engines.place import find
from tests.engines.unit import Unit
from tests.machine import Machine

from .bench import INSIDE, CannotMeasureError, must
from .rows import Row

PAIRS = 5
WINDOWS, WINDOW = 6, 8.0  # pairs, and seconds of each half; systemd's watchdog must not miss us meanwhile
SECONDS_MORE, SHARE_MORE, STOP_MORE, TOKENS_LESS = 1.0, 0.03, 0.5, 1.0
BODY = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1})
ASKER = "/run/benchmarks/first_token.py"
TOKENS = {
    "sglang": "sglang:realtime_tokens_total",
    "vllm": "vllm:generation_tokens_total",
    "llama.cpp": "llamacpp:tokens_predicted_total",
}
SERVES = {
    "sglang": "The server is fired up",
    "vllm": "Application startup complete",
    "llama.cpp": "listening on http",
}  # the last word of each before its first answer


def all_rows(tell: Callable[[str], None]) -> Iterator[Row]:
    """Boots a machine with the engines of GPU_LIFECYCLE_ENGINES; each pair is told. RuntimeError where there are none."""
    engines = find()
    with (
        tempfile.TemporaryDirectory(prefix="gpu-lifecycle-tax-") as folder,
        Machine(Path(folder), gpus=4, shown=engines.shown()) as machine,
    ):
        machine.copy(INSIDE / "first_token.py", ASKER)
        for unit in boot(machine, engines).values():
            yield from rows(unit, tell)


def rows(unit: Unit, tell: Callable[[str], None]) -> Iterator[Row]:
    _ours(unit)  # fills the caches, and is not counted
    pairs = list(_pairs(unit, tell))
    name, bare = unit.preset.engine, median(alone.start for _, alone in pairs)
    found = [mine.start - alone.start for mine, alone in pairs]
    detail = (
        f"{PAIRS} pairs, {min(found):.2f} to {max(found):.2f} s; systemctl start to READY=1, less a bare exec to good health "
        f"and a first token, {bare:.2f} s"
    )
    yield Row(f"{name}: start, our own part", median(found), "s", limit=min(SECONDS_MORE, SHARE_MORE * bare), detail=detail)
    yield from _sure(name, pairs, min(SECONDS_MORE, SHARE_MORE * bare))
    found = [mine.stop - alone.stop for mine, alone in pairs]
    detail = f"systemctl stop to proven free, less a bare SIGTERM to its end; {min(found):.2f} to {max(found):.2f} s"
    yield Row(f"{name}: stop, our own part", median(found), "s", limit=STOP_MORE, detail=detail)
    yield from _tokens(unit)


def _pairs(unit: Unit, tell: Callable[[str], None]) -> Iterator[tuple[_Run, _Run]]:
    """The second of a pair finds the machine as the first left it, so that each side comes first in turn."""
    for number in range(1, PAIRS + 1):
        if number % 2:
            mine, alone = _ours(unit), _bare(unit)
        else:
            alone, mine = _bare(unit), _ours(unit)
        told = f"starts {mine.start:.2f} s, bare {alone.start:.2f} s; stops {mine.stop:.2f} s, bare {alone.stop:.2f} s"
        tell(f"{unit.preset.engine}, pair {number} of {PAIRS}: {told}")
        yield mine, alone


def _sure(name: str, pairs: Sequence[tuple[_Run, _Run]], limit: float) -> Iterator[Row]:
    """What of a start is ours for sure, however long the engine took this time."""
    found = [mine.before for mine, _ in pairs]
    detail = f"systemctl start to the engine's exec, {min(found):.2f} to {max(found):.2f} s"
    yield Row(f"{name}: start, before there is an engine", median(found), "s", detail=detail)
    found = [mine.after - alone.after for mine, alone in pairs]
    spread = f"{min(found):.2f} to {max(found):.2f} s"
    detail = f"from the engine's word that it serves to READY=1, less that to a bare first token; {spread}"
    yield Row(f"{name}: start, once the engine serves", median(found), "s", detail=detail)
    found = [mine.before + mine.after - alone.after for mine, alone in pairs]
    detail = f"both of these in each pair, {min(found):.2f} to {max(found):.2f} s: a start without what its load took this time"
    yield Row(f"{name}: start, ours for sure", median(found), "s", limit=limit, detail=detail)
    detail = "CPU time of daemon and helper until READY=1, of which the engine may lose what it needed at that moment"
    yield Row(f"{name}: start, CPU that our watching uses", median(mine.used for mine, _ in pairs), "s", detail=detail)


@dataclass(frozen=True, slots=True)
class _Run:
    """Seconds: to ready, of the stop, from the engine's word that it serves to ready; of ours: until its exec, and of CPU."""

    start: float
    stop: float
    after: float
    before: float = 0.0
    used: float = 0.0


def _ours(unit: Unit) -> _Run:
    """As systemd's own clock and the journal's have them."""
    unit.systemctl("start", timeout=600)
    begun = _stamp(unit, unit.service, "InactiveExit")
    ready, used = _stamp(unit, unit.service, "ActiveEnter"), _used(unit)
    after = ready - _served(unit, unit.service)
    executed = unit.events("engine-started")[-1]["__MONOTONIC_TIMESTAMP"]
    stop = _stop(unit, unit.service)
    must(unit.show("Result") == "success", f"a stop of {unit.service} failed:\n{unit.tail()}")
    return _Run(ready - begun, stop, after, int(executed) / 1e6 - begun, used)


def _bare(unit: Unit) -> _Run:
    name = unit.start_bare()
    base = f"http://127.0.0.1:{unit.preset.port}"
    told = unit.machine.run(["python3", "-I", ASKER, f"{base}/v1/completions", BODY, f"{base}/health"], timeout=700).stdout
    after = float(told) - _served(unit, name)
    return _Run(float(told) - _stamp(unit, name, "ExecMainStart"), _stop(unit, name), after)


def _served(unit: Unit, service: str) -> float:
    """When the engine said so last, in seconds of CLOCK_MONOTONIC."""
    lines = [line for line in unit.machine.journal(service, "-b") if SERVES[unit.preset.engine] in str(line["MESSAGE"])]
    must(bool(lines), f"{service} did not say that it serves")
    return int(lines[-1]["__MONOTONIC_TIMESTAMP"]) / 1e6


def _stamp(unit: Unit, service: str, name: str) -> float:
    """Seconds of CLOCK_MONOTONIC (systemd.service: *TimestampMonotonic, in µs)."""
    return int(unit.ask("systemctl", "show", service, "-P", f"{name}TimestampMonotonic")) / 1e6


def _stop(unit: Unit, service: str) -> float:
    line = f"a=$(date +%s%N); systemctl stop {service}; b=$(date +%s%N); echo $((b - a))"
    return int(unit.ask("sh", "-c", line, timeout=200)) / 1e9


def _tokens(unit: Unit) -> Iterator[Row]:
    """One engine under one load; every other window, daemon and helper are frozen, so that nobody watches.

    Windows differ by more than what is looked for, so what we use of the machine's cores is measured too: an engine that could
    use all of them loses that much.
    """
    unit.systemctl("start", timeout=600)
    with unit.load("4", "1000", "200") as load:
        must(load.stdout is not None and load.stdout.readline() == "flowing\n", "no stream began")
        begun, used = time.monotonic(), _used(unit)
        pairs = [(_rate(unit), _unwatched(unit)) for _ in range(WINDOWS)]
        used, lasted = _used(unit) - used, (time.monotonic() - begun) / 2  # frozen, nothing is used
    must(unit.show("ActiveState") == "active", f"{unit.service} did not stay up:\n{unit.tail()}")
    unit.systemctl("stop", check=False, timeout=200)
    name = unit.preset.engine
    detail = f"CPU time of daemon and helper while tokens flow, of {os.cpu_count()} cores, looking each second (default: 5)"
    share = 100 * used / lasted / (os.cpu_count() or 1)
    yield Row(f"{name}: of the machine that our watching uses", share, "%", limit=TOKENS_LESS, detail=detail)
    lost = 100 * (1 - median(watched / alone for watched, alone in pairs))
    spread = 100 * (max(alone for _, alone in pairs) / min(alone for _, alone in pairs) - 1)
    detail = f"{WINDOWS} pairs of {WINDOW:g} s, every other one unwatched; those differ by {spread:.0f} %"
    yield Row(f"{name}: tokens per second lost to our watching", lost, "%", detail=detail)


def _watchers(unit: Unit) -> list[int]:
    daemon = int(unit.show("MainPID"))
    return [daemon, *map(int, unit.ask("pgrep", "-P", str(daemon), "-f", "nvml_helper").split())]


def _used(unit: Unit) -> float:
    """Seconds of CPU (proc_pid_stat(5), utime and stime; their children are the engine, or waited for by them)."""
    lines = unit.ask("cat", *(f"/proc/{pid}/stat" for pid in _watchers(unit))).splitlines()
    ticks = sum(int(field) for line in lines for field in line.rpartition(")")[2].split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _unwatched(unit: Unit) -> float:
    ours = _watchers(unit)
    unit.kill(*ours, number="STOP")
    try:
        return _rate(unit)
    finally:
        unit.kill(*ours, number="CONT")


def _rate(unit: Unit) -> float:
    before, begun = unit.metrics()[TOKENS[unit.preset.engine]], time.monotonic()
    time.sleep(WINDOW)
    after, ended = unit.metrics()[TOKENS[unit.preset.engine]], time.monotonic()
    if after <= before:
        raise CannotMeasureError(f"{unit.preset.engine} made no token in {WINDOW:g} s")
    return (after - before) / (ended - begun)
