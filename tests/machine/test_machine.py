"""The test machine is a real systemd, keeps its disk over a reboot, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import Machine, registry

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces and mounts"),
]
HOLDER = "/usr/local/libexec/gpu-holder"
UUID = "GPU-00000000-0000-4000-8000-000000000003"
HARDENED = {
    "User": "alice",
    "PrivateTmp": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "read-only",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectControlGroups": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "RestrictNamespaces": "yes",
    "DevicePolicy": "closed",
    "DeviceAllow": "char-nvidia* rw",
    "TemporaryFileSystem": "/dev/shm:mode=1777",
    "SystemCallFilter": "~@clock @module @mount @reboot @swap",
}
ASK_NVML = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(3)
print(pynvml.nvmlDeviceGetUUID(gpu), pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2).used)
print([(p.pid, p.usedGpuMemory) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)])
pynvml.nvmlShutdown()
"""
ENABLED = f"[Service]\nExecStart={HOLDER} --gpu 0\n[Install]\nWantedBy=multi-user.target\n"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine")) as booted:
        yield booted


def traces(name: str) -> list[str]:
    """Whatever of that machine is still to be seen from outside."""
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    groups = [str(path) for path in registry.cgroup2().glob(f"{name}*")]
    records = [str(path) for path in registry.RECORDS.glob(f"{name}*")]
    return mounts + groups + records


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ask_nvml(machine: Machine) -> list[str]:
    return machine.run(["/opt/gpu-lifecycle/bin/python", "-IB", "-c", ASK_NVML]).stdout.splitlines()


def test_boots_in_seconds_and_stops_without_a_trace(tmp_path: Path) -> None:
    begin = time.monotonic()
    with Machine(tmp_path) as machine:
        booted = time.monotonic()
        assert machine.run(["systemctl", "is-system-running"]).stdout == "running\n"
        assert machine.run(["uname", "-n"]).stdout == "gpu-node\n"
        group = machine.cgroup
        machine.run_in_unit("stays", [HOLDER, "--gpu", "0", "--ignore-term", "--setsid"])
        pids = registry.processes(group)
        assert len(pids) > 4
        leaving = time.monotonic()
    print(f"boot {booted - begin:.2f} s, stop {time.monotonic() - leaving:.2f} s")
    assert booted - begin < 30
    assert not any(is_alive(pid) for pid in pids)
    assert traces(group.name) == []
    assert list(tmp_path.iterdir()) == []


def test_commands_run_outside_all_units(machine: Machine) -> None:
    assert "0::/test-exec" in machine.run(["cat", "/proc/self/cgroup"]).stdout.splitlines()
    assert machine.run(["pwd"]).stdout == "/\n"
    assert machine.run(["id", "-un"], user="alice").stdout == "alice\n"
    assert machine.run(["cat"], input="in").stdout == "in"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        machine.run(["ls", "/no/such"])
    assert "No such file" in caught.value.stderr


def test_a_command_that_takes_too_long_is_ended(machine: Machine) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        machine.run(["sleep", "4321"], timeout=0.5)
    machine.wait(lambda: machine.run(["pgrep", "-xf", "sleep 4321"], check=False).returncode, 5, "no sleep is left")


def test_a_started_command_gets_its_signals(machine: Machine) -> None:
    with machine.popen([HOLDER, "--gpu", "0"]) as process:
        machine.wait(lambda: machine.run(["pgrep", "-x", "gpu-holder"], check=False).stdout, 5, "the holder runs")
        assert machine.read(f"/proc/{process.inside()}/comm") == "gpu-holder\n"
        process.terminate()
        assert process.wait(5) == 0


def test_files_and_folders_go_in_and_out(machine: Machine, tmp_path: Path) -> None:
    machine.write("/etc/new/file", "text", 0o600)
    assert machine.read("/etc/new/file") == "text"
    assert machine.run(["stat", "-c", "%a %U", "/etc/new/file"]).stdout == "600 root\n"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tool").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "folder" / "tool").chmod(0o755)
    machine.copy(tmp_path / "folder", "/srv/folder")
    machine.copy(tmp_path / "folder" / "tool", "/srv/other-name")
    assert machine.run(["/srv/folder/tool"]).stdout == machine.run(["/srv/other-name"]).stdout == "ran\n"


def test_the_journal_has_what_a_unit_said(machine: Machine) -> None:
    machine.run(["systemd-run", "--wait", "--collect", "--unit=speaker", "echo", "hello"])
    messages = [entry["MESSAGE"] for entry in machine.journal("speaker")]
    assert "hello" in messages
    assert machine.journal(None, "_COMM=no-such-program") == []


def test_its_pid_numbers_translate(machine: Machine) -> None:
    machine.run_in_unit("numbered", [HOLDER, "--gpu", "1"])
    (pid,) = machine.pids_of_unit("numbered")
    outside = machine.host_pid(pid)
    assert Path(f"/proc/{outside}/comm").read_text() == "gpu-holder\n"
    assert machine.host_pid(1) == machine.pid
    machine.run(["systemctl", "stop", "numbered"])
    assert machine.pids_of_unit("numbered") == []


def test_the_nodes_belong_to_the_driver_of_this_machine(machine: Machine) -> None:
    assert "  4 nvidia-frontend\n" in machine.read("/proc/devices")
    assert "tty\n" not in machine.read("/proc/devices").split("  5 ")[0]
    numbers = machine.run(["sh", "-c", "stat -c %t:%T /dev/nvidia*"]).stdout.split()
    assert len(numbers) == len(set(numbers)) == 11
    machine.make_node("/dev/nvidia99", 4, 60)
    machine.remove_node("/dev/nvidia99")


