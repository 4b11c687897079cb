"""``gpus --release``: asks daemons to let go of NVML for a minute, as before a reset of a GPU, and sees that they did.

A restart that comes up meanwhile waits; a start by hand does not, for who types it knows whether the reset is over.
"""

from __future__ import annotations

import os
import signal
import time

from gpu_lifecycle.errors import BusyError, LifecycleError, NotPermittedError, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.printed import managed_units
from gpu_lifecycle.rules.names import parse_unit
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.system.bus import Bus
from gpu_lifecycle.system.cgroup import Cgroup
from gpu_lifecycle.system.files import read_state, write_state
from gpu_lifecycle.system.procfs import Proc

ALL = "all"
HELPER = "/nvml_helper.py"
RELEASED = 60.0  # seconds for which a daemon lets go, and a restart waits
WAIT = 10.0  # seconds; the helper is killed, which only one that hangs in the kernel does not obey
POLL = 0.05


def release(layout: Layout, name: str = ALL) -> int:
    """Prints what was asked of whom. Returns 0 where every daemon that runs has let go.

    Raises NotPermittedError; UsageError for a unit that is none; LifecycleError for a daemon that cannot be asked; BusyError
    for one that still has NVML open.
    """
    if os.geteuid() != 0:
        raise NotPermittedError("cannot ask the daemons: they run as other users", hint="run it with sudo")
    asked = False
    for unit in managed_units(layout) if name == ALL else [parse_unit(name)]:
        with Bus() as bus:
            state = bus.unit_state(unit.service)
        if state.main_pid:
            asked = True
            _hold_off(layout)
            _ask(unit, state.main_pid)
            _see(unit, state.control_group)
            print(f"{unit.service}: NVML is let go of for a minute")
    if not asked and name != ALL and parse_unit(name) not in managed_units(layout):
        raise UsageError(f"there is no unit {parse_unit(name).service}", hint="gpu-lifecycle status lists the managed units")
    if not asked:
        _hold_off(layout)
        print("no daemon runs, and so none holds NVML open; restarts wait for a minute")
    return 0


def _hold_off(layout: Layout) -> None:
    """For the restarts of all units: see ``held_off``. Raises what ``write_state`` raises."""
    write_state(layout.released, {"schema": 1, "until": round(time.clock_gettime(time.CLOCK_BOOTTIME) + RELEASED, 3)})


def held_off(layout: Layout) -> float:
    """Seconds that a restart waits before it opens NVML, because somebody is about to reset a GPU; at most a minute."""
    found, _ = read_state(layout.released)
    until = found.get("until") if found else None
    if not isinstance(until, int | float):
        return 0.0
    return min(max(0.0, until - time.clock_gettime(time.CLOCK_BOOTTIME)), RELEASED)


def _ask(unit: UnitName, pid: int) -> None:
    """SIGUSR1 ends a process that does not handle it, such as a daemon of an older version: then it is not sent."""
    try:
        daemon = os.pidfd_open(pid)
    except OSError as error:
        raise LifecycleError(f"cannot ask process {pid} of {unit.service}: {error.strerror}") from error
    try:
        caught = int(Proc().status(pid).get("SigCgt", "0"), 16)  # proc_pid_status(5)
        if not caught >> (signal.SIGUSR1 - 1) & 1:
            raise LifecycleError(
                f"process {pid} of {unit.service} does not know this request",
                hint=f"is it still starting? after an upgrade: systemctl reload {unit.name}",
            )
        signal.pidfd_send_signal(daemon, signal.SIGUSR1)
    finally:
        os.close(daemon)


def _see(unit: UnitName, cgroup: str) -> None:
    """Waits until no helper of the unit lives: then nothing of ours there has NVML, or a node of a GPU, open."""
    until = time.monotonic() + WAIT
    while pid := _helper(Cgroup(cgroup)):
        if time.monotonic() > until:
            raise BusyError(
                f"{unit.service} still has NVML open after {show_duration(WAIT)}: process {pid}",
                hint="does it hang in the driver? see dmesg",
            )
        time.sleep(POLL)


def _helper(cgroup: Cgroup) -> int:
    """One that lives; 0: none. A zombie holds nothing, and has no title any more."""
    proc = Proc()
    for pid in sorted(cgroup.pids()):
        stat = proc.stat(pid)
        if stat and not stat.zombie and HELPER in proc.title(pid, stat):
            return pid
    return 0
