"""What only a machine with a GPU can show: run ``python -m pytest tests/gpu`` there, as root. Takes a few seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_lifecycle.rules.claims import judge_release
from gpu_lifecycle.system.gpu import GpuProbe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not os.path.exists("/proc/driver/nvidia/version"), reason="this machine has no NVIDIA driver"),
]
GIB = 1 << 30
# One CUDA context with 1 GiB on the first GPU, by libcuda alone; it says "ready", and ends with its input.
CUDA = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for status in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
               cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30))):
    assert status == 0, status
print("ready", flush=True)
sys.stdin.read()
"""


def ask(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gpu_lifecycle", *words, "--json"]
    document: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)
    return document


@pytest.fixture
def cuda() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", CUDA], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def test_every_gpu_of_the_driver_is_shown() -> None:
    shown = ask("gpus")["gpus"]
    known = os.listdir("/proc/driver/nvidia/gpus")
    assert {gpu["pci"].lower().removeprefix("0000") for gpu in shown} <= set(known) or len(shown) <= len(known)
    assert all(gpu["memory_total"] > 0 and gpu["memory_used"] is not None for gpu in shown)


def test_a_cuda_process_is_a_holder_with_its_memory_and_lets_it_go(cuda: subprocess.Popen[bytes]) -> None:
    row = next(row for row in ask("holders")["holders"] if row["pid"] == cuda.pid)
    assert row["how"][0] == "fd"
    assert max(amount or 0 for amount in row["memory"].values()) >= GIB
    uuid = next(uuid for uuid, amount in row["memory"].items() if (amount or 0) >= GIB)
    with GpuProbe() as probe:
        before = next(gpu.used for gpu in probe.view(30).gpus if gpu.uuid == uuid)
        assert before is not None
        cuda.kill()
        cuda.wait()
        deadline = time.monotonic() + 60
        samples = [probe.view(30), probe.view(30)]
        while not judge_release(samples, [uuid], before - GIB // 2).free:
            assert time.monotonic() < deadline, judge_release(samples, [uuid], before - GIB // 2).text
            samples = [samples[1], probe.view(30)]


def test_the_helper_maps_no_cuda() -> None:
    with GpuProbe() as probe:
        assert probe.view(30).error is None
        (pid,) = probe.pids
        with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
            assert "libcuda" not in maps.read()
