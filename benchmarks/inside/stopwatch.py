"""Runs in the machine: ``stopwatch.py PLAN OUT`` runs commands and writes what each took.

PLAN is JSON: ``{"rounds": N, "commands": {NAME: WORDS}, "watch_memory": BOOL, "keep_output": BOOL}``. In each round every
command runs once, in order, so that whatever else the machine does meets them all alike. It is timed here, from just
before it is spawned until it is reaped: entering the machine is not part of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PAUSE = 0.0005  # seconds between two looks at the memory


def high_water(pid: int) -> int:
    """Bytes that one program had in memory at most so far (VmHWM of proc_pid_status(5)); 0 where it is gone.

    ``ru_maxrss`` would not do: it is inherited over execve(2), so a helper would be given its parent's peak.
    """
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def program(pid: int) -> bytes:
    """Tells a helper from the short time in which its new process still is a copy of what started it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    try:
        return [int(word) for task in os.listdir(f"/proc/{pid}/task") for word in _children(pid, task)]
    except OSError:
        return []


def _children(pid: int, task: str) -> list[str]:
    return Path(f"/proc/{pid}/task/{task}/children").read_text().split()


def watch(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """The peak of each program, the command's own and its helpers', until the command ends."""
    peaks: dict[str, int] = {}
    while process.poll() is None:
        own = program(process.pid)
        for pid in (process.pid, *children(process.pid)):
            if pid == process.pid or program(pid) not in (own, b""):  # not a copy of it, nor one that has just ended
                name = "own" if pid == process.pid else f"helper {pid}"
                peaks[name] = max(peaks.get(name, 0), high_water(pid))
        time.sleep(PAUSE)
    return peaks


def run(words: list[str], plan: dict[str, Any]) -> dict[str, Any]:
    output = subprocess.PIPE if plan.get("keep_output") else None
    began = time.perf_counter()
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output) as process:
        peaks = watch(process) if plan.get("watch_memory") else {}
        text = process.communicate()[0]
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "status": process.returncode, "peaks": peaks, "output": (text or b"").decode()}


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in plan["commands"]}
    for _ in range(plan["rounds"]):
        for name, words in plan["commands"].items():
            runs[name].append(run(words, plan))
    Path(sys.argv[2]).write_text(json.dumps(runs))


if __name__ == "__main__":
    main()
