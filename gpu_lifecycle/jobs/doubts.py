"""What command line, models and machine already show to fail, minutes before the engine finds out."""

from __future__ import annotations

import os
import traceback
from dataclasses import astuple
from types import TracebackType
from typing import Any, Self

from gpu_lifecycle.errors import Exit, LifecycleError
from gpu_lifecycle.facts import Finding, Layout, Level, UnitName
from gpu_lifecycle.rules.config import Config
from gpu_lifecycle.system.worker import Worker

SECONDS = 120.0  # more than all the looks at disks together, each of which has a bound of its own
UNKNOWN = "whether this start can work was not found out: the look at models and machine ended without an answer"


class Doubts:
    """Begins to look at once, in a child, while the daemon's own code is read; ``found`` waits for what is left of that.

    In the unit, not in the hook: the files are to be read as the user whose engine will read them. The code for that ends with
    the child: no run asks for it again. To be left by ``with``. Raises BusyError where no child can be made.
    """

    def __init__(self, unit: UnitName, layout: Layout, config: Config, memory: int | None) -> None:
        """``memory`` is that of the smallest claimed GPU in bytes; None: not known."""
        self._unit = unit.name
        self._worker = Worker()
        self._worker.start(lambda: _look(unit, layout, config, memory))
        self._worker.must_have_begun()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._worker.abandon()

    def found(self) -> list[Finding]:
        """What it has found. Raises LifecycleError with the words and the status of one there; RuntimeError for a defect."""
        match self._worker.answer(SECONDS):
            case ("found", rows):
                return [Finding(Level(level), *texts) for level, *texts in rows]
            case ("refused", status, text):
                refused = LifecycleError(text)
                refused.status = Exit(status)
                raise refused
            case ("defect", text):
                raise RuntimeError(text)
            case _:
                return [Finding(Level.WARN, "not-certain", UNKNOWN, f"gpu-lifecycle check {self._unit}")]


def _look(unit: UnitName, layout: Layout, config: Config, memory: int | None) -> tuple[Any, ...]:
    """As plain data: it goes through a pipe."""
    try:
        return "found", [tuple(map(str, astuple(item))) for item in _findings(unit, layout, config, memory)]
    except LifecycleError as error:
        return "refused", int(error.status), str(error)  # with its place and its cure
    except Exception:  # noqa: BLE001 - the boundary of the child: the daemon tells it with its traceback
        return "defect", traceback.format_exc(limit=-3)


def _findings(unit: UnitName, layout: Layout, config: Config, memory: int | None) -> tuple[Finding, ...]:
    from gpu_lifecycle.jobs.host import around_start, start_host
    from gpu_lifecycle.jobs.preflight import Preflight

    reading = Preflight(config, unit.service, os.environ)
    try:
        host = start_host(around_start(unit, config, layout))
        return (*reading.findings(memory), *host)
    finally:
        reading.close()
