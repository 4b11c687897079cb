"""The place where everything is measured: a machine with the unit installed, a crowd on it, and a stopwatch inside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machine import Machine
from tests.systemd.conftest import new_site
from tests.systemd.site import UNIT, Site

INSIDE = Path(__file__).parent / "inside"
HOME = "/run/benchmarks"
PYTHON = "/opt/gpu-lifecycle/bin/python"
PROGRAM = "/usr/local/bin/gpu-lifecycle"
PROCESSES, FILES = 300, 40
DROP_IN = f"/run/systemd/system/{UNIT}.d/benchmarks.conf"
# The stopwatch takes the place of the unit's commands: same cgroup, same variables, root outside the sandbox ("+").
STOPWATCH_UNIT = f"""[Service]
Type=oneshot
Restart=no
ExecStartPre=
ExecStart=
ExecStopPost=
ExecStart=+{PYTHON} -ISB {HOME}/stopwatch.py {HOME}/plan {HOME}/out
"""


class CannotMeasureError(Exception):
    """What was to be measured did not happen, so that its time would mean nothing."""


@dataclass
class Bench:
    """One machine, booted once for all rows."""

    site: Site

    @classmethod
    def on(cls, machine: Machine) -> Bench:
        bench = cls(new_site(machine))
        for name in ("crowd.py", "stopwatch.py"):
            machine.copy(INSIDE / name, f"{HOME}/{name}")
        return bench

    @property
    def machine(self) -> Machine:
        return self.site.machine

    def gather_crowd(self, processes: int = PROCESSES, files: int = FILES) -> None:
        """Idle processes with so many open files each: what a scan of /proc has to walk through."""
        flag = f"{HOME}/crowd"
        words = [PYTHON, "-ISB", f"{HOME}/crowd.py", str(processes), str(files), flag]
        self.machine.run(["systemd-run", "--quiet", "--unit=crowd", "-p", "TasksMax=infinity", *words])
        self.machine.wait(lambda: self.site.ask("cat", flag).strip() == str(processes), 60, "the crowd")

    def disperse_crowd(self) -> None:
        self.machine.run(["systemctl", "stop", "crowd"])
        self.machine.run(["rm", f"{HOME}/crowd"])

    def time(self, commands: dict[str, list[str]], *, in_unit: bool = False, **plan: Any) -> dict[str, list[dict[str, Any]]]:
        """Runs the commands by the stopwatch; ``in_unit``: as systemd runs the unit's hooks."""
        self.machine.write(f"{HOME}/plan", json.dumps({"rounds": 1, "commands": commands, **plan}))
        if in_unit:
            self._time_in_unit()
        else:
            self.machine.run([PYTHON, "-ISB", f"{HOME}/stopwatch.py", f"{HOME}/plan", f"{HOME}/out"], timeout=300)
        runs: dict[str, list[dict[str, Any]]] = json.loads(self.machine.read(f"{HOME}/out"))
        return runs

    def _time_in_unit(self) -> None:
        self.machine.write(DROP_IN, STOPWATCH_UNIT)
        self.machine.run(["systemctl", "daemon-reload"])
        try:
            self.site.systemctl("start", timeout=300)
        finally:
            self.machine.run(["rm", DROP_IN])
            self.machine.run(["systemctl", "daemon-reload"])


def must(fact: bool, what: str) -> None:
    """Raises CannotMeasureError where a measured thing was not the thing that was to be measured."""
    if not fact:
        raise CannotMeasureError(what)
