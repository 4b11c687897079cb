"""The end of a run: how soon a dead worker is acted upon, and what a stop takes beside the engine's own part of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from statistics import median

from tests.systemd.site import CONFIG, UNIT

from .bench import Bench, must
from .rows import Row
from .run import DEFAULTS

ROUNDS = 5
INTERVAL = 5.0  # seconds; watch.interval of DEFAULTS
BARE = "bare-engine"


def rows(bench: Bench) -> Iterator[Row]:
    bench.site.stop()
    bench.site.configure("--warmup-seconds", "0.2", extra=DEFAULTS)
    deaths = [_death(bench) for _ in range(ROUNDS)]
    detail = f"{ROUNDS} times, {min(deaths):.2f} to {max(deaths):.2f} s; watch.interval {INTERVAL:.0f}s"
    yield Row("a worker dies → the run is ended", median(deaths), "s", limit=INTERVAL, detail=detail)
    stops = [_stop(bench) for _ in range(ROUNDS)]
    bare = [_bare(bench) for _ in range(ROUNDS)]
    own = median(stops) - median(bare)
    detail = f"systemctl stop to proven free, {median(stops):.2f} s, less a bare engine's own end, {median(bare):.2f} s"
    yield Row("stop of an idle unit, our own part", own, "s", limit=1, detail=detail)


def _death(bench: Bench) -> float:
    bench.site.begin()
    bench.site.start()
    pid = bench.site.workers()[3]
    killed = float(bench.site.ask("sh", "-c", f"cut -d' ' -f1 /proc/uptime; kill -9 {pid}"))
    bench.machine.wait(lambda: bool(bench.site.events("engine-failed")), 30, "the end of the run")
    seen = int(bench.site.events("engine-failed")[0]["__MONOTONIC_TIMESTAMP"]) / 1e6
    bench.site.stop()
    bench.site.systemctl("reset-failed", check=False)
    return seen - killed


def _stop(bench: Bench) -> float:
    bench.site.start()
    seconds = _timed(bench, UNIT)
    must(bench.site.show("Result") == "success", "a stop failed")
    must(not bench.site.cli("holders")["holders"], "a stop left something")
    return seconds


def _bare(bench: Bench) -> float:
    """The same engine as a service of its own, with nobody beside it."""
    command = tomllib.loads(bench.machine.read(CONFIG))["server"]["command"]
    bench.machine.run(["systemd-run", "--quiet", "--collect", f"--unit={BARE}", "-p", "KillMode=mixed", *command])
    bench.machine.wait(lambda: ":30000" in bench.site.ask("ss", "-Hltn"), 30, "the bare engine to listen")
    bench.site.ask("sleep", "1")
    return _timed(bench, BARE)


def _timed(bench: Bench, unit: str) -> float:
    line = f"a=$(date +%s%N); systemctl stop {unit}; b=$(date +%s%N); echo $((b - a))"
    return int(bench.site.ask("sh", "-c", line)) / 1e9
