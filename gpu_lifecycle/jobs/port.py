"""The engine's port at a start: who has it, how it is cleared, and the wait for a server that has just lost its workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_lifecycle.facts import Judged
from gpu_lifecycle.rules.owners import owner_of as owner_of_cgroup
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.rules.report import clearing
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.sockets import Listener, describe_owner, listeners_at, owner_of

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

POLL = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Taken:
    """Who listens where the engine is to; ``pid`` None: it cannot be seen from here."""

    pid: int | None
    who: str
    cure: str


def parents(reaped: Collection[Judged]) -> frozenset[int]:
    """The processes that started these, and that end, or are of no use, without them: an engine's launcher."""
    return frozenset(item.process.ppid for item in reaped) - {0, 1}


def taken_by(listener: Listener, proc: Proc) -> Taken:
    """In words, and with the command that clears it."""
    pid = owner_of(listener.inode, proc.pids(), proc)
    process = proc.describe(pid) if pid else None
    cure = clearing(process, owner_of_cgroup(process.cgroup)) if process else "stop it, or give the engine another port"
    return Taken(pid, describe_owner(listener, proc), cure)


def await_port(config: Config, reaped: Collection[Judged], show: Callable[[str], None]) -> str:
    """Why the engine cannot have its port; "" where it is free. Engines find out about that only after the whole load.

    A launcher holds the port and no GPU, so that it is never signalled; but it ends by itself once its workers have, and
    so it gets ``sweep.exit_deadline`` where they have just been reaped.
    """
    proc, endpoint = Proc(), config.server.endpoint()
    where = endpoint.uds or f"port {endpoint.port}"
    until = time.monotonic() + config.sweep.exit_deadline
    while found := listeners_at(endpoint, proc):
        taken = taken_by(found[0], proc)
        left = until - time.monotonic()
        if left <= 0 or taken.pid not in parents(reaped):
            return f"{where} of the engine is taken by {taken.who}; {taken.cure}"
        show(f"waiting for {where}: its server has lost its workers, and ends by itself; {show_duration(round(left))} left")
        time.sleep(min(left, POLL))
    return ""
