"""The NVML helper and its door, with the unmodified binding and a stand-in library: it answers, hangs, dies, and lets go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_lifecycle.facts import GpuProcess
from gpu_lifecycle.system import nvml_helper
from gpu_lifecycle.system.gpu import GpuProbe

GIB = 2**30
LONG = 30.0
PROCESSES = [f"process 0 4711 {5 * GIB}", "process 1 4711 unknown"]


def test_all_is_seen(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver(*PROCESSES, f"hidden 1 {2 * GIB}")
    assert probe.pids == set(), "no helper before the first question"
    before = time.monotonic()
    view = probe.view(LONG)
    assert (view.error, view.driver) == (None, "595.71.05")
    assert before <= view.at <= time.monotonic()
    first, second = view.gpus
    assert (first.uuid, first.index, first.minor, first.pci, first.name) == ("GPU-0", 0, 3, "00000000:01:00.0", "NVIDIA H200")
    assert (second.uuid, second.index, second.minor, second.error) == ("GPU-1", 1, 4, None)
    assert (first.total, second.total) == (80 * GIB, 80 * GIB)
    assert first.used == 5 * GIB, "the driver's own share is not counted"
    assert second.used is not None
    assert second.used >= 2 * GIB
    assert (first.processes, second.processes) == ((GpuProcess(4711, 5 * GIB),), (GpuProcess(4711, None),))
    (helper,) = probe.pids
    driver()
    again = probe.view(LONG)
    assert (probe.pids, again.gpus[0].processes, again.gpus[0].used) == ({helper}, (), 0), "the same helper, a new look"


def test_it_touches_no_cuda_and_has_a_session_of_its_own(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver()
    assert probe.view(LONG).error is None
    (helper,) = probe.pids
    maps = Path(f"/proc/{helper}/maps").read_text()
    assert "libnvidia-ml" in maps
    assert "libcuda" not in maps
    assert os.getsid(helper) == helper
    assert not Path("/proc/self/maps").read_text().count("libnvidia-ml"), "never in the asking process"


@pytest.mark.parametrize(
    ("line", "code"),
    [("unloaded", "9"), ("error nvmlInitWithFlags 18", "18"), ("error nvmlDeviceGetCount_v2 999", "999"), ("error * 15", "15")],
)
def test_no_view(driver: Callable[..., None], probe: GpuProbe, line: str, code: str) -> None:
    driver(line)
    view = probe.view(LONG)
    assert view.error
    assert (view.error.code, view.gpus) == (code, ())
    driver()
    assert probe.view(LONG).error is None, "what has passed is past"


@pytest.mark.usefixtures("driver")
def test_the_driver_is_not_loaded(probe: GpuProbe, tmp_path: Path) -> None:
    assert not (tmp_path / "state").exists()
    view = probe.view(LONG)
    assert view.error
    assert (view.error.code, view.error.kind) == ("9", "host-action")


@pytest.mark.skipif(subprocess.run("ldconfig -p | grep -q nvidia-ml", shell=True).returncode == 0, reason="a real library")
def test_there_is_no_library(probe: GpuProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    view = probe.view(LONG)
    assert view.error
    assert (view.error.code, view.error.kind) == ("12", "host-action")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("error nvmlDeviceGetHandleByIndex_v2 15 1", "15"),
        ("error nvmlDeviceGetMemoryInfo_v2 999 1", "999"),
        ("error nvmlDeviceGetComputeRunningProcesses_v3 4 1", "4"),
        ("error nvmlDeviceGetUUID 16 1", "16"),
    ],
)
def test_one_broken_gpu_does_not_hide_the_other(driver: Callable[..., None], probe: GpuProbe, line: str, code: str) -> None:
    driver(line)
    view = probe.view(LONG)
    sound, broken = view.gpus
    assert (view.error, sound.error, sound.used) == (None, None, 0)
    assert broken.error
    assert (broken.error.code, broken.index) == (code, 1)
    assert broken.processes is None


@pytest.mark.parametrize("line", ["error nvmlDeviceGetMinorNumber 3", "error nvmlDeviceGetGraphicsRunningProcesses_v3 3"])
def test_what_a_platform_lacks_is_no_error(driver: Callable[..., None], probe: GpuProbe, line: str) -> None:
    driver(line, *PROCESSES)
    (gpu, _) = probe.view(LONG).gpus
    assert (gpu.error, gpu.processes) == (None, (GpuProcess(4711, 5 * GIB),))
    assert (gpu.minor is None) is ("Minor" in line)


def test_a_question_that_hangs(driver: Callable[..., None], probe: GpuProbe) -> None:
    driver()
    assert probe.view(LONG).error is None
    driver("delay nvmlDeviceGetMemoryInfo_v2 600000")
    for count in (1, 2):
        began = time.monotonic()
        view = probe.view(0.5)
        assert 0.5 <= time.monotonic() - began < 5
        assert view.error
        assert (view.error.code, view.error.text) == ("hung", "NVML does not answer (NVML hung: no answer in 0.5 s)")
        assert probe.hung == count
        assert len(probe.pids) == 1
    driver()
    view = probe.view(LONG)
    assert view.error is None
    assert len(probe.pids) == 1, "the hung one is gone"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_helper_is_replaced(driver: Callable[..., None], probe: GpuProbe, number: signal.Signals) -> None:
    driver()
    assert probe.view(LONG).error is None
    (helper,) = probe.pids
    os.kill(helper, number)
    os.waitid(os.P_PID, helper, os.WEXITED | os.WNOWAIT)
    assert probe.view(LONG).error is None
    assert probe.pids
    assert helper not in probe.pids


def test_a_question_is_interrupted(driver: Callable[..., None], probe: GpuProbe, tmp_path: Path) -> None:
    """From another thread, once the helper is inside the call (its init is on record)."""
    import threading

    driver("delay nvmlSystemGetDriverVersion 600000")

    def interrupt() -> None:
        deadline = time.monotonic() + LONG
        while not (tmp_path / "inits").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        probe.interrupt()

    other = threading.Thread(target=interrupt)
    other.start()
    view = probe.view(LONG * 2)
    other.join()
    assert view.error
    assert (view.error.code, "status -9" in view.error.text) == ("helper-died", True)


def test_closing_ends_a_hung_helper(driver: Callable[..., None]) -> None:
    driver("delay nvmlInitWithFlags 600000")
    with GpuProbe() as probe:
        assert probe.view(0.3).error
        (helper,) = probe.pids
    assert not Path(f"/proc/{helper}").exists()
    assert probe.pids == set()


def counts(folder: Path) -> list[int]:
    return [len(path.read_bytes()) if (path := folder / name).exists() else 0 for name in ("inits", "shutdowns")]


def test_nvml_is_let_go_at_the_end_and_on_errors(driver: Callable[..., None], tmp_path: Path) -> None:
    driver()
    with GpuProbe() as probe:
        for _ in range(3):
            assert probe.view(LONG).error is None
        assert counts(tmp_path) == [1, 0], "one session for all questions"
        driver("error nvmlDeviceGetCount_v2 15")
        assert probe.view(LONG).error
        assert counts(tmp_path) == [1, 1], "a session that failed is closed"
        driver()
        assert probe.view(LONG).error is None
    assert counts(tmp_path) == [2, 2]


def test_an_idle_helper_lets_go(driver: Callable[..., None], probe: GpuProbe, tmp_path: Path) -> None:
    """A handle that stays open would block a reset of the GPU."""
    driver()
    assert probe.view(LONG).error is None
    deadline = time.monotonic() + nvml_helper.IDLE_SECONDS + LONG
    while counts(tmp_path) != [1, 1]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert probe.view(LONG).error is None
    assert counts(tmp_path) == [2, 1]


def test_who_asks_and_goes_is_no_error(driver: Callable[..., None]) -> None:
    """A command that ends before the helper has answered: it says nothing, least of all a traceback."""
    import pynvml

    driver()
    process = [sys.executable, "-I", "-B", "-S", nvml_helper.__file__, str(Path(pynvml.__file__).parent)]
    pipe = subprocess.PIPE
    with subprocess.Popen(process, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1) as helper:
        assert helper.stdin
        assert helper.stdout
        assert helper.stderr
        helper.stdout.close()
        helper.stdin.write(json.dumps({"id": 1, "op": "view"}) + "\n")
        helper.stdin.close()
        assert (helper.wait(LONG), helper.stderr.read()) == (0, "")


def test_release(driver: Callable[..., None], tmp_path: Path) -> None:
    """The helper alone, as a program."""
    import pynvml

    driver()
    folder = str(Path(pynvml.__file__).parent)
    requests = [{"id": 1, "op": "view"}, {"id": 2, "op": "release"}, {"id": 3, "op": "release"}, {"id": 4, "op": "view"}]
    process = [sys.executable, "-I", "-B", "-S", nvml_helper.__file__, folder]
    with subprocess.Popen(process, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as helper:
        assert helper.stdin
        assert helper.stdout
        seen = []
        for request in requests:
            helper.stdin.write(json.dumps(request) + "\n")
            answer = json.loads(helper.stdout.readline())
            seen.append((answer["id"], answer.get("released", len(answer.get("gpus", ()))), counts(tmp_path)))
        helper.stdin.close()
        assert helper.wait(LONG) == 0
    assert seen == [(1, 2, [1, 0]), (2, True, [1, 1]), (3, True, [1, 1]), (4, 2, [2, 1])]
    assert counts(tmp_path) == [2, 2]
