"""ExecReload=: asks the daemon for a reload, and waits for what comes of it, so that ``systemctl reload`` can fail.

It imports little: the code that is installed may be broken, and then it is for the daemon to say so.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any

from gpu_lifecycle.errors import Exit, LifecycleError, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.settings import unit_cgroup
from gpu_lifecycle.jobs.state import StateFile
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.system.procfs import Proc

SECONDS = 60.0
POLL = 0.1


def reload(unit: UnitName, layout: Layout) -> Exit:
    """Returns 0 where the daemon has reloaded. Raises LifecycleError where it does not answer."""
    if not unit_cgroup(Proc(), unit):
        raise UsageError(f"cannot run this: it is not part of {unit.service}", hint=f"systemctl reload {unit.service}")
    main = os.environ.get("MAINPID", "")
    if not main.isdecimal():
        raise UsageError("cannot reload: systemd has given no MAINPID")
    before = _answer(layout, unit).get("number", 0)
    try:
        daemon = os.pidfd_open(int(main))
    except OSError as error:
        raise LifecycleError("cannot reload: the daemon has ended") from error
    try:
        signal.pidfd_send_signal(daemon, signal.SIGHUP)
        return _wait(layout, unit, before, daemon)
    finally:
        os.close(daemon)


def _wait(layout: Layout, unit: UnitName, before: object, daemon: int) -> Exit:
    until = time.monotonic() + SECONDS
    poller = select.poll()
    poller.register(daemon, select.POLLIN)
    while time.monotonic() < until:
        if poller.poll(POLL * 1000):
            raise LifecycleError("the daemon has ended meanwhile", hint="see the lines before this one")
        answer = _answer(layout, unit)
        if answer.get("number", 0) != before:
            print(answer.get("text", ""))
            return Exit.OK if answer.get("ok") is True else Exit.CONFIG
    raise LifecycleError(f"the daemon has not answered within {show_duration(SECONDS)}; the engine is not touched")


def _answer(layout: Layout, unit: UnitName) -> dict[str, Any]:
    return StateFile.load(layout, unit).document.get("reload") or {}
