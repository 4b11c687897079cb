"""Each function of NVML that is ever called hangs in turn: an answer in time all the same, and never two stuck helpers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_lifecycle.facts import GpuError
from gpu_lifecycle.system.gpu import GpuProbe

LONG = 30.0
SOON = 0.4
VIEW = (
    "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
)  # fmt: skip
HEALTH = (
    "nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode",
)  # fmt: skip
INSTANCE = f"mig 32 parent=0 instance=3 uuid=MIG-1111 total={2**30}"


def view(probe: GpuProbe, seconds: float) -> GpuError | None:
    return probe.view(seconds).error


def health(probe: GpuProbe, seconds: float) -> GpuError | None:
    found = probe.health(seconds)
    return None if isinstance(found, tuple) else found


EACH = [*(pytest.param(view, name, id=name) for name in VIEW), *(pytest.param(health, name, id=name) for name in HEALTH)]


@pytest.mark.parametrize(("ask", "function"), EACH)
def test_it_hangs(
    driver: Callable[..., None], probe: GpuProbe, ask: Callable[[GpuProbe, float], GpuError | None], function: str
) -> None:
    driver(INSTANCE)
    assert ask(probe, LONG) is None
    probe.close()  # what is known of the GPUs is asked anew
    driver(INSTANCE, f"delay {function} 600000")
    for count in (1, 2):
        began = time.monotonic()
        error = ask(probe, SOON)
        assert error
        assert (error.code, error.kind, probe.hung) == ("hung", "retry", count)
        assert time.monotonic() - began < SOON + 4
        assert len(probe.pids) == 1
    (stuck,) = probe.pids
    probe.close()
    assert (probe.pids, Path(f"/proc/{stuck}").exists()) == (set(), False)
    driver(INSTANCE)
    assert ask(probe, LONG) is None


def test_the_end_of_a_session_hangs(driver: Callable[..., None], probe: GpuProbe) -> None:
    """nvmlShutdown, when the helper is told to go: it is killed, and nobody waits for it for long."""
    driver("delay nvmlShutdown 600000")
    assert view(probe, LONG) is None
    began = time.monotonic()
    probe.close()
    assert time.monotonic() - began < 5
    assert probe.pids == set()
