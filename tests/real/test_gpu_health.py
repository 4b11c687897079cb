"""Every return code of NVML, and every item of a GPU's fitness, through the real binding and helper: none reads as a zero."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_lifecycle.facts import ErrorClass, GpuHealth
from gpu_lifecycle.jobs.fitness import examine
from gpu_lifecycle.rules.fitness import judge, unread
from gpu_lifecycle.rules.nvml import CODES
from gpu_lifecycle.system.gpu import GpuProbe

LONG = 30.0
GIB = 2**30
NUMBERS = [*range(1, 31), 999]  # nvmlReturn_t of nvml.h
UNKNOWN = 998
ITEMS = {
    "recovery": "nvmlDeviceGetFieldValues",
    "ecc": "nvmlDeviceGetTotalEccErrors",
    "remap_pending": "nvmlDeviceGetRemappedRows",
    "remap_failed": "nvmlDeviceGetRemappedRows",
    "retired_pending": "nvmlDeviceGetRetiredPagesPendingStatus",
    "fabric_state": "nvmlDeviceGetGpuFabricInfoV",
    "fabric_status": "nvmlDeviceGetGpuFabricInfoV",
    "links_down": "nvmlDeviceGetNvLinkState",
    "margin": "nvmlDeviceGetMarginTemperature",
    "clocks": "nvmlDeviceGetCurrentClocksEventReasons",
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "max_width": "nvmlDeviceGetMaxPcieLinkWidth",
    "persistence": "nvmlDeviceGetPersistenceMode",
    "compute": "nvmlDeviceGetComputeMode",
}
WELL = {
    "recovery": 0, "ecc": 0, "remap_pending": 0, "remap_failed": 0, "retired_pending": 0, "fabric_state": 0,
    "fabric_status": 0, "links_down": 0, "margin": 40, "clocks": 0, "width": 16, "max_width": 16, "persistence": 1,
    "compute": 0,
}  # fmt: skip


def healths(probe: GpuProbe) -> tuple[GpuHealth, ...]:
    found = probe.health(LONG)
    assert isinstance(found, tuple), found
    return found


@pytest.mark.parametrize("code", NUMBERS)
def test_a_code_of_a_start(driver: Callable[..., None], probe: GpuProbe, code: int) -> None:
    driver(f"error nvmlInitWithFlags {code}")
    view, health = probe.view(LONG), probe.health(LONG)
    assert view.gpus == ()
    assert view.error
    assert not isinstance(health, tuple)
    assert view.error == health
    assert (view.error.code, view.error.kind) == (str(code), CODES[str(code)][0])
    assert f"NVML {code}" in view.error.text


@pytest.mark.parametrize("code", [*NUMBERS, UNKNOWN])
def test_a_code_of_a_gpu(driver: Callable[..., None], probe: GpuProbe, code: int) -> None:
    """A memory figure that could not be read is unknown; the other GPU is seen all the same."""
    driver(f"error nvmlDeviceGetMemoryInfo_v2 {code} 0", f"error nvmlDeviceGetMemoryInfo {code} 0")
    first, second = probe.view(LONG).gpus
    assert (first.used, first.total) == (None, None)
    assert first.error
    assert first.error.code == str(code)
    assert first.error.kind is (CODES[str(code)][0] if code != UNKNOWN else ErrorClass.RETRY)
    assert (second.used, second.error) == (0, None)


def test_a_healthy_gpu(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver()
    first, second = healths(probe)
    assert (first.uuid, first.index, dict(first.values), dict(first.errors), first.error) == ("GPU-0", 0, WELL, {}, None)
    assert second.uuid == "GPU-1"
    assert judge(first) == ()


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("code", [3, 13])
def test_what_a_gpu_or_a_library_does_not_know_is_skipped(
    driver: Callable[..., None], probe: GpuProbe, item: str, code: int
) -> None:
    driver(f"error {ITEMS[item]} {code} 0")
    first, second = healths(probe)
    assert (first.values[item], dict(first.errors)) == (None, {})
    assert second.values == WELL
    assert judge(first) == ()


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("code", [4, 15, 999])
def test_an_item_that_cannot_be_read_is_no_number(driver: Callable[..., None], probe: GpuProbe, item: str, code: int) -> None:
    driver(f"error {ITEMS[item]} {code} 0")
    first, _ = healths(probe)
    assert item not in first.values
    assert first.errors[item].code == str(code)
    assert f"NVML {code}" in unread(first)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("recovery 1", "gpu-recovery"), ("recovery 2", "gpu-recovery"), ("recovery 3", "gpu-recovery"),
        ("ecc 7", "ecc-uncorrected"), ("remap_pending 1", "row-remap-pending"), ("remap_failed 1", "row-remap-failed"),
        ("retired_pending 1", "page-retirement-pending"), ("fabric_state 1", "fabric"), ("fabric_state 2", "fabric"),
        ("links_down 2", "nvlink-down"), ("margin 0", "too-hot"), ("margin -3", "too-hot"), ("clocks 64", "slowed-down"),
        ("width 8", "pcie-width"), ("persistence 0", "persistence-off"), ("compute 2", "compute-mode"),
        ("compute 3", "compute-mode"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_gpu_is_found_and_nothing_else(
    driver: Callable[..., None], probe: GpuProbe, line: str, code: str
) -> None:
    driver(f"health 0 {line}")
    first, second = healths(probe)
    assert [item.finding.code for item in judge(first)] == [code]
    assert judge(second) == ()


@pytest.mark.parametrize("line", ["fabric_state 3", "links 0", "links_down 18", "clocks 5", "max_width 8"])
def test_what_is_as_it_should_be(driver: Callable[..., None], probe: GpuProbe, line: str) -> None:
    driver(f"health 0 {line}")
    assert judge(healths(probe)[0]) == ()


def test_a_lost_gpu_has_no_health(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver("error nvmlDeviceGetHandleByIndex_v2 15 0")
    first, second = healths(probe)
    assert first.error
    assert (first.error.code, dict(first.values)) == ("15", {})
    assert second.values == WELL


def test_a_question_that_was_sent_ahead_is_answered_first(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver()
    probe.begin()
    assert len(healths(probe)) == 2
    assert len(probe.view(LONG).gpus) == 2


def test_a_question_on_health_that_hangs(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver("delay nvmlDeviceGetMarginTemperature 600000")
    found = probe.health(0.5)
    assert not isinstance(found, tuple)
    assert (found.code, probe.hung) == ("hung", 1)


NO_MEMORY = ("error nvmlDeviceGetMemoryInfo_v2 3", "error nvmlDeviceGetMemoryInfo 3")
UNIFIED = "gpu 0 minor=0 uuid=GPU-0 pci=00000000:01:00.0 total=0 reserved=0 base=0 name=NVIDIA GB10"


def test_a_part_that_shares_the_machines_memory(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver(UNIFIED, *NO_MEMORY, f"process 0 4711 {5 * GIB}", f"process 0 4712 {GIB}")
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    shared, own = probe.view(LONG).gpus
    assert (shared.total, shared.used, shared.error) == (total * 1024, 6 * GIB, None)
    assert own.error, "any other part that knows no memory is broken, not empty"
    assert (own.error.code, own.used) == ("3", None)


def test_a_shared_memory_of_which_a_share_is_unknown_is_unknown(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver(UNIFIED, *NO_MEMORY, "process 0 4711 unknown")
    assert probe.view(LONG).gpus[0].used is None


def test_a_lost_part_that_shares_memory_is_lost(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver(UNIFIED, "error nvmlDeviceGetMemoryInfo_v2 15 0")
    gpu = probe.view(LONG).gpus[0]
    assert gpu.error
    assert (gpu.error.code, gpu.used) == ("15", None)


def test_only_what_is_asked_for_is_opened(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver()
    assert [gpu.uuid for gpu in probe.view(LONG, [1]).gpus] == ["GPU-1"]
    assert probe.view(LONG, [7]).gpus == ()
    assert len(probe.view(LONG).gpus) == 2


def test_a_released_probe_asks_nobody(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver()
    assert probe.view(LONG).error is None
    probe.release(0.4)
    view = probe.view(LONG)
    assert view.error
    assert (view.error.code, view.error.kind) == ("released", ErrorClass.DEGRADED)
    time.sleep(0.5)
    assert probe.view(LONG).error is None


def test_a_library_that_was_replaced_is_loaded_anew(
    driver: Callable[..., None], probe: GpuProbe, tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an upgrade does it: another file comes into the place of the first one."""
    place = tmp_path / "lib"
    shutil.copytree(library, place)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(place))
    driver()
    assert probe.view(LONG).error is None
    first = probe.pids
    assert probe.view(LONG).error is None
    assert probe.pids == first
    new = tmp_path / "new.so"
    shutil.copy(place / "libnvidia-ml.so.1", new)
    new.rename((place / "libnvidia-ml.so.1").resolve())
    assert probe.view(LONG).error is None
    assert probe.pids
    assert probe.pids != first


@pytest.mark.parametrize("line", ["error nvmlDeviceGetHandleByIndex_v2 15 0", "error nvmlDeviceGetHandleByIndex_v2 4 0"])
def test_a_claimed_gpu_that_answers_no_more_is_no_fit_one(driver: Callable[..., None], probe: GpuProbe, line: str) -> None:
    driver(line)
    found = examine(probe, ["GPU-0", "GPU-1"], lambda _: None, wait=0)
    assert [(item.uuid, item.finding.code) for item in found.unfit] == [("GPU-0", "gpu")]


def test_a_gpu_that_is_lost_under_an_open_session(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver()
    healths(probe)
    driver(*(f"error {function} 15 0" for function in set(ITEMS.values())))
    found = examine(probe, ["GPU-0", "GPU-1"], lambda _: None, wait=0)
    assert [(item.uuid, int(item.status)) for item in found.unfit] == [("GPU-0", 69)]
