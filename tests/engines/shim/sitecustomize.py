"""What makes an engine on a CPU look like one on a GPU; loaded by every Python of the engine (PYTHONPATH), by the tests alone.

A process that bears a worker's title opens the nodes of its GPU, as CUDA would, and the NVML stand-in hears of as much GPU
memory as the process has of the machine's. Titles are set late and processes are forked, so a thread waits in each.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import standin_process  # type: ignore[import-not-found]  # tests/standins/sglang_standin/process.py, copied beside this file

WORKER = re.compile(r"^(?:(?:sglang::scheduler|VLLM::Worker)(?:.*_TP(\d+))?|[^\0]+\0[^\0]*/llama-server\0)")
PAGE = os.sysconf("SC_PAGE_SIZE")
STEP = 0.1


def _watch() -> None:
    while not (match := WORKER.match(Path("/proc/self/cmdline").read_text(errors="replace"))):
        time.sleep(STEP)
    rank = int(match[1] or 0)
    gpu = standin_process.visible_gpus(rank + 1)[rank]
    standin_process.open_devices([gpu])
    ledger = standin_process.Ledger(gpu)
    while True:
        ledger.hold(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE)
        time.sleep(STEP)


def _start() -> None:
    threading.Thread(target=_watch, name="gpu shim", daemon=True).start()


_start()
os.register_at_fork(after_in_child=_start)
