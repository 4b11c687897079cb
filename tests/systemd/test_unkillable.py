"""Field case F5: holders that cannot be ended, by real means: a hung FUSE server, a version 1 freezer, a tracer that sleeps."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.systemd.site import CONFIG, UNIT, Site

pytestmark = pytest.mark.machine

PROGRAM = "/opt/gpu-lifecycle/standins/stuck_fuse.py"
MOUNT = "/run/hung-weights"
CONTROL = "/sys/fs/fuse/connections"
GROUP = f"/sys/fs/cgroup/system.slice/{UNIT}"
IN_FUSE = "state D in request_wait_answer, SIGKILL pending: it waits for a FUSE file system whose server does not answer"
SWEEP_SECONDS = 25  # grace and exit deadline are 7 s; the rest is scans on a slow machine


class Stage:
    """A site with the means to make a process hang, and to free it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        source = Path(__file__).parent.parent / "standins/stuck_fuse.py"
        site.machine.write(PROGRAM, source.read_text())
        site.ask("sh", "-c", "test -e /dev/fuse || mknod -m 600 /dev/fuse c 10 229")
        site.ask("sh", "-c", f"grep -q fusectl /proc/self/mounts || mount -t fusectl fusectl {CONTROL}")

    def launch(self, *words: str, cgroup: str = "") -> None:
        join = f"echo 0 > {cgroup}/cgroup.procs && " if cgroup else ""
        line = f"{join}exec setsid --fork python3 -IB {PROGRAM} {' '.join(words)} >/dev/null 2>&1 </dev/null"
        self.site.machine.run(["sh", "-c", line])

    def serve(self, *words: str) -> None:
        self.launch("serve", MOUNT, *words)
        self.site.machine.wait(self.connection, 10, "the FUSE file system to be mounted")

    def connection(self) -> str:
        """The number of the mount's connection: its device's minor. "": it is not mounted."""
        lines = [line.split() for line in self.site.ask("cat", "/proc/self/mountinfo").splitlines()]
        return next((fields[2].partition(":")[2] for fields in lines if fields[4] == MOUNT), "")

    def hold(self, *words: str, cgroup: str = "") -> int:
        """A process that holds GPU 1 and, with the mount among ``words``, hangs."""
        self.site.ask("rm", "-f", "/run/stuck.pid")
        self.launch("hold", "/dev/nvidia1", "/run/stuck.pid", *words, cgroup=cgroup)
        return self.site.planted_pid("/run/stuck.pid")

    def free(self, *, umount: bool = False) -> None:
        """What an admin would do: abort the connection. The server then ends by itself; the mount, when nobody is in it."""
        number = self.connection()
        if number and not umount:
            self.site.machine.run(["sh", "-c", f"echo 1 > {CONTROL}/{number}/abort"])
        self.site.machine.wait(self.unmounted, 10, "the FUSE file system to be gone")

    def unmounted(self) -> bool:
        if self.connection():
            self.site.ask("umount", "-f", MOUNT)
        return not self.connection()

    def sweep(self) -> tuple[int, dict[str, Any], float]:
        began = time.monotonic()
        done = self.site.machine.run(["gpu-lifecycle", "sweep", "sglang-kimi", "--json"], check=False, timeout=60)
        return done.returncode, json.loads(done.stdout), time.monotonic() - began

    def ours(self) -> int:
        """How many processes of the project run in the machine."""
        return len(self.site.ask("sh", "-c", "grep -alz [g]pu_lifecycle /proc/[0-9]*/cmdline").split())


@pytest.fixture
def stage(site: Site) -> Iterator[Stage]:
    stage = Stage(site)
    yield stage
    stage.free()
    site.wait_state("inactive", "failed", "active", "activating", timeout=60)


def test_a_holder_in_a_hung_file_system_is_named_with_its_cure(stage: Stage) -> None:
    stage.serve()
    pid = stage.hold(MOUNT)
    status, document, seconds = stage.sweep()
    assert (status, document["outcome"]) == (75, "stuck")
    assert seconds < SWEEP_SECONDS
    cure = f"to free it: echo 1 > {CONTROL}/{stage.connection()}/abort, or umount -f {MOUNT}"
    assert f"process {pid} " in document["text"]
    assert f"{IN_FUSE}; {cure}" in document["text"]
    stage.free(umount=True)
    stage.site.machine.wait(lambda: not stage.site.alive(pid), 10, "it to die of the SIGKILL that was pending")
    assert stage.sweep()[:1] == (0,)


