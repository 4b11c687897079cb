"""Bad input and broken set-ups: one attempt, a clear word, the right status."""

from __future__ import annotations

import pytest

from tests.systemd.site import CONFIG, Site

pytestmark = pytest.mark.machine


def refused(site: Site, status: int) -> str:
    """A start that ends as failed with this status, after one attempt; returns what was said."""
    site.start(wait=False)
    site.wait_state("failed")
    assert site.show("ExecMainStatus") == str(status)
    assert site.show("NRestarts") == "0"
    return site.messages("start-refused")


def test_config_error_is_one_attempt_and_status_78(site: Site) -> None:
    site.machine.write(CONFIG, site.machine.read(CONFIG).replace("term_grace", "term_graze"))
    message = refused(site, 78)
    assert f"{CONFIG}:10" in message
    assert "term_grace" in message
    shown = str(site.systemctl("status", check=False))
    assert "78" in shown
    assert "term_grace" in shown


def test_config_missing(site: Site) -> None:
    site.machine.run(["rm", CONFIG], check=True)
    assert "gpu-lifecycle install" in refused(site, 78)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ('["/nowhere/python"]', "is not there"),
        ('["/etc/passwd"]', "may not execute"),
        ('["/usr/local/libexec/not-a-program"]', "cannot start the engine"),
    ],
)
def test_engine_command_that_cannot_be_executed(site: Site, command: str, words: str) -> None:
    site.machine.write("/usr/local/libexec/not-a-program", "\x7fELFnothing", 0o755)
    lines = [f"command = {command}" if line.startswith("command") else line for line in site.machine.read(CONFIG).splitlines()]
    site.machine.write(CONFIG, "\n".join(lines))
    assert words in refused(site, 78)


@pytest.mark.parametrize("misbehaviour", ["exit-at-once=3", "exit-at-once=0", "exit-while-loading=1"])
def test_engine_that_exits_is_tried_again(site: Site, misbehaviour: str) -> None:
    site.configure("--misbehave", misbehaviour)
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("engine-failed")), 20, "the exit to be seen")
    assert "into the load" in site.messages("engine-failed")
    site.machine.wait(lambda: site.show("SubState") == "auto-restart", 20, "systemd to wait for the next try")
    assert site.show("ExecMainStatus") == "75"


def test_engine_that_never_listens_ends_at_the_stall_budget(site: Site) -> None:
    site.configure("--misbehave", "never-listens", extra='[ready]\nstall = "3s"\n[watch]\ninterval = "500ms"\n')
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("engine-failed")), 30, "the stall to be seen")
    assert "no progress for ready.stall, 3s" in site.messages("engine-failed")
    assert "nobody listens" in site.messages("engine-failed")


def test_five_failed_starts_in_a_row_are_enough(site: Site) -> None:
    with site.drop_in("[Service]\nRestartSec=200ms\n"):
        site.configure("--misbehave", "exit-at-once=1")
        site.start(wait=False)
        site.wait_state("failed", timeout=60)
        assert site.show("ExecMainStatus") == "69"
        assert site.show("NRestarts") == "4"
        assert "5 runs in a row" in site.show("StatusText") + site.messages("stopped")


def test_a_crash_right_after_ready_is_counted_too(site: Site) -> None:
    """Field case F32: systemd's own limit never trips when each load takes minutes."""
    with site.drop_in("[Service]\nRestartSec=200ms\n"):
        site.configure("--misbehave", "crash-after=0.5", "--load-seconds", "0.3")
        site.start(wait=False)
        site.wait_state("failed", timeout=90)
        assert site.show("ExecMainStatus") == "69"
        assert site.messages("ready")


def test_a_load_with_progress_outlives_the_start_timeout_and_a_drain_the_stop_timeout(site: Site) -> None:
    """Field case F26: systemd is asked for time as long as there is progress, and for what the config allows a drain."""
    with site.drop_in("[Service]\nTimeoutStartSec=3s\nTimeoutStopSec=2s\n"):
        more = '[watch]\ninterval = "500ms"\n[stop]\ndrain = "5s"\n'
        site.configure("--load-seconds", "8", "--misbehave", "ignore-term", extra=more)
        site.systemctl("start", timeout=60)
        assert site.state() == "active"
        site.stop()
        assert (site.state(), site.show("Result")) == ("inactive", "success")


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("error nvmlInitWithFlags 9", 69, "driver is not loaded"),
        ("error nvmlInitWithFlags 18", 69, "differ in version"),
        ("error nvmlDeviceGetHandleByIndex_v2 15 6", 69, "GPU 6"),
    ],
)
def test_no_driver_and_broken_gpus(site: Site, line: str, status: int, words: str) -> None:
    site.machine.nvml.set(line)
    assert words in refused(site, status)


def test_too_few_gpus(site: Site) -> None:
    site.configure(tp=9)
    assert "8 GPUs found" in refused(site, 69)


def test_nvml_that_passes_is_tried_again(site: Site) -> None:
    site.machine.nvml.set("error nvmlInitWithFlags 999")
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("start-refused")), 20, "the refusal")
    assert "status 75" in site.messages("start-refused")
    site.machine.nvml.clear("error")
    site.wait_state("active", timeout=40)


@pytest.mark.parametrize("which", ["", " 3"], ids=["all", "one"])
def test_memory_that_cannot_be_read_for_a_while_costs_no_restart(site: Site, which: str) -> None:
    """The driver answers, and not for this: that proves nothing about an engine that serves."""
    site.start()
    main = site.engine_main()
    site.machine.nvml.set(f"error nvmlDeviceGetMemoryInfo_v2 999{which}")
    site.machine.wait(lambda: bool(site.events("nvml-trouble")), 20, "the trouble to be told")
    site.machine.run(["sleep", "6"])
    site.machine.nvml.clear("error")
    assert (site.engine_main(), site.show("ActiveState"), site.show("NRestarts")) == (main, "active", "0")
    assert site.events("suspect") == []
    (told,) = site.events("nvml-trouble")
    assert "health is judged without it: GPU " in told["MESSAGE"]


def test_unit_that_is_not_installed(site: Site) -> None:
    document = site.cli("check", "other")
    assert document["ok"] is False
    assert {"not-installed", "config"} <= {finding["code"] for finding in document["findings"]}


def test_not_root(site: Site) -> None:
    done = site.machine.run(["gpu-lifecycle", "sweep", "sglang-kimi"], user="alice", check=False)
    assert done.returncode == 77
    assert "root" in done.stderr
    seen = site.machine.run(["gpu-lifecycle", "holders", "--json"], user="alice")
    assert seen.returncode == 0
    assert '"full": false' in seen.stdout


def test_check_names_all_and_changes_nothing(site: Site) -> None:
    orphan = site.orphan()
    document = site.cli("check", "sglang-kimi")
    assert document["ok"] is True
    assert "would-reap" in {finding["code"] for finding in document["findings"]}
    assert site.alive(orphan)


def test_sweep_by_hand_spares_the_run_that_is_alive(site: Site) -> None:
    site.start()
    orphan = site.orphan("--title", "python")
    before = site.workers()
    dry = site.cli("sweep", "sglang-kimi", "--dry-run")
    assert {row["pid"] for row in dry["holders"] if row["verdict"] == "reap"} == {orphan}
    done = site.cli("sweep", "sglang-kimi")
    assert {row["pid"] for row in done["holders"] if row["result"]} == {orphan}
    assert not site.alive(orphan)
    assert site.workers() == before
    assert site.state() == "active"
