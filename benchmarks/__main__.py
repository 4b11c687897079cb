"""``python -m benchmarks [--json]``: boots one machine, measures every row, prints one table.

A missed goal is shown, and fails nothing: times depend on the machine. The exit status is 1 only where something could not
be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from tests.machine import Machine

from . import hook, run, sweep
from .bench import Bench, CannotMeasureError
from .rows import Row, print_table


def measure(machine: Machine) -> Iterator[Row]:
    """All rows, in the order of the table; each is yielded as soon as it is there."""
    bench = Bench.on(machine)
    bench.gather_crowd()
    yield from hook.rows(bench)
    yield from sweep.rows(bench)
    bench.disperse_crowd()
    yield from run.rows(bench)


def collect(console: Console) -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-lifecycle-bench-"))
    rows: list[Row] = []
    try:
        with console.status("booting a machine") as status, Machine(folder, gpus=8) as machine:
            for row in measure(machine):
                rows.append(row)
                status.update(f"measured: {row.what}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def main() -> int:
    options = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    options.add_argument("--json", action="store_true", help="one JSON document on standard output")
    as_json = options.parse_args().json
    if os.geteuid() != 0:
        print("benchmarks: only root can boot a test machine: run it with sudo", file=sys.stderr)
        return 1
    try:
        rows = collect(Console(stderr=True))
    except (CannotMeasureError, AssertionError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"benchmarks: could not measure: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps({"schema": 1, "rows": [row.json() for row in rows]}, indent=2))
    else:
        print_table(rows, Console(highlight=False, width=None if sys.stdout.isatty() else 120))
    return 0


if __name__ == "__main__":
    sys.exit(main())
