"""Sweeps again and again in one process, as the hook would; says how each ended and what became of our descriptors."""

from __future__ import annotations

import json
import os
import sys

from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.inspect import scene_for
from gpu_lifecycle.jobs.observe import Observer
from gpu_lifecycle.jobs.settings import load_config
from gpu_lifecycle.jobs.sweep import Sweep
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.journal import Journal


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    unit = UnitName("sglang-kimi")
    config = load_config(Layout(), unit)
    outcomes: dict[str, int] = {}
    reaped: set[int] = set()
    with GpuProbe() as probe:
        first = 0
        for number in range(int(sys.argv[1])):
            journal = Journal(unit.service, terminal=False)
            job = Sweep(lambda: scene_for(unit, config, Layout()), config, Layout(), Observer(probe), journal, lambda _: None)
            result = job.run()
            outcomes[result.outcome] = outcomes.get(result.outcome, 0) + 1
            reaped |= set(result.results)
            first = first or descriptors()
            if number == 0:
                print("begun", file=sys.stderr, flush=True)
        print(json.dumps({"outcomes": outcomes, "reaped": sorted(reaped), "descriptors": [first, descriptors()]}))


main()
