"""A full scan of ``/proc``: against the least that any look at all descriptors costs, and against ``fuser``."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .bench import HOME, INSIDE, PYTHON, Bench, must
from .hook import FUSER
from .rows import Row

ROUNDS = 9
SIZES = ((300, 40), (2000, 100))  # processes, open files of each
SCAN = [PYTHON, "-IB", f"{HOME}/scan.py"]
READLINKS = [f"{HOME}/readlinks"]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each round: the scan in its process, the yardstick in its own, and ``fuser`` as a whole."""

    scan: list[float]
    readlinks: list[float]
    fuser: list[float]

    def ratio(self, peer: list[float]) -> float:
        """The median of the rounds' own ratios: what slows the machine meets both runs of a round."""
        return median(ours / theirs for ours, theirs in zip(self.scan, peer, strict=True))


def rows(bench: Bench) -> Iterator[Row]:
    install(bench)
    for processes, files in SIZES:
        yield from _rows(measure(bench, processes, files), f"{processes:,} processes with {files} open files")


def _rows(times: Times, size: str) -> Iterator[Row]:
    detail = f"alternating, {ROUNDS} rounds; {1000 * min(times.scan):.0f} to {1000 * max(times.scan):.0f} ms; median of ratios"
    for peer, seconds, limit in (
        ("one readlinkat for each descriptor, in C", times.readlinks, 1.3),
        ("fuser -v on ten device nodes, whole", times.fuser, 0.7),
    ):
        yield Row(
            f"full scan, {size}; peer: {peer}",
            median(times.scan),
            "s",
            peer=median(seconds),
            ratio_limit=limit,
            detail=f"{detail} {times.ratio(seconds):.2f}",
        )


def install(bench: Bench) -> None:
    """Puts the scan and the yardstick, which is compiled here, into the machine."""
    compiler = shutil.which("gcc")
    must(compiler is not None, "the yardstick of the scan needs gcc")
    with tempfile.TemporaryDirectory(prefix="gpu-lifecycle-bench-") as folder:
        program = Path(folder) / "readlinks"
        subprocess.run([str(compiler), "-O2", "-o", str(program), str(INSIDE / "readlinks.c")], check=True)
        bench.machine.copy(program, READLINKS[0])
    bench.machine.copy(INSIDE / "scan.py", SCAN[-1])


def measure(bench: Bench, processes: int, files: int, rounds: int = ROUNDS) -> Times:
    """All three, one after the other in each round, among that many idle processes and the machine's own few."""
    bench.gather_crowd(processes, files)
    try:
        commands = {"scan": SCAN, "readlinks": READLINKS, "fuser": FUSER}
        runs = bench.time(commands, rounds=rounds, keep_output=True)
    finally:
        bench.disperse_crowd()
    scans = [json.loads(run["output"]) for run in runs["scan"]]
    counted = [run["output"].split() for run in runs["readlinks"]]
    must(all(scan["processes"] >= processes and scan["holders"] == 0 for scan in scans), "a scan missed the crowd")
    must(all(int(links) >= processes * files for _, links, _ in counted), "the yardstick missed descriptors")
    must(all(run["status"] == 1 for run in runs["fuser"]), "fuser found somebody on a clean machine")
    return Times(
        [scan["seconds"] for scan in scans],
        [float(seconds) for _, _, seconds in counted],
        [run["seconds"] for run in runs["fuser"]],
    )
