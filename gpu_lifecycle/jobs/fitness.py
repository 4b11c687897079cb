"""Looks whether the claimed GPUs are fit to work, before an engine is started on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_lifecycle.facts import GpuHealth
from gpu_lifecycle.rules.fitness import Unfit, absent, fabric_starting, judge, unread
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.system.gpu import GpuProbe

NVML_SECONDS = 30.0
FABRIC_SECONDS = 90.0  # an NVSwitch fabric takes up to a minute after boot
POLL = 2.0


@dataclass(frozen=True, slots=True)
class Fitness:
    """What was found wrong, errors and warnings, and what could not be found out."""

    unfit: tuple[Unfit, ...] = ()
    unknown: tuple[str, ...] = ()
    health: tuple[GpuHealth, ...] = ()


def examine(probe: GpuProbe, uuids: Sequence[str], show: Callable[[str], None], wait: float = FABRIC_SECONDS) -> Fitness:
    """The fitness of these GPUs. A fabric that is coming up is waited for, which ``show`` is told."""
    until = time.monotonic() + wait
    while True:
        found = probe.health(NVML_SECONDS)
        if not isinstance(found, tuple):
            return Fitness(unknown=(f"the fitness of the GPUs is not known: {found.text}",))
        mine = tuple(item for item in found if item.uuid in uuids)
        left = until - time.monotonic()
        if not fabric_starting(mine) or left <= 0:
            break
        show(f"waiting for the NVSwitch fabric of {len(fabric_starting(mine))} GPUs, {show_duration(round(left))} left")
        time.sleep(min(POLL, left))
    gone = [absent(uuid) for uuid in uuids if uuid not in {item.uuid for item in mine}]
    return Fitness(
        (*gone, *(item for health in mine for item in judge(health))),
        tuple(text for health in mine if (text := unread(health))),
        mine,
    )
