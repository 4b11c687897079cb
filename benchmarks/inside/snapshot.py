"""Runs in the machine: what a look at all GPUs by a warm helper takes, and what the helper is when idle. Prints JSON."""

from __future__ import annotations

import json
import time

from gpu_lifecycle.system.gpu import GpuProbe

LOOKS = 20


def main() -> None:
    with GpuProbe() as probe:
        gpus = len(probe.view(30).gpus)
        seconds = []
        for _ in range(LOOKS):
            began = time.perf_counter()
            probe.view(30)
            seconds.append(time.perf_counter() - began)
        (helper,) = probe.pids
        with open(f"/proc/{helper}/status", encoding="ascii") as file:
            resident = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))
    print(json.dumps({"gpus": gpus, "seconds": seconds, "resident": resident}))


if __name__ == "__main__":
    main()
