"""The NVML stand-in, driven by the unmodified nvidia-ml-py in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.standins.build import Built, build

TOTAL, RESERVED = 150754820096, 650117120
UUID = "GPU-00000000-0000-4000-8000-00000000000"
PRELUDE = """
import json, sys, time
import pynvml as n
def show(value): print(json.dumps(value))
def memory(index):
    gpu = n.nvmlDeviceGetHandleByIndex(index)
    return n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2).used
def processes(index):
    gpu = n.nvmlDeviceGetHandleByIndex(index)
    return [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(gpu)]
"""


def gpu(index: int) -> str:
    place = f"uuid={UUID}{index} pci=00000000:0{index + 1}:00.0"
    return f"gpu {index} minor={index} {place} total={TOTAL} reserved={RESERVED} base=0 name=NVIDIA H200"


@dataclass
class Driver:
    """The stand-in's folder, and Python processes that ask it."""

    folder: Path
    built: Built

    def __post_init__(self) -> None:
        (self.folder / "alloc").mkdir()
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.built.folder),
            "NVML_STANDIN_DIR": str(self.folder),
        }

    def state(self, *lines: str) -> None:
        new = self.folder / "state.new"
        new.write_text("".join(f"{line}\n" for line in ["# a comment", "driver 595.71.05", gpu(0), gpu(1), *lines]))
        new.rename(self.folder / "state")

    def ask(self, script: str) -> Any:
        words = [sys.executable, "-c", PRELUDE + script]
        result = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=30)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def holder(self, *options: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([str(self.built.holder), *options], env=self.environment)
        pattern, deadline = f"{process.pid}.*", time.monotonic() + 10
        while not any((self.folder / "alloc").glob(pattern)):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture
def driver(tmp_path: Path, built: Built) -> Driver:
    driver = Driver(tmp_path, built)
    driver.state()
    return driver


@pytest.fixture
def holder(driver: Driver) -> Iterator[subprocess.Popen[bytes]]:
    with driver.holder("--memory", "0=1000", "--memory", "1=7") as process:
        yield process
        process.kill()


def test_it_is_compiled_once(built: Built, tmp_path: Path) -> None:
    first = build(tmp_path)
    made = first.nvml.stat().st_mtime_ns
    assert build(tmp_path).nvml.stat().st_mtime_ns == made
    assert first.folder.name == built.folder.name


def test_a_gpu_is_who_the_state_says(driver: Driver) -> None:
    answer = driver.ask(f"""
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByUUID("{UUID}1")
pci = n.nvmlDeviceGetPciInfo(gpu)
by_pci = n.nvmlDeviceGetHandleByPciBusId("0000:02:00.0")
show([n.nvmlSystemGetDriverVersion(), n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(gpu), n.nvmlDeviceGetIndex(gpu),
    n.nvmlDeviceGetUUID(by_pci), n.nvmlDeviceGetMinorNumber(gpu), pci.busId, pci.busIdLegacy, pci.bus])
""")
    assert answer == ["595.71.05", 2, "NVIDIA H200", 1, f"{UUID}1", 1, "00000000:02:00.0", "0000:02:00.0", 2]


def test_a_healthy_gpu_says_so_to_every_question(driver: Driver) -> None:
    answer = driver.ask("""
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
field = n.nvmlDeviceGetFieldValues(gpu, [230])[0]
show([[field.fieldId, field.nvmlReturn, field.value.uiVal], n.nvmlDeviceGetTotalEccErrors(gpu, 1, 0),
    n.nvmlDeviceGetRemappedRows(gpu), n.nvmlDeviceGetCurrentClocksEventReasons(gpu), n.nvmlDeviceGetMigMode(gpu)[0],
    n.nvmlDeviceGetPersistenceMode(gpu), n.nvmlDeviceGetComputeMode(gpu), n.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    n.nvmlDeviceGetMaxPcieLinkWidth(gpu), n.nvmlDeviceGetTemperature(gpu, 0), n.nvmlDeviceGetPowerUsage(gpu),
    n.nvmlDeviceGetUtilizationRates(gpu).gpu, n.nvmlDeviceGetGraphicsRunningProcesses(gpu)])
""")
    assert answer == [[230, 0, 0], 0, [0, 0, 0, 0], 0, 0, 1, 0, 16, 16, 35, 75000, 0, []]


def test_events_can_be_waited_for_and_none_comes(driver: Driver) -> None:
    answer = driver.ask("""
n.nvmlInit()
events = n.nvmlEventSetCreate()
gpu = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceRegisterEvents(gpu, n.nvmlDeviceGetSupportedEventTypes(gpu), events)
try:
    n.nvmlEventSetWait_v2(events, 10)
except n.NVMLError as error:
    show(error.value)
n.nvmlEventSetFree(events)
""")
    assert answer == 10


def test_memory_is_what_processes_hold_and_what_is_hidden(driver: Driver, holder: subprocess.Popen[bytes]) -> None:
    driver.state("hidden 0 500", "process 0 77777 30", "process 0 88888 unknown")
    script = """
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
v1, v2 = n.nvmlDeviceGetMemoryInfo(gpu), n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2)
show([v1.total, v1.used, v1.free, v2.total, v2.used, v2.free, v2.reserved, sorted(processes(0), key=str), memory(1)])
"""
    free = TOTAL - RESERVED - 1530
    listed = sorted([[77777, 30], [88888, None], [holder.pid, 1000]], key=str)
    assert driver.ask(script) == [TOTAL, RESERVED + 1530, free, TOTAL, 1530, free, RESERVED, listed, 7]


def test_the_memory_of_a_dead_process_is_free(driver: Driver, holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()
    assert driver.ask("n.nvmlInit(); show([memory(0), processes(0)])") == [0, []]
    assert list((driver.folder / "alloc").iterdir()) == []


def test_a_process_that_reuses_the_pid_is_another(driver: Driver, holder: subprocess.Popen[bytes]) -> None:
    (entry,) = (driver.folder / "alloc").iterdir()
    entry.rename(entry.with_name(f"{holder.pid}.1"))
    assert driver.ask("n.nvmlInit(); show(memory(0))") == 0


def test_memory_lingers_after_death_and_nobody_is_listed(driver: Driver, holder: subprocess.Popen[bytes]) -> None:
    driver.state("linger 400")
    holder.kill()
    holder.wait()
    script = """
n.nvmlInit()
first = [memory(0), processes(0)]
time.sleep(0.5)
show([first, memory(0)])
"""
    assert driver.ask(script) == [[1000, []], 0]


def test_a_leader_that_exited_still_holds(driver: Driver) -> None:
    with driver.holder("--memory", "0=1000", "--leader-exits") as process:
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.01)
        assert driver.ask("n.nvmlInit(); show(processes(0))") == [[process.pid, 1000]]
        process.kill()


def test_errors_and_delays_are_made_to_order(driver: Driver) -> None:
    driver.state("error nvmlDeviceGetMemoryInfo_v2 15 1", "delay nvmlDeviceGetUUID 200", "error nvmlEventSetCreate 3")
    answer = driver.ask("""
n.nvmlInit()
begin = time.monotonic()
n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0))
slow = time.monotonic() - begin
try:
    memory(1)
except n.NVMLError_GpuIsLost as error:
    show([memory(0), slow > 0.2, str(error)])
""")
    assert answer == [0, True, "GPU is lost"]


@pytest.mark.parametrize("code", [9, 18])
def test_a_start_can_fail(driver: Driver, code: int) -> None:
    driver.state(f"error * {code}")
    assert driver.ask("try: n.nvmlInit()\nexcept n.NVMLError as error: show(error.value)") == code


def test_without_a_state_file_there_is_no_driver(driver: Driver) -> None:
    (driver.folder / "state").unlink()
    assert driver.ask("try: n.nvmlInit()\nexcept n.NVMLError as error: show(error.value)") == 9


def test_starts_and_ends_are_counted_and_nothing_works_outside_them(driver: Driver) -> None:
    script = """
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlShutdown()
try:
    n.nvmlDeviceGetUUID(gpu)
except n.NVMLError as error:
    show(error.value)
"""
    assert driver.ask(script) == driver.ask(script) == 1
    assert (driver.folder / "inits").read_text() == (driver.folder / "shutdowns").read_text() == ".."


@pytest.mark.parametrize(("keep", "seen"), [("keep 60000", ["1.0", "1.0"]), ("keep 0", ["1.0", "2.0"])])
def test_what_was_read_can_be_kept_for_a_while(driver: Driver, keep: str, seen: list[str]) -> None:
    driver.state("driver 1.0", keep)
    script = """
n.nvmlInit()
first = n.nvmlSystemGetDriverVersion()
text = open(path).read().replace("driver 1.0", "driver 2.0")
open(path, "w").write(text)
show([first, n.nvmlSystemGetDriverVersion()])
"""
    assert driver.ask(f"path = {str(driver.folder / 'state')!r}\n{script}") == seen
