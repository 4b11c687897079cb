"""Memory that nobody visible holds: what is said of it, and that an unknown figure is never a zero."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_lifecycle.facts import Gpu, GpuProcess, Identity, Judged, Owner, OwnerKind, Process, Verdict
from gpu_lifecycle.rules.unexplained import Place, amount, explain, strangers

GIB = 1 << 30
GPU = Gpu("GPU-a", 3, 3, "0000:01:00.0", "H200", 80 * GIB, 10 * GIB, (GpuProcess(7, 4 * GIB), GpuProcess(77777, 6 * GIB)))
PROCESS = Process(Identity("boot", 7, 100), 1, "S", "x", "/x", 0, "root", "/", 0, None, devices=frozenset({1}))
HELD = Judged(PROCESS, Owner(OwnerKind.NONE), Verdict.SPARE, "rule", "because", ("GPU-a",), {"GPU-a": 4 * GIB})


@pytest.mark.parametrize(
    ("used", "figure", "size"),
    [(10 * GIB, 4 * GIB, 6 * GIB), (4 * GIB, 4 * GIB, 0), (GIB, 4 * GIB, 0), (None, 4 * GIB, None), (10 * GIB, None, None)],
)
def test_amount(used: int | None, figure: int | None, size: int | None) -> None:
    assert amount(replace(GPU, used=used), [replace(HELD, memory={"GPU-a": figure})]) == size


def test_amount_of_other_gpus_explains_nothing() -> None:
    assert amount(GPU, [replace(HELD, memory={"GPU-b": 10 * GIB})]) == 10 * GIB


def test_strangers() -> None:
    assert strangers(GPU, {7}) == [GpuProcess(77777, 6 * GIB)]
    assert strangers(replace(GPU, processes=None), {7}) == []


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Place(inner=True, handles=7), "held outside this container or PID namespace (NVML names process 77777"),
        (
            Place(inner=True, handles=7),
            ", which holds no device here; the driver counts 7 open handles on this host); on the host: ",
        ),
        (Place(inner=True, handles=0), "held outside this container"),
        (Place(inner=False, handles=0), "held by nobody at all: the driver has not given it back (NVML"),
        (Place(inner=False, handles=0), "; see dmesg; if it stays, reset the GPU: nvidia-smi --gpu-reset"),
        (Place(inner=False, handles=1), "held by nobody that can be seen from here (NVML"),
        (Place(inner=False), "; look for a container, a debugger or a process in teardown: nvidia-smi"),
    ],
)
def test_explain(place: Place, words: str) -> None:
    said = "; ".join(explain([(GPU, 6 * GIB)], {7}, place))
    assert said.startswith("6 GiB on GPU 3 held by nobody ")
    assert words in said
