"""A GPU that is not fit to work refuses the start with its cure; one that is only doubtful is told and used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.machine.nvml import uuid
from tests.systemd.site import CONFIG, UNIT, Site

pytestmark = pytest.mark.machine


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("recovery 1", "GPU 5: the driver asks for a reset of the GPU"),
        ("remap_failed 1", "GPU 5: a broken row of its memory could not be replaced (have the GPU replaced)"),
        ("compute 2", "GPU 5: its compute mode prohibits CUDA (nvidia-smi -i"),
    ],
)
def test_an_unfit_gpu_is_one_attempt_and_status_69(site: Site, line: str, words: str) -> None:
    site.machine.nvml.set(f"health 5 {line}")
    site.start_and_fail()
    site.wait_state("failed")
    assert site.show("ExecMainStatus") == "69"
    assert site.show("NRestarts") == "0"
    assert words in site.messages("start-refused")
    assert not site.events("engine-started")
    checked = site.cli("check", "sglang-kimi")
    (finding,) = (item for item in checked["findings"] if item["message"].startswith("GPU 5: "))
    assert (finding["level"], checked["ok"]) == ("error", False)
    assert words.startswith(finding["message"])
    health = {gpu["index"]: gpu["health"]["state"] for gpu in site.cli("gpus")["gpus"]}
    assert health == {index: "bad" if index == 5 else "ok" for index in range(8)}


def test_a_doubtful_gpu_is_told_and_used(site: Site) -> None:
    site.machine.nvml.set("health 2 remap_pending 1", "health 3 width 8", "error nvmlDeviceGetMarginTemperature 999 4")
    site.start()
    assert site.state() == "active"
    told = {line["GPU_LIFECYCLE_GPU"]: line["MESSAGE"] for line in site.events("gpu-doubtful")}
    assert set(told) == {uuid(2), uuid(3)}
    assert "replaced at its next reset; at the next chance: nvidia-smi --gpu-reset" in told[uuid(2)]
    assert "GPU 4: cannot read margin" in site.messages("nvml-trouble")
    shown = {gpu["index"]: gpu["health"] for gpu in site.cli("gpus")["gpus"]}
    assert [shown[index]["state"] for index in (1, 2, 3, 4)] == ["ok", "warn", "warn", "warn"]
    assert site.cli("check", "sglang-kimi")["ok"]


def test_an_unclaimed_gpu_may_be_broken(site: Site) -> None:
    site.configure(tp=4)
    text = site.machine.read("/etc/gpu-lifecycle/sglang-kimi.toml").replace('claim = "all"', "claim = [0, 1, 2, 3]")
    site.machine.write("/etc/gpu-lifecycle/sglang-kimi.toml", text)
    site.machine.nvml.set("health 5 recovery 1")
    site.start()
    assert site.state() == "active"
    assert not site.events("gpu-doubtful")


def test_a_gpu_that_is_too_hot_is_tried_again(site: Site) -> None:
    site.machine.nvml.set("health 5 margin 0")
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("start-refused")), 20, "the start to be refused")
    assert "status 75" in site.messages("start-refused")
    site.machine.nvml.clear("health")
    site.wait_state("active", timeout=40)


def test_a_fabric_that_is_coming_up_is_waited_for(site: Site) -> None:
    site.machine.nvml.set("health 0 fabric_state 2")
    site.start(wait=False)
    site.machine.wait(lambda: "waiting for the NVSwitch fabric" in site.show("StatusText"), 20, "the wait to be shown")
    assert not site.events("engine-started")
    site.machine.nvml.set("health 0 fabric_state 3")
    site.wait_state("active", timeout=40)


def test_a_wait_for_a_fabric_can_be_stopped(site: Site) -> None:
    site.machine.nvml.set("health 0 fabric_state 1")
    site.start(wait=False)
    site.machine.wait(lambda: "waiting for the NVSwitch fabric" in site.show("StatusText"), 20, "the wait to be shown")
    site.stop()
    assert (site.state(), site.show("Result")) == ("inactive", "success")


def test_health_that_cannot_be_asked_is_no_reason_to_refuse(site: Site) -> None:
    """What NVML does not say is unknown: told, and neither fit nor unfit."""
    site.machine.nvml.set("error nvmlDeviceGetRemappedRows 999", "error nvmlDeviceGetFieldValues 999")
    site.start()
    assert site.state() == "active"
    assert "cannot read" in site.messages("nvml-trouble")


def helper_holds(site: Site) -> list[str]:
    """The nodes that the daemon's NVML helper has open."""
    line = "for p in $(pgrep -f nvml_helper); do ls -l /proc/$p/fd; done"
    return sorted({word for word in site.ask("sh", "-c", line).split() if word.startswith("/dev/nvidia")})


