"""What ``top`` shows: GPUs, holders and units at one moment; and who looks again and again, beside the one that draws."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Gpu, GpuView, Judged, Layout, UnitName
from gpu_lifecycle.jobs.inspect import scene_for
from gpu_lifecycle.jobs.observe import Observer
from gpu_lifecycle.jobs.printed import managed_units
from gpu_lifecycle.jobs.settings import load_config
from gpu_lifecycle.jobs.status import document
from gpu_lifecycle.rules.claims import claimed
from gpu_lifecycle.system.gpu import GpuProbe

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

EVERY = 2.0  # seconds between two looks
NVML_SECONDS = 10.0
END_SECONDS = 3.0  # how long a look may still take once nobody waits for it


@dataclass(frozen=True, slots=True)
class Glance:
    """One look. ``limits`` is what could not be seen, or went wrong."""

    gpus: tuple[Gpu, ...] = ()
    holders: tuple[Judged, ...] = ()
    units: tuple[Mapping[str, Any], ...] = ()
    limits: tuple[str, ...] = ()


def glance(unit: UnitName | None, layout: Layout, observer: Observer) -> Glance:
    """Looks once. The verdicts are those of a sweep for ``unit``; without one, those of the default policy."""
    config = load_config(layout, unit) if unit else None
    view = observer.probe.view(NVML_SECONDS)
    claim, trouble = _claim(config, view)
    free_below = config.sweep.free_below if config else sys.maxsize  # as holders has it: without a claim nobody is in the way
    seen = observer.look(scene_for(unit, config, layout), claim, free_below, view)
    holders = tuple(item for item in seen.judged if item.process.devices and item.rule != "ourselves")
    units = tuple(document(each, layout) for each in managed_units(layout))
    return Glance(view.gpus, holders, units, (*trouble, *seen.sight.limits))


def _claim(config: Config | None, view: GpuView) -> tuple[list[str], tuple[str, ...]]:
    if config is None or view.error:
        return [gpu.uuid for gpu in view.gpus], ()
    try:
        return [gpu.uuid for gpu in claimed(view, config.gpus.claim, None)], ()
    except LifecycleError as error:
        return [], (str(error),)


class Watcher:
    """Looks every 2 s in a thread of its own, and writes a byte to ``wake`` when there is something new. Use in ``with``.

    NVML may take seconds to answer; the keys must not wait for it.
    """

    def __init__(self, unit: UnitName | None, layout: Layout, wake: int) -> None:
        self.unit, self.layout, self.wake = unit, layout, wake
        self.latest = Glance(limits=("looking at the GPUs",))
        self.probe = GpuProbe()
        self.failure: Exception | None = None  # a defect: for the one that draws to raise
        self.ending = threading.Event()
        # A daemon: a look that hangs in the kernel must not keep the program from ending.
        self.thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self.probe.interrupt()
        self.thread.join(END_SECONDS)

    def _watch(self) -> None:
        with self.probe:
            observer = Observer(self.probe)
            while not self.ending.is_set():
                began = time.monotonic()
                try:
                    self.latest = glance(self.unit, self.layout, observer)
                except (LifecycleError, OSError) as error:
                    self.latest = Glance(limits=(str(error),))
                except Exception as error:  # noqa: BLE001 - the boundary of the thread: it is raised in the other one
                    self.failure = error
                if self.ending.is_set():  # whoever waited has closed the pipe
                    return
                os.write(self.wake, b"\0")
                self.ending.wait(max(0.1, EVERY - (time.monotonic() - began)))
