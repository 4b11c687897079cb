"""What the kernel log says of the GPUs of a real unit: restart, refusal, nothing; and how the daemon gets to read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.machine.nvml import RESERVED, uuid
from tests.systemd.site import Site

pytestmark = pytest.mark.machine

KMSG = "/dev/kmsg"
LOST = "NVRM: GPU 0000:04:00.0: GPU has fallen off the bus."


def xid(code: int, gpu: int = 3, rest: str = "pid=4242, name=python3, Ch 00000008") -> str:
    """The stand-in GPUs have the buses 01, 02 and so on."""
    return f"NVRM: Xid (PCI:0000:{gpu + 1:02x}:00): {code}, {rest}"


class Log:
    """A file in the place of the machine's /dev/kmsg, which is the host's own."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sequence = 100

    def write(self, text: str) -> None:
        self.sequence += 1
        line = f"4,{self.sequence},{self.sequence}000,-;{text}"
        self.site.machine.run(["sh", "-c", 'printf "%s\\n" "$0" >> "$1"', line, KMSG])


@pytest.fixture
def log(site: Site) -> Iterator[Log]:
    site.machine.run(["mv", KMSG, "/dev/kmsg.real"])
    site.machine.run(["install", "-m", "600", "/dev/null", KMSG])
    try:
        yield Log(site)
    finally:
        site.systemctl("stop", check=False)
        site.machine.run(["mv", "-f", "/dev/kmsg.real", KMSG])


def reads_log(site: Site, pid: int) -> bool:
    """Whether a descriptor of it is the device 1:11; by number, for the path was opened in another mount namespace."""
    return "1:b" in site.ask("sh", "-c", f"stat -L -c %t:%T /proc/{pid}/fd/*").split()


def settled(site: Site) -> None:
    """Time for the daemon to hear whatever was written before."""
    site.ask("sleep", "2.5")


def test_the_daemon_reads_without_privilege_and_the_engine_not_at_all(site: Site) -> None:
    """The real log: root's hook opens it, the service manager hands it on."""
    site.start()
    daemon = int(site.show("MainPID"))
    assert reads_log(site, daemon)
    assert site.ask("grep", "CapEff", f"/proc/{daemon}/status").split()[1] == "0" * 16
    others = [pid for pid in site.engine_pids() if pid != daemon]
    assert len(others) > 8
    for pid in others:
        assert not reads_log(site, pid)
    assert "LISTEN_FDS" not in site.ask("sh", "-c", f"tr '\\0' '\\n' < /proc/{site.engine_main()}/environ")
    assert site.events("kernel-log-unseen") == []
    assert site.show("NFileDescriptorStore") == "1"
    site.systemctl("restart")
    assert site.show("NFileDescriptorStore") == "1"
    assert reads_log(site, int(site.show("MainPID")))


@pytest.mark.parametrize("code", [13, 31, 43, 45, 94])
def test_an_error_of_the_engines_restarts_the_unit(site: Site, log: Log, code: int) -> None:
    site.start()
    run = site.show("InvocationID")
    log.write(xid(code))
    site.machine.wait(lambda: site.show("NRestarts") == "1", 30, "the restart")
    (seen,) = site.events("xid-seen")
    assert seen["GPU_LIFECYCLE_GPU"] == uuid(3)
    assert seen["GPU_LIFECYCLE_XID"] == str(code)
    assert seen["GPU_LIFECYCLE_RUN"] == run.replace("-", "")
    assert xid(code) in seen["MESSAGE"]
    assert f"GPU 3 ({uuid(3)}): Xid {code}" in site.messages("engine-failed")
    site.wait_state("active")
    settled(site)
    assert len(site.events("xid-seen")) == 1, "the next run does not count it again"
    assert site.show("NRestarts") == "1"


@pytest.mark.parametrize("text", [xid(48), xid(64), xid(79), xid(95), xid(119), LOST], ids=lambda text: text[-40:])
def test_a_broken_gpu_is_an_end_that_is_not_restarted(site: Site, log: Log, text: str) -> None:
    site.start()
    log.write(text)
    site.wait_state("failed")
    assert site.show("ExecMainStatus") == "69"
    assert site.show("NRestarts") == "0"
    lost = "fallen off" in text or "): 79" in text
    (event,) = site.events("gpu-lost" if lost else "gpu-unfit")
    assert event["GPU_LIFECYCLE_GPU"] == uuid(3)
    assert ("power-cycle" if lost else "nvidia-smi --gpu-reset -i 0000:04:00.0") in event["MESSAGE"]
    assert "on the host" in site.cli("status", "sglang-kimi")["last_end"]["text"]


