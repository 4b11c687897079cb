"""What processes are doing, in a few words: their states and what they wait for in the kernel, those alike together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_lifecycle.rules.stuck import Thread
from gpu_lifecycle.rules.text import printable

KINDS = 5  # shown, those of most processes first
NAME = 40  # characters
LIMIT = 240

_STATES = {  # as the page proc_pid_stat(5) names them
    "R": "running",
    "D": "uninterruptible in {where}",
    "S": "waiting in {where}",
    "I": "idle",
    "T": "stopped",
    "t": "stopped by a tracer",
    "Z": "ended",
    "X": "ended",
}


@dataclass(frozen=True, slots=True)
class Doing:
    """One process: its title, and its threads."""

    pid: int
    title: str
    threads: Sequence[Thread]


def summary(processes: Sequence[Doing]) -> str:
    """``8 sglang::scheduler_TP* waiting in futex_wait_queue; python3 running``; "" where there is none."""
    alike = Counter(f"{_name(process.title)} {_state(process)}" for process in processes if process.threads)
    shown = [f"{count} {what}" if count > 1 else what for what, count in alike.most_common(KINDS)]
    more = sum(alike.values()) - sum(count for _, count in alike.most_common(KINDS))
    return printable("; ".join([*shown, f"{more} more"] if more else shown), LIMIT)


def _name(title: str) -> str:
    """The program's name, or the title that it gave itself, without the number of a rank."""
    words = title.split()
    name = words[0].rpartition("/")[2] if words else "a process"
    if re.fullmatch(r"python[\d.]*", name) and "-m" in words[:-1]:
        name = words[words.index("-m") + 1]
    return re.sub(r"(_[A-Za-z]+)\d+", r"\1*", printable(name, NAME))


def _state(process: Doing) -> str:
    """Its main thread tells; but one that cannot be interrupted is what holds the others up."""
    stuck = next((thread for thread in process.threads if thread.state == "D"), None)
    main = next((thread for thread in process.threads if thread.tid == process.pid), process.threads[0])
    thread = stuck or main
    words = _STATES.get(thread.state, f"in state {printable(thread.state, 4)}")
    return words.format(where=printable(thread.where, NAME)) if thread.where else words.removesuffix(" in {where}")
