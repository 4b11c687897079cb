"""``python -m benchmarks [--json] [--engines | --plot]``: boots one machine, measures every row, prints one table.

With ``--plot`` it draws how the cost of a scan grows, instead; with ``--engines`` the rows are what real engines lose to us.

A missed goal is shown, and fails nothing: times depend on the machine. The exit status is 1 only where something could not
be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tests.machine import Machine

from . import check, hook, plot, run, scan, snapshot, stop, sweep, tax
from .bench import Bench, CannotMeasureError
from .rows import Row, print_table

if TYPE_CHECKING:
    from rich.status import Status


def measure(machine: Machine) -> Iterator[Row]:
    """All rows, in the order of the table; each is yielded as soon as it is there."""
    bench = Bench.on(machine)
    bench.gather_crowd()
    yield from hook.rows(bench)
    yield from sweep.rows(bench)
    bench.disperse_crowd()
    yield from check.rows(bench)
    yield from scan.rows(bench)
    yield from snapshot.rows(bench)
    yield from run.rows(bench)
    yield from stop.rows(bench)


@contextlib.contextmanager
def booted(console: Console) -> Iterator[tuple[Machine, Status]]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-lifecycle-bench-"))
    try:
        with console.status("booting a machine") as status, Machine(folder, gpus=8) as machine:
            yield machine, status
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def collect_tax(console: Console) -> list[Row]:
    with console.status("booting a machine with real engines") as status:
        return gather(tax.all_rows(partial(say, console)), console, status)


def collect(console: Console) -> list[Row]:
    with booted(console) as (machine, status):
        return gather(measure(machine), console, status)


def gather(source: Iterator[Row], console: Console, status: Status) -> list[Row]:
    """Says each row at once, on standard error: what was measured is not lost with what comes after it."""
    rows: list[Row] = []
    for row in source:
        rows.append(row)
        say(console, row.line())
        status.update(f"measured: {row.what}")
    return rows


def say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def draw(console: Console) -> None:
    with booted(console) as (machine, status):
        status.update("measuring scans of many sizes")
        console.print(f"drawn: {plot.plot(Bench.on(machine))}")


def show(rows: list[Row], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"schema": 1, "rows": [row.json() for row in rows]}, indent=2))
    else:
        print_table(rows, Console(highlight=False, width=None if sys.stdout.isatty() else 120))


def main() -> int:
    options = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    options.add_argument("--json", action="store_true", help="one JSON document on standard output")
    options.add_argument("--plot", action="store_true", help="only draw docs/scan-cost.svg")
    options.add_argument("--engines", action="store_true", help="only what real engines lose to us (make bench-engines)")
    chosen = options.parse_args()
    if os.geteuid() != 0:
        print("benchmarks: only root can boot a test machine: run it with sudo", file=sys.stderr)
        return 1
    try:
        if chosen.plot:
            draw(Console(stderr=True))
        else:
            collected = collect_tax if chosen.engines else collect
            show(collected(Console(stderr=True)), chosen.json)
    except (CannotMeasureError, AssertionError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"benchmarks: could not measure: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