def test_a_hardened_unit_opens_its_gpu_and_records_memory(machine: Machine) -> None:
    words = [HOLDER, "--gpu", "3", "--ctl", "--uvm", "--memory", "3=1000", "--pidfile", "/tmp/pid"]
    machine.run_in_unit("hardened", words, HARDENED)
    machine.wait(lambda: len(machine.pids_of_unit("hardened")) == 1, 5, "the holder runs")
    (pid,) = machine.pids_of_unit("hardened")
    machine.wait(lambda: ask_nvml(machine)[0] == f"{UUID} 1000", 5, "its memory shows")
    assert ask_nvml(machine)[1] == f"[({pid}, 1000)]"
    opened = machine.run(["sh", "-c", f"readlink /proc/{pid}/fd/*"]).stdout.split()
    assert {"/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(opened)
    machine.run(["systemctl", "stop", "hardened"])
    assert ask_nvml(machine) == [f"{UUID} 0", "[]"]


def test_a_hardened_unit_without_the_gpus_is_refused(machine: Machine) -> None:
    closed = {**HARDENED, "DeviceAllow": "char-nothing rw"}
    machine.run_in_unit("closed", [HOLDER, "--gpu", "3"], closed)
    machine.wait(lambda: not machine.pids_of_unit("closed"), 5, "the holder ended")
    assert any("not permitted" in str(entry["MESSAGE"]) for entry in machine.journal("closed"))


def test_a_hardened_unit_runs_the_projects_python(machine: Machine) -> None:
    words = ["/opt/gpu-lifecycle/bin/python", "-IB", "-c", ASK_NVML]
    options = [f"--property={key}={value}" for key, value in HARDENED.items()]
    result = machine.run(["systemd-run", "--wait", "--pipe", "--collect", "--quiet", *options, *words])
    assert result.stdout.splitlines()[0] == f"{UUID} 0"
    imported = machine.run(["/opt/gpu-lifecycle/bin/python", "-IB", "-c", "import gpu_lifecycle as g; print(g.__file__)"])
    assert imported.stdout.startswith("/opt/gpu-lifecycle/src/gpu_lifecycle/")


def test_nvml_says_what_the_test_sets(machine: Machine) -> None:
    before = machine.nvml.inits()
    machine.nvml.set("hidden 3 5000")
    machine.nvml.set("process 3 77777 400", "hidden 3 6000")
    assert ask_nvml(machine) == [f"{UUID} 6400", "[(77777, 400)]"]
    machine.nvml.clear("process")
    machine.nvml.clear("hidden")
    assert ask_nvml(machine)[0] == f"{UUID} 0"
    assert machine.nvml.inits() == before + 2 == machine.nvml.shutdowns()


def test_a_login_session_is_one_for_logind(machine: Machine) -> None:
    scope = machine.login_session("alice", [HOLDER, "--gpu", "2"])
    number = scope.removeprefix("session-").removesuffix(".scope")
    assert machine.run(["loginctl", "show-session", number, "-p", "Name", "--value"]).stdout == "alice\n"
    machine.wait(lambda: len(machine.pids_of_unit(scope)) == 2, 5, "su and the holder are in the scope")
    machine.run(["loginctl", "terminate-session", number])
    machine.wait(lambda: not machine.pids_of_unit(scope), 10, "the session is over")


def test_wait_shows_what_it_waited_for(machine: Machine) -> None:
    machine.run(["logger", "a line of the journal"])
    with pytest.raises(AssertionError, match=r"(?s)the moon.*a line of the journal"):
        machine.wait(lambda: False, 0.1, "the moon")


def test_a_person_can_enter(machine: Machine) -> None:
    line = machine.enter_command()
    result = subprocess.run(["sh", "-c", line], input="hostname\n", capture_output=True, text=True, timeout=10)
    assert result.stdout == "gpu-node\n"


def test_a_reboot_and_a_power_cut_keep_the_disk(tmp_path: Path) -> None:
    with Machine(tmp_path, gpus=1) as machine:
        machine.write("/etc/systemd/system/kept.service", ENABLED)
        machine.write("/var/lib/kept", "disk")
        machine.write("/run/lost", "memory")
        machine.run(["systemctl", "enable", "--now", "kept"])
        first = machine.read("/proc/sys/kernel/random/boot_id")
        machine.reboot()
        assert machine.read("/var/lib/kept") == "disk"
        assert machine.run(["test", "-e", "/run/lost"], check=False).returncode == 1
        assert machine.run(["systemctl", "is-active", "kept"]).stdout == "active\n"
        assert machine.read("/proc/sys/kernel/random/boot_id") != first
        assert len(machine.run(["journalctl", "--list-boots", "-q"]).stdout.splitlines()) == 2
        machine.kill()
        assert registry.processes(machine.cgroup) == []
        machine.start()
        assert machine.read("/var/lib/kept") == "disk"
        assert len(machine.pids_of_unit("kept")) == 1


def test_a_killed_test_run_takes_its_machine_with_it(tmp_path: Path) -> None:
    script = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        f"from pathlib import Path; from tests.machine import Machine\n"
        f"with Machine(Path({str(tmp_path)!r}), gpus=1) as machine:\n"
        f"    print(machine.cgroup, machine.pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        group, pid = run.stdout.readline().split()
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while is_alive(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(int(pid))
    assert registry.processes(Path(group)) == []
    registry.erase_the_dead()
    assert traces(Path(group).name) == []
    assert list(tmp_path.iterdir()) == []
