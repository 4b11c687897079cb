"""What our watching costs a real engine: at its start, at its stop, and in tokens. Each beside the engine alone, in turn."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.engines.conftest import boot
from tests.engines.place import find
from tests.engines.unit import Unit
from tests.machine import Machine

from .bench import INSIDE, CannotMeasureError, must
from .rows import Row

PAIRS = 3
WINDOWS, WINDOW = 6, 8.0  # pairs, and seconds of each half; systemd's watchdog must not miss us meanwhile
SECONDS_MORE, SHARE_MORE, STOP_MORE, TOKENS_LESS = 1.0, 0.03, 0.5, 1.0
BODY = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1})
ASKER = "/run/benchmarks/first_token.py"
TOKENS = {
    "sglang": "sglang:realtime_tokens_total",
    "vllm": "vllm:generation_tokens_total",
    "llama.cpp": "llamacpp:tokens_predicted_total",
}


def all_rows() -> Iterator[Row]:
    """Boots a machine with the engines of GPU_LIFECYCLE_ENGINES. RuntimeError where there are none."""
    engines = find()
    with (
        tempfile.TemporaryDirectory(prefix="gpu-lifecycle-tax-") as folder,
        Machine(Path(folder), gpus=4, shown=engines.shown()) as machine,
    ):
        machine.copy(INSIDE / "first_token.py", ASKER)
        for unit in boot(machine, engines).values():
            yield from rows(unit)


def rows(unit: Unit) -> Iterator[Row]:
    _ours(unit)  # fills the caches, and is not counted
    pairs = [(_ours(unit), _bare(unit)) for _ in range(PAIRS)]
    name = unit.preset.engine
    ours, bare = (median(pair[who][0] for pair in pairs) for who in (0, 1))
    more = median(mine[0] - alone[0] for mine, alone in pairs)
    detail = f"{PAIRS} pairs; systemctl start to READY=1, {ours:.2f} s, less a bare exec to its first token, {bare:.2f} s"
    yield Row(f"{name}: start, our own part", more, "s", limit=min(SECONDS_MORE, SHARE_MORE * bare), detail=detail)
    more = median(mine[1] - alone[1] for mine, alone in pairs)
    detail = "systemctl stop to proven free, less a bare SIGTERM to its end"
    yield Row(f"{name}: stop, our own part", more, "s", limit=STOP_MORE, detail=detail)
    yield _tokens(unit)


def _ours(unit: Unit) -> tuple[float, float]:
    """Seconds of a start and of a stop, as systemd's own clock and a clock in the machine have them."""
    unit.systemctl("start", timeout=600)
    start = _stamp(unit, unit.service, "ActiveEnter") - _stamp(unit, unit.service, "InactiveExit")
    stop = _stop(unit, unit.service)
    must(unit.show("Result") == "success", f"a stop of {unit.service} failed:\n{unit.tail()}")
    return start, stop


def _bare(unit: Unit) -> tuple[float, float]:
    name = unit.start_bare()
    url = f"http://127.0.0.1:{unit.preset.port}/v1/completions"
    told = unit.machine.run(["python3", "-I", ASKER, url, BODY], timeout=700).stdout
    start = float(told) - _stamp(unit, name, "ExecMainStart")
    return start, _stop(unit, name)


def _stamp(unit: Unit, service: str, name: str) -> float:
    """Seconds of CLOCK_MONOTONIC (systemd.service: *TimestampMonotonic, in µs)."""
    return int(unit.ask("systemctl", "show", service, "-P", f"{name}TimestampMonotonic")) / 1e6


def _stop(unit: Unit, service: str) -> float:
    line = f"a=$(date +%s%N); systemctl stop {service}; b=$(date +%s%N); echo $((b - a))"
    return int(unit.ask("sh", "-c", line, timeout=200)) / 1e9


def _tokens(unit: Unit) -> Row:
    """One engine under one load; every other window, daemon and helper are frozen, so that nobody watches."""
    unit.systemctl("start", timeout=600)
    with unit.load("4", "1000", "200") as load:
        must(load.stdout is not None and load.stdout.readline() == "flowing\n", "no stream began")
        pairs = [(_rate(unit), _unwatched(unit)) for _ in range(WINDOWS)]
    must(unit.show("ActiveState") == "active", f"{unit.service} did not stay up:\n{unit.tail()}")
    unit.systemctl("stop", check=False, timeout=200)
    lost = 100 * (1 - median(watched / alone for watched, alone in pairs))
    shown = f"{median(pair[0] for pair in pairs):.0f} tokens/s watched, {median(pair[1] for pair in pairs):.0f} unwatched"
    detail = f"{WINDOWS} pairs of {WINDOW:g} s in one run, every other one with daemon and helper frozen; {shown}"
    return Row(f"{unit.preset.engine}: tokens per second lost to our watching", lost, "%", limit=TOKENS_LESS, detail=detail)


def _unwatched(unit: Unit) -> float:
    daemon = int(unit.show("MainPID"))
    ours = [daemon, *map(int, unit.ask("pgrep", "-P", str(daemon), "-f", "nvml_helper").split())]
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
