"""A sweep by hand of ten orphans: found, judged, ended, and their memory proven free."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from tests.systemd.site import CONFIG

from .bench import PROCESSES, PROGRAM, Bench, must
from .rows import Row

ORPHANS = 10
SWEEP = [PROGRAM, "sweep", "sglang-kimi", "--json"]


def rows(bench: Bench) -> Iterator[Row]:
    obeying = [_sweep(bench, "SIGTERM") for _ in range(5)]
    yield Row("sweep of ten orphans that obey SIGTERM", median(obeying), "s", limit=1.0, detail=_detail(obeying))
    _short_grace(bench)
    ignoring = [_sweep(bench, "SIGTERM, then SIGKILL", "--ignore-term") for _ in range(3)]
    what = "sweep of ten orphans that ignore SIGTERM, term_grace 1s"
    yield Row(what, median(ignoring), "s", limit=2.5, detail=_detail(ignoring))
    bench.site.configure()


def _short_grace(bench: Bench) -> None:
    """Changes only the grace, of what ``configure`` writes."""
    text = bench.machine.read(CONFIG)
    bench.machine.write(CONFIG, text.replace('term_grace = "2s"', 'term_grace = "1s"'))


def _sweep(bench: Bench, signals: str, *options: str) -> float:
    for number in range(ORPHANS):
        bench.site.orphan(*options, gpu=number % 8, gib=60)
    run = bench.time({"sweep": SWEEP}, keep_output=True)["sweep"][0]
    document = json.loads(run["output"])
    must(document["outcome"] == "free", f"the sweep did not prove the GPUs free: {document['text']}")
    _all_reaped(bench, signals)
    return float(run["seconds"])


def _all_reaped(bench: Bench, signals: str) -> None:
    """The time counts only where all were ended, each by the signals that it should take."""
    planted = {str(pid) for pid in bench.site.planted}
    lines = bench.machine.journal(None, "GPU_LIFECYCLE_EVENT=holder-reaped")
    told = {line["OBJECT_PID"]: str(line["MESSAGE"]) for line in lines}
    reaped = {pid for pid in planted if f" with {signals}, because" in told.get(pid, "")}
    must(reaped == planted, f"{len(reaped)} of {len(planted)} orphans were ended with {signals}")
    must(not any(bench.site.alive(pid) for pid in bench.site.planted), "an orphan lives")
    bench.site.planted.clear()


def _detail(seconds: list[float]) -> str:
    span = f"{min(seconds):.2f} to {max(seconds):.2f} s"
    return f"whole process, 600 GiB on 8 GPUs proven free, {PROCESSES} bystanders; {len(seconds)} times, {span}"