def test_a_thread_that_hangs_under_a_leader_that_is_gone(stage: Stage) -> None:
    """The leader is a zombie, which looks dead to ps and to fuser; its thread still holds the GPU."""
    stage.serve()
    pid = stage.hold(MOUNT, "--thread")
    status, document, _ = stage.sweep()
    assert stage.site.ask("cat", f"/proc/{pid}/stat").rpartition(")")[2].split()[0] == "Z"
    assert (status, document["outcome"]) == (75, "stuck")
    assert "its leader has exited (state Z) and 1 thread lives: thread " in document["text"]
    assert IN_FUSE in document["text"]


def test_a_holder_that_blocks_whoever_reads_its_command_line(stage: Stage) -> None:
    """ps and fuser hang at it for ever, for a thread of it hangs with the lock of its memory; a sweep does not.

    Nor may it be ended: whose it is stands in its environment, which cannot be read. Sight is partial, so nobody is.
    """
    stage.serve("--file")
    pid = stage.hold(f"{MOUNT}/weights", "--map")
    try:
        other = stage.site.orphan(gpu=2)
        stage.site.machine.nvml.set(f"process 1 {pid} {50 << 30}")
        read = ["timeout", "-s", "KILL", "1", "cat", f"/proc/{pid}/cmdline"]
        assert stage.site.machine.run(read, check=False).returncode
        status, document, seconds = stage.sweep()
        assert (status, document["outcome"]) == (75, "conflict"), document["text"]
        assert seconds < SWEEP_SECONDS
        assert f'process {pid} "[python3]"' in document["text"]
        verdicts = {item["pid"]: item["rule"] for item in document["holders"]}
        assert (verdicts[pid], verdicts[other]) == ("parented", "partial-sight")
        blocking = stage.site.messages("sight-partial")
        assert f'process {pid} "[python3]" blocks whoever looks at its memory mappings: 3 threads: ' in blocking
        assert "umount -f" in blocking
    finally:
        stage.site.machine.nvml.clear("process")
        stage.site.kill(pid)
        stage.free()
    stage.site.machine.wait(lambda: not stage.site.alive(pid), 10, "it to die of the SIGKILL that was pending")
    assert stage.sweep()[:1] == (0,)
    assert not stage.site.alive(other)


def test_a_start_beside_it_is_refused_and_comes_back_unaided(stage: Stage) -> None:
    """Refused with 75 again and again, at the pace of its own deadlines, until the holder dies; no storm of processes."""
    site = stage.site
    stage.serve()
    pid = stage.hold(MOUNT)
    site.start(wait=False)
    most = 0
    deadline = time.monotonic() + 60
    while len(refused := site.events("start-refused")) < 2:
        assert time.monotonic() < deadline, site.messages()
        most = max(most, stage.ours())
        time.sleep(0.3)
    assert {line["GPU_LIFECYCLE_STATUS"] for line in refused} == {"75"}
    assert f"process {pid} " in refused[-1]["MESSAGE"]
    assert IN_FUSE in refused[-1]["MESSAGE"]
    assert most <= 3
    assert int(site.show("NRestarts")) <= len(refused)
    stage.free()
    site.wait_state("active", timeout=40)


def test_post_stop_with_a_worker_that_hangs_ends_and_says_who(stage: Stage) -> None:
    site = stage.site
    stage.serve()
    site.start()
    pid = stage.hold(MOUNT, cgroup=GROUP)
    began = time.monotonic()
    site.systemctl("stop", "--no-block")
    status = ["gpu-lifecycle", "status", "sglang-kimi"]
    site.machine.wait(lambda: "after the stop: cannot end" in site.ask(*status), 60, "the hook to end")
    assert time.monotonic() - began < 2 * SWEEP_SECONDS
    survived = site.messages("holder-survived")
    assert f"process {pid} " in survived
    assert IN_FUSE in survived
    assert site.engine_pids() == [pid]
    stage.free()
    site.wait_state("inactive", "failed", timeout=20)
    site.start()
    assert site.state() == "active"


