"""What a run starts from: the GPUs that it claims, and the times and amounts that it is judged by."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from gpu_lifecycle.facts import ErrorClass, Gpu
from gpu_lifecycle.rules.claims import claimed
from gpu_lifecycle.rules.life import Limits
from gpu_lifecycle.rules.readiness import Needs, min_used_for
from gpu_lifecycle.rules.visible import variables
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.weights import weights_size

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

NVML_SECONDS = 30.0


async def claim(probe: GpuProbe, config: Config) -> tuple[tuple[Gpu, ...], dict[str, str]]:
    """The claimed GPUs, and the variables that show the engine these and no others.

    A trouble of NVML that may pass is waited out for a while. Raises what ``claimed`` and ``variables`` raise.
    """
    deadline = time.monotonic() + NVML_SECONDS
    while True:
        view = await asyncio.to_thread(probe.view, NVML_SECONDS)
        passing = view.error is not None and view.error.kind is ErrorClass.RETRY
        if not passing or time.monotonic() > deadline:
            gpus = claimed(view, config.gpus.claim, config.gpus.count)
            return gpus, variables(view, gpus, config.server, os.environ)
        await asyncio.sleep(1.0)


async def claim_or_stop(
    probe: GpuProbe, config: Config, stop: Awaitable[object]
) -> tuple[tuple[Gpu, ...], dict[str, str]] | None:
    """The claimed GPUs, or None where ``stop`` came first: a stop works in every phase."""
    asking = asyncio.create_task(claim(probe, config))
    stopping = asyncio.ensure_future(stop)
    await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if asking.done():
        stopping.cancel()
        return asking.result()
    probe.interrupt()
    asking.cancel()
    return None


def limits_for(config: Config, gpus: tuple[Gpu, ...], watchdog: float | None) -> Limits:
    """The config's times; looks are frequent enough for systemd's watchdog whatever the config says."""
    interval = config.watch.interval
    if watchdog:
        interval = min(interval, watchdog / 4)
    min_used = config.ready.min_used
    weights = weights_size(config.server.target() or "")
    if min_used == "auto":
        min_used = min_used_for(weights, len(gpus))
    return Limits(
        needs=Needs({gpu.uuid: gpu.label for gpu in gpus}, min_used),
        stall=config.ready.stall,
        ceiling=config.ready.ceiling,
        interval=interval,
        probe_timeout=config.watch.timeout,
        failures=config.watch.failures,
        drain=config.stop.drain,
        term_grace=config.sweep.term_grace,
        exit_deadline=config.sweep.exit_deadline,
        busy_grace=config.watch.busy_grace,
        weights=weights // len(gpus) if weights and gpus else 0,
        before=config.stop.before_limit if config.stop.before else 0.0,
    )


def probe_deadline(config: Config, watchdog: float | None) -> float:
    """Seconds for one answer: so far below systemd's ``watchdog`` that a slow one is judged here before we are.

    One look at a ready engine takes a third more at most, for its metrics page, and an interval later comes the next.
    """
    return min(config.watch.timeout, 0.4 * watchdog) if watchdog else config.watch.timeout