def test_only_claimed_gpus_are_opened_once_the_engine_runs(site: Site) -> None:
    """A handle on a GPU that is none of ours would keep its owner from resetting it."""
    site.configure(tp=2)
    site.machine.write(CONFIG, site.machine.read(CONFIG).replace('claim = "all"', "claim = [0, 1]"))
    site.start()
    site.machine.wait(
        lambda: helper_holds(site) == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"], 20, "two nodes to be held"
    )


def test_a_restart_leaves_nvml_alone_that_somebody_has_had_let_go_of(site: Site) -> None:
    """Another handle would make the reset fail that is about to come; a start by hand is that person's own word."""
    site.start()
    site.ask("gpu-lifecycle", "gpus", "--release")
    site.kill(site.engine_main())
    site.machine.wait(lambda: "NVML let go of" in site.show("StatusText"), 60, "the restart to wait")
    assert site.state() == "activating"
    assert helper_holds(site) == []
    assert "the next start waits" in site.events("start-delayed")[-1]["MESSAGE"]
    site.systemctl("stop")
    site.wait_state("inactive", "failed", timeout=20)
    began = time.monotonic()
    site.start()
    assert time.monotonic() - began < 40
    assert len(site.events("start-delayed")) == 1
    site.machine.run(["rm", "/run/gpu-lifecycle/.released.json"])


def test_nvml_is_let_go_of_on_request(site: Site) -> None:
    site.start()
    site.machine.wait(lambda: bool(helper_holds(site)), 10, "a helper to hold nodes")
    assert "sglang-kimi.service: NVML is let go of" in site.ask("gpu-lifecycle", "gpus", "--release")
    assert helper_holds(site) == [], "once it says so, it is so"
    fed = int(site.show("WatchdogTimestampMonotonic"))
    site.machine.wait(lambda: int(site.show("WatchdogTimestampMonotonic")) > fed, 10, "the watchdog to be fed on")
    assert helper_holds(site) == []
    assert (site.state(), site.show("NRestarts")) == ("active", "0")
    assert site.events("nvml-released")
    site.stop()
    assert "no daemon runs" in site.ask("gpu-lifecycle", "gpus", "--release")
    assert "no daemon runs" in site.ask("gpu-lifecycle", "gpus", "--release", "sglang-kimi")
    done = site.machine.run(["gpu-lifecycle", "gpus", "--release", "sglang-kimmy"], check=False)
    assert (done.returncode, "no unit sglang-kimmy.service" in done.stderr) == (2, True)


def test_who_does_not_know_the_request_is_not_sent_it(site: Site) -> None:
    """It would end a main process that does not handle it, such as one of another version."""
    site.machine.run(["systemd-run", "--quiet", "--unit=other", "--collect", "sleep", "60"], check=True)
    try:
        done = site.machine.run(["gpu-lifecycle", "gpus", "--release", "other"], check=False)
        assert done.returncode == 75
        assert "does not know this request" in str(done.stderr)
        assert site.ask("systemctl", "is-active", "other").strip() == "active"
        done = site.machine.run(["gpu-lifecycle", "gpus", "--release", "other"], check=False, user="alice")
        assert done.returncode == 77
    finally:
        site.machine.run(["systemctl", "stop", "other"])


# What a look at GPUs asks, each of which may hang in the kernel.
LOOK = (
    "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
)  # fmt: skip