def test_a_stopped_orphan_is_ended(stage: Stage) -> None:
    """State T: SIGTERM waits for SIGCONT, SIGKILL does not."""
    pid = stage.site.orphan()
    stage.site.kill(pid, number="STOP")
    status, document, _ = stage.sweep()
    assert (status, document["outcome"]) == (0, "free"), document["text"]
    assert not stage.site.alive(pid)


def test_a_tracer_that_holds_an_orphan_at_its_exit_is_named(stage: Stage) -> None:
    """Stopped at its exit it is past SIGKILL; only its tracer, who is not ours to touch, can let it go."""
    site = stage.site
    pid = stage.hold()
    stage.launch("trace", str(pid), "/run/tracer.pid")
    tracer = site.planted_pid("/run/tracer.pid")
    status, document, _ = stage.sweep()
    assert (status, document["outcome"]) == (75, "stuck"), document["text"]
    assert f'it is traced by process {tracer} "python3", which does not let it go' in document["text"]
    assert site.alive(tracer)
    site.kill(tracer)
    site.machine.wait(lambda: not site.alive(pid), 10, "it to go on to its end")
    assert stage.sweep()[:1] == (0,)


def test_frozen_in_a_cgroup_of_version_1(stage: Stage) -> None:
    """SIGKILL waits until it is thawed; whoever froze it is not known, so it is named and left."""
    site = stage.site
    if "freezer" not in site.ask("cat", "/proc/cgroups"):
        pytest.skip("this kernel has no cgroup v1 freezer")
    pid = stage.hold()
    mount, name = "/run/freezer", f"gpu-lifecycle-test-{os.getpid()}"
    group = f"{mount}/{name}"
    site.machine.run(["sh", "-c", f"mkdir -p {mount} && mount -t cgroup -o freezer freezer {mount} && mkdir {group}"])
    try:
        site.machine.run(["sh", "-c", f"echo {pid} > {group}/cgroup.procs && echo FROZEN > {group}/freezer.state"])
        status, document, _ = stage.sweep()
        assert (status, document["outcome"]) == (75, "stuck")
        assert f"it is frozen in cgroup v1 /{name}, where SIGKILL has to wait" in document["text"]
        assert f"to free it: echo THAWED > {group}/freezer.state" in document["text"]
        site.machine.run(["sh", "-c", f"echo THAWED > {group}/freezer.state"])
        site.machine.wait(lambda: not site.alive(pid), 10, "it to die once thawed")
    finally:
        site.ask("sh", "-c", f"echo THAWED > {group}/freezer.state")
        with contextlib.suppress(AssertionError):
            site.machine.wait(lambda: not site.ask("cat", f"{group}/cgroup.procs"), 10, "the group to be empty")
        site.ask("sh", "-c", f"rmdir {group}; umount {mount}")


@pytest.mark.parametrize("option", ["", "--ignore-term"])
def test_what_is_frozen_in_the_units_own_cgroup_is_ended_and_thawed(stage: Stage, option: str) -> None:
    """Version 2 lets what is deadly through; but what the next run put into a group that stays frozen would never run."""
    site = stage.site
    group = f"{GROUP}/frozen"
    site.machine.run(["mkdir", "-p", group])
    pid = site.plant("frozen", "--gpu", "1", "--daemonize", *([option] if option else []))
    site.machine.run(["sh", "-c", f"echo {pid} > {group}/cgroup.procs && echo 1 > {group}/cgroup.freeze"])
    try:
        site.start()
        assert site.state() == "active"
        assert not site.alive(pid)
        assert site.ask("cat", f"{group}/cgroup.freeze").strip() == "0"
    finally:
        site.ask("sh", "-c", f"echo 0 > {group}/cgroup.freeze")


def test_an_engine_on_a_hung_file_system_is_refused_for_now(stage: Stage) -> None:
    """Executing it would hang the daemon, whose stop would then be systemd's SIGKILL."""
    site = stage.site
    stage.serve()
    text = site.machine.read(CONFIG).replace("/usr/bin/python3", f"{MOUNT}/python3")
    site.machine.write(CONFIG, text)
    said = f"{MOUNT}/python3 was not read within"
    checked = site.machine.run(["gpu-lifecycle", "check", "sglang-kimi"], check=False)
    assert checked.returncode == 75, checked.stdout
    assert said in checked.stdout
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("start-refused")), 40, "the start to be refused")
    assert said in site.events("start-refused")[-1]["MESSAGE"]
    assert site.events("engine-started") == []
    stage.free()
    site.systemctl("stop")