def test_a_lost_gpu_that_takes_nvml_with_it_makes_no_storm(site: Site, log: Log) -> None:
    site.start()
    site.machine.nvml.set("error nvmlDeviceGetHandleByIndex_v2 15 3")
    log.write(LOST)
    site.wait_state("failed")
    settled(site)
    assert (site.show("ExecMainStatus"), site.show("NRestarts"), site.state()) == ("69", "0", "failed")


def test_the_recovery_action_names_what_to_do(site: Site, log: Log) -> None:
    site.start()
    log.write(xid(154, rest="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"))
    site.wait_state("failed")
    assert site.show("ExecMainStatus") == "69"
    assert "reboot the machine" in site.messages("gpu-unfit")


def test_what_is_not_ours_changes_nothing(site: Site, log: Log) -> None:
    """An old line, a GPU that is not claimed, what is only to be told, and lines that are none."""
    log.write(xid(79))
    site.configure(tp=4, extra='[watch]\ninterval = "500ms"\ntimeout = "2s"\n')
    config = "/etc/gpu-lifecycle/sglang-kimi.toml"
    site.machine.write(config, site.machine.read(config).replace('claim = "all"', "claim = [0, 1, 2, 3]"))
    site.start()
    log.write(xid(79, gpu=7))
    log.write("NVRM: GPU 0000:08:00.0: GPU has fallen off the bus.")
    log.write("NVRM: Xid (PCI:0000:04:00")
    log.write(xid(63))
    site.machine.wait(lambda: bool(site.events("xid-seen")), 10, "the line that is only told")
    settled(site)
    assert (site.state(), site.show("NRestarts")) == ("active", "0")
    (seen,) = site.events("xid-seen")
    assert seen["GPU_LIFECYCLE_XID"] == "63"
    site.stop()
    assert site.show("Result") == "success"


@pytest.mark.parametrize("there", [True, False], ids=["not a log", "missing"])
@pytest.mark.usefixtures("log")
def test_without_a_kernel_log_the_unit_runs_and_says_so_once(site: Site, there: bool) -> None:
    site.machine.run(["rm", KMSG])
    if there:
        site.machine.run(["ln", "-s", "/dev/console", KMSG])
    site.start()
    settled(site)
    (event,) = site.events("kernel-log-unseen")
    assert "no kernel log" in event["MESSAGE"]
    assert "in a container" in event["MESSAGE"]
    assert site.state() == "active"


@pytest.mark.usefixtures("log")
def test_a_unit_file_that_stores_nothing(site: Site) -> None:
    """An edited or older unit: the daemon's own attempt is refused by its sandbox, and says what is missing."""
    with site.drop_in("[Service]\nFileDescriptorStoreMax=0\n"):
        site.start()
        assert "FileDescriptorStoreMax=1" in site.messages("kernel-log-unseen")
        assert site.state() == "active"


def test_no_permission_to_read_the_log(site: Site) -> None:
    """The unit's device list without the log: not even root's hook may open it."""
    with site.drop_in("[Service]\nDevicePolicy=closed\nDeviceAllow=char-nvidia-frontend rw\n"):
        site.start()
        (event,) = site.events("kernel-log-unseen")
        assert "cannot open /dev/kmsg: Operation not permitted" in event["MESSAGE"]
        assert "allow device c 1:11 r" in event["MESSAGE"]
        assert site.state() == "active"


def test_a_gpu_that_fills_up_is_told_and_the_unit_goes_on(site: Site) -> None:
    """The engine's own share is well there; what is left beside it is not enough for its next request."""
    site.start()
    gpu = site.cli("gpus")["gpus"][3]
    site.machine.nvml.set(f"hidden 3 {gpu['memory_total'] - gpu['memory_used'] - RESERVED - (100 << 20)}")
    site.machine.wait(lambda: bool(site.events("memory-tight")), 20, "the word on it")
    (event,) = site.events("memory-tight")
    assert event["GPU_LIFECYCLE_GPU"] == uuid(3)
    assert "GPU 3: 100 MiB of its memory are left" in event["MESSAGE"]
    settled(site)
    assert len(site.events("memory-tight")) == 1
    assert (site.state(), site.show("NRestarts")) == ("active", "0")
