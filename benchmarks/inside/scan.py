"""Runs in the machine: one full scan, as ``holders`` and both hooks do it, in a new process. Prints JSON.

``seconds`` is the scan alone, without the interpreter's start.
"""

from __future__ import annotations

import json
import time

from gpu_lifecycle.system.devices import find_devices
from gpu_lifecycle.system.holders import Scanner
from gpu_lifecycle.system.procfs import Proc


def main() -> None:
    scanner = Scanner(Proc(), find_devices())
    began = time.perf_counter()
    scan = scanner.scan()
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "processes": scan.processes, "holders": len(scan.holders)}))


if __name__ == "__main__":
    main()
