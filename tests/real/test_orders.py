"""Sixteen GPUs whose index, minor and address run in different orders, through the real binding: the right ones, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_lifecycle.errors import LifecycleError, UnavailableError
from gpu_lifecycle.rules.claims import claimed
from gpu_lifecycle.rules.config import Server
from gpu_lifecycle.rules.visible import variables
from gpu_lifecycle.system.gpu import GpuProbe

LONG = 30.0
COUNT = 16
BUSES = [(7 * index + 3) % COUNT + 0x10 for index in range(COUNT)]  # a permutation: no GPU has its own place
MINORS = [(5 * index + 1) % COUNT + (8 if index % 2 else 0) for index in range(COUNT)]  # with gaps
SERVERS = {name: Server(("/bin/engine", "--port", "1"), engine=name) for name in ("sglang", "custom")}


@pytest.fixture
def many(driver: Callable[..., None], tmp_path: Path) -> Callable[..., None]:
    """The stand-in with sixteen GPUs in place of the usual two."""

    def state(*lines: str) -> None:
        driver()
        gpus = [
            f"gpu {index} minor={MINORS[index]} uuid=GPU-{index:04x}aaaa pci=00000000:{BUSES[index]:02X}:00.0 "
            f"total={2**36} reserved=0 base=0 name=NVIDIA H200"
            for index in range(COUNT)
        ]
        new = tmp_path / "state.new"
        new.write_text("\n".join(["driver 595.71.05", *gpus, *lines, ""]))
        new.rename(tmp_path / "state")

    return state


def numbers(probe: GpuProbe, claim: str | list[str | int], engine: str = "sglang") -> str | None:
    view = probe.view(LONG)
    return variables(view, claimed(view, claim, None), SERVERS[engine], {}).get("CUDA_VISIBLE_DEVICES")


def test_every_gpu_is_the_same_one_by_each_of_its_names(many: Callable[..., None], probe: GpuProbe) -> None:
    many()
    view = probe.view(LONG)
    assert [gpu.minor for gpu in view.gpus] == MINORS
    for gpu in view.gpus:
        bus = BUSES[gpu.index]
        names: list[str | int] = [gpu.index, gpu.uuid, gpu.uuid.upper(), f"0000:{bus:02x}:00.0", f"{bus:02X}:00.0", gpu.pci]
        assert {claimed(view, [name], 1)[0].uuid for name in names} == {gpu.uuid}


def test_cudas_numbers_run_along_the_addresses(many: Callable[..., None], probe: GpuProbe) -> None:
    many()
    rank = sorted(range(COUNT), key=lambda index: BUSES[index])
    for index in range(COUNT):
        assert numbers(probe, [index]) == str(rank.index(index))
        assert numbers(probe, [index], "custom") == f"GPU-{index:04x}aaaa"
    assert numbers(probe, "all") is None


def test_hidden_gpus_have_no_number(many: Callable[..., None], probe: GpuProbe) -> None:
    """A container that may open one of them: its node keeps the host's minor, its number for CUDA is 0."""
    many(*(f"error nvmlDeviceGetHandleByIndex_v2 4 {index}" for index in range(COUNT) if index != 6))
    assert numbers(probe, ["GPU-0006aaaa"]) is None, "all that can be reached"
    view = probe.view(LONG)
    (only,) = claimed(view, [6], 1)
    assert (only.minor, only.uuid) == (MINORS[6], "GPU-0006aaaa")
    for claim in ("all", [5], ["GPU-0005aaaa"], [f"{BUSES[5]:02x}:00.0"]):
        with pytest.raises(UnavailableError):
            claimed(view, claim, None)


def test_one_that_is_hidden_shifts_the_numbers_and_one_that_is_lost_makes_them_unknown(
    many: Callable[..., None], probe: GpuProbe
) -> None:
    first = BUSES.index(min(BUSES))
    last = BUSES.index(max(BUSES))
    many(f"error nvmlDeviceGetHandleByIndex_v2 4 {first}")
    assert numbers(probe, [last]) == str(COUNT - 2)
    many(f"error nvmlDeviceGetHandleByIndex_v2 15 {first}")
    with pytest.raises(LifecycleError, match="cannot tell CUDA's numbers"):
        numbers(probe, [last])
    assert numbers(probe, [last], "custom") == f"GPU-{last:04x}aaaa"
