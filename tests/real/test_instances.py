"""GPUs that are divided into instances (MIG), through the real binding: each instance is seen by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.facts import GpuProcess
from gpu_lifecycle.rules.claims import claimed, judge_release
from gpu_lifecycle.system.gpu import GpuProbe

LONG = 30.0
GIB = 2**30
FIRST, SECOND = "MIG-aaaa1111-0000", "MIG-bbbb2222-0000"
DIVIDED = (
    f"mig 32 parent=0 instance=3 compute=1 uuid={FIRST} total={40 * GIB}",
    f"mig 33 parent=0 instance=5 uuid={SECOND} total={20 * GIB}",
)


def test_each_instance_has_its_own_memory_and_processes(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver(*DIVIDED, f"process 32 4711 {5 * GIB}", f"process 33 4712 {GIB}", f"process 1 4713 {2 * GIB}")
    whole, first, second, other = probe.view(LONG).gpus
    assert (whole.uuid, whole.divided, whole.total, whole.used, whole.error) == ("GPU-0", True, None, None, None)
    assert (first.uuid, first.parent, first.board, first.instance) == (FIRST, "GPU-0", "GPU-0", 3)
    assert (first.compute_instance, second.compute_instance, whole.compute_instance) == (1, 0, None)
    assert (first.index, first.minor, first.pci) == (whole.index, whole.minor, whole.pci)
    assert (first.total, first.used, first.processes) == (40 * GIB, 5 * GIB, (GpuProcess(4711, 5 * GIB),))
    assert (second.uuid, second.used, second.processes) == (SECOND, GIB, (GpuProcess(4712, GIB),))
    assert (other.uuid, other.parent, other.divided, other.used, other.board) == ("GPU-1", "", False, 2 * GIB, "GPU-1")


def test_without_the_number_of_a_compute_instance_all_else_is_known(driver: Callable[..., None], probe: GpuProbe) -> None:
    """Drivers before MIG's compute instances do not say it."""
    driver(*DIVIDED, "error nvmlDeviceGetComputeInstanceId 13 32")
    first = probe.view(LONG).gpus[1]
    assert (first.uuid, first.instance, first.compute_instance, first.error) == (FIRST, 3, None, None)


def test_instances_come_and_go_within_a_session(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver(*DIVIDED)
    assert [gpu.uuid for gpu in probe.view(LONG).gpus] == ["GPU-0", FIRST, SECOND, "GPU-1"]
    driver(DIVIDED[1])
    assert [gpu.uuid for gpu in probe.view(LONG).gpus] == ["GPU-0", SECOND, "GPU-1"]
    assert [gpu.uuid for gpu in probe.view(LONG, [1]).gpus] == ["GPU-1"]


@pytest.mark.parametrize(
    ("claim", "uuids"), [([FIRST], [FIRST]), ([SECOND, FIRST], [SECOND, FIRST]), (["mig-BBBB2222", 1], [SECOND, "GPU-1"])]
)
def test_an_instance_is_claimed_by_its_uuid(
    driver: Callable[..., None], probe: GpuProbe, claim: list[str | int], uuids: list[str]
) -> None:
    driver(*DIVIDED)
    assert [gpu.uuid for gpu in claimed(probe.view(LONG), claim, len(uuids))] == uuids


@pytest.mark.parametrize("claim", ["all", [0], ["00000000:01:00.0"], [1, 0]])
def test_a_divided_gpu_is_not_claimed_whole(driver: Callable[..., None], probe: GpuProbe, claim: str | list[str | int]) -> None:
    driver(*DIVIDED)
    view = probe.view(LONG)
    with pytest.raises(ConfigError, match=r"GPU 0 \(GPU-0\) is divided into 2 instances \(MIG\)") as caught:
        claimed(view, claim, None)
    assert FIRST in caught.value.hint
    assert SECOND in caught.value.hint


def test_an_instance_is_free_when_it_is_empty_whatever_the_others_hold(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver(*DIVIDED, f"process 33 4712 {15 * GIB}")
    samples = [probe.view(LONG), probe.view(LONG)]
    assert judge_release(samples, [FIRST], GIB).free
    assert not judge_release(samples, [SECOND], GIB).free
    assert not judge_release(samples, ["GPU-0"], GIB).free, "of the whole nothing is known, and that is not zero"


@pytest.mark.parametrize(
    ("line", "errors"),
    [
        ("error nvmlDeviceGetMemoryInfo_v2 999 32", {FIRST: "999"}),
        ("error nvmlDeviceGetComputeRunningProcesses_v3 4 33", {SECOND: "4"}),
        ("error nvmlDeviceGetGpuInstanceId 15 32", {FIRST: "15"}),
        ("error nvmlDeviceGetMigMode 999 0", {"GPU-0": "999"}),
        ("error nvmlDeviceGetMaxMigDeviceCount 15 0", {"GPU-0": "15"}),
        ("error nvmlDeviceGetMigDeviceHandleByIndex 999 0", {"GPU-0": "999"}),
    ],
)
def test_what_cannot_be_read_is_an_error(
    driver: Callable[..., None], probe: GpuProbe, line: str, errors: dict[str, str]
) -> None:
    driver(*DIVIDED, line)
    view = probe.view(LONG)
    assert {gpu.uuid: gpu.error.code for gpu in view.gpus if gpu.error} == errors
    for gpu in view.gpus:
        assert (gpu.used is None) == (gpu.uuid in errors or gpu.divided)


@pytest.mark.parametrize("code", [3, 13])
def test_a_gpu_or_library_without_instances(driver: Callable[..., None], probe: GpuProbe, code: int) -> None:
    driver(f"error nvmlDeviceGetMigMode {code}")
    assert [(gpu.divided, gpu.used) for gpu in probe.view(LONG).gpus] == [(False, 0), (False, 0)]
