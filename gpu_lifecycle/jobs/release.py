"""``gpus --release``: asks all resident daemons to let go of NVML for a minute, as before a reset of a GPU."""

from __future__ import annotations

import os
import signal

from gpu_lifecycle.errors import LifecycleError, NotPermittedError
from gpu_lifecycle.facts import Layout
from gpu_lifecycle.jobs.inspect import managed_units
from gpu_lifecycle.system.bus import Bus
from gpu_lifecycle.system.procfs import Proc


def release(layout: Layout) -> int:
    """Prints what was asked of whom. Returns 0 where every daemon that runs was asked."""
    if os.geteuid() != 0:
        raise NotPermittedError("cannot ask the daemons: they run as other users", hint="run it with sudo")
    asked = False
    for unit in managed_units(layout):
        with Bus() as bus:
            pid = bus.unit_state(unit.service).main_pid
        if pid:
            asked = True
            print(f"{unit.service}: {_ask(pid)}")
    if not asked:
        print("no daemon runs, and so none holds NVML open")
    return 0


def _ask(pid: int) -> str:
    """SIGUSR1 ends a process that does not handle it, such as a daemon of an older version: then it is not sent."""
    try:
        daemon = os.pidfd_open(pid)
    except OSError as error:
        raise LifecycleError(f"cannot ask process {pid}: {error.strerror}") from error
    try:
        caught = int(Proc().status(pid).get("SigCgt", "0"), 16)  # proc_pid_status(5)
        if not caught >> (signal.SIGUSR1 - 1) & 1:
            return f"process {pid} does not know this request; systemctl reload it after an upgrade"
        signal.pidfd_send_signal(daemon, signal.SIGUSR1)
    finally:
        os.close(daemon)
    return "NVML is let go of for a minute"