@pytest.mark.parametrize("function", LOOK)
def test_a_question_that_hangs_keeps_no_stop_waiting(site: Site, function: str) -> None:
    """The engine stays, for NVML's silence is no proof against it; one helper hangs; the unit stops in time."""
    site.start()
    site.machine.nvml.set(f"delay {function} 600000")
    site.machine.run(["sleep", "1.5"])
    assert site.state() == "active"
    assert len(site.ask("pgrep", "-f", "nvml_helper").split()) == 1
    began = time.monotonic()
    site.machine.run(["systemctl", "stop", "--no-block", UNIT])
    site.machine.wait(lambda: bool(site.events("stopped")), 20, "the daemon to end the engine")
    assert time.monotonic() - began < 15
    site.machine.nvml.clear("delay")
    site.wait_state("inactive", "failed", timeout=60)
    assert site.cli("holders")["holders"] == []


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"])
def test_a_start_that_hangs_in_nvml_can_be_stopped(site: Site, function: str) -> None:
    site.machine.nvml.set(f"delay {function} 600000")
    site.start(wait=False)
    site.machine.wait(lambda: "asking NVML" in site.show("StatusText"), 20, "the question to be shown")
    began = time.monotonic()
    site.systemctl("stop", "--no-block")
    site.machine.run(["sleep", "1"])
    site.machine.nvml.clear("delay")
    site.wait_state("inactive", timeout=45)
    assert time.monotonic() - began < 45
    assert site.show("Result") == "success"
    assert not site.events("engine-started")


@contextmanager
def just_booted(site: Site, seconds: int) -> Iterator[None]:
    """The kernel's own word on how long the machine is up, covered by another."""
    site.machine.write("/run/uptime", f"{seconds}.00 1.00\n")
    site.machine.run(["mount", "--bind", "/run/uptime", "/proc/uptime"])
    try:
        yield
    finally:
        site.machine.run(["umount", "/proc/uptime"])


@contextmanager
def without(site: Site, node: str) -> Iterator[None]:
    site.machine.run(["mv", node, "/dev/elsewhere"])
    try:
        yield
    finally:
        site.ask("sh", "-c", f"test -e {node} && rm -f /dev/elsewhere || mv /dev/elsewhere {node}")


def test_after_a_boot_the_driver_is_waited_for(site: Site) -> None:
    """Field case F42: at boot the unit may be earlier than the driver."""
    with just_booted(site, 20):
        site.machine.nvml.set("error nvmlInitWithFlags 9")
        site.start(wait=False)
        words = "waiting for the NVIDIA driver after the boot"
        site.machine.wait(lambda: words in site.show("StatusText"), 20, "the wait to be shown")
        assert not site.events("start-refused")
        site.machine.nvml.clear("error")
        site.wait_state("active", timeout=30)


def test_the_wait_after_a_boot_has_an_end(site: Site) -> None:
    with just_booted(site, 178):
        site.configure(tp=9)
        site.start_and_fail()
        site.wait_state("failed")
        assert site.show("ExecMainStatus") == "69"
        assert "8 GPUs found" in site.messages("start-refused"), "never on fewer GPUs"


@pytest.mark.parametrize(("node", "options"), [("/dev/nvidia7", "-c 7"), ("/dev/nvidia-uvm", "-u -c 0")])
def test_a_node_that_nobody_makes_is_named(site: Site, node: str, options: str) -> None:
    with without(site, node):
        site.start_and_fail()
        site.wait_state("failed")
        assert site.show("ExecMainStatus") == "69"
        assert f"{node} is not there (nvidia-modprobe {options}; in a container, pass" in site.messages("start-refused")
        assert f"{node} is not there" in str(site.cli("check", "sglang-kimi")["findings"])


def test_a_node_that_is_missing_is_made_by_the_drivers_own_tool(site: Site) -> None:
    with without(site, "/dev/nvidia7"):
        script = '#!/bin/sh\ntest "$*" = "-c 7" && cp -a /dev/elsewhere /dev/nvidia7\n'
        site.machine.write("/usr/bin/nvidia-modprobe", script, 0o755)
        site.start()
        site.machine.run(["rm", "/usr/bin/nvidia-modprobe"])
        assert site.state() == "active"


def test_a_node_with_a_wrong_major_is_named(site: Site) -> None:
    with without(site, "/dev/nvidia7"):
        site.machine.run(["mknod", "/dev/nvidia7", "c", "1", "7"])
        try:
            site.start_and_fail()
            site.wait_state("failed")
            text = site.messages("start-refused")
            assert "/dev/nvidia7 is no node of the NVIDIA driver: its major is 1, which the driver has not registered" in text
            assert "(rm /dev/nvidia7; nvidia-modprobe" in text
        finally:
            site.machine.run(["rm", "/dev/nvidia7"])
