"""Waits, for a while after boot, until the claimed GPUs and their nodes are there; makes nodes that are missing."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import LifecycleError, UnavailableError
from gpu_lifecycle.facts import GpuView
from gpu_lifecycle.rules.claims import claimed
from gpu_lifecycle.rules.nodes import BOOT_SECONDS, capability_files, cure, lacking, missing, tools
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.system.devices import capability_nodes, find_devices, uptime, what_is
from gpu_lifecycle.system.gpu import GpuProbe

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

NVML_SECONDS = 30.0
MODPROBE_SECONDS = 20.0
POLL = 1.0
NO_WAIT = frozenset(("4", "12", "18"))  # not permitted, no library, wrong library: time changes none of these


def await_gpus(probe: GpuProbe, config: Config, show: Callable[[str], None]) -> None:
    """Returns once all is there. Raises what the claim raises, or UnavailableError for a node that nobody made.

    nvidia-modprobe is the driver's own tool, which its libraries call where a node is missing; the unit itself cannot, for
    it may gain no privileges.
    """
    until = time.monotonic() + max(0.0, BOOT_SECONDS - (uptime() or BOOT_SECONDS))
    tried = False
    show("asking NVML for the GPUs")
    while True:
        view = probe.view(NVML_SECONDS)
        problem = _problem(view, config)
        if problem is None:
            return
        if view.error and view.error.code in NO_WAIT:
            raise problem
        if isinstance(problem, _MissingNodesError) and not tried:
            tried = True
            for words in tools(problem.names, problem.caps):
                show(f"{problem.message}: running {' '.join(words)}")
                _run(words)
            continue
        left = until - time.monotonic()
        if left <= 0:
            raise problem
        show(f"waiting for the NVIDIA driver after the boot, {show_duration(round(left))} left: {problem.message}")
        time.sleep(min(POLL, left))


class _MissingNodesError(UnavailableError):
    """The GPUs are there, and nodes of theirs are not: ``names``; ``caps`` are those that instances need."""

    names: tuple[str, ...] = ()
    caps: Mapping[str, str] = MappingProxyType({})


def _problem(view: GpuView, config: Config) -> LifecycleError | None:
    try:
        gpus = claimed(view, config.gpus.claim, config.gpus.count)
    except UnavailableError as error:
        return error
    devices = find_devices()
    caps = capability_nodes(capability_files(gpus))
    names = lacking(devices.nodes, devices.wrong, gpus, caps)
    if not names:
        return None
    found = missing(devices.nodes, {path: what_is(path) for path in devices.wrong}, gpus, caps)
    problem = _MissingNodesError("; ".join(found), hint=cure(names, devices.wrong, caps))
    problem.names, problem.caps = names, caps
    return problem


def _run(words: tuple[str, ...]) -> None:
    """What comes of it shows at the next look."""
    try:
        subprocess.run(words, check=False, timeout=MODPROBE_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return
