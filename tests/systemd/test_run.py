"""A unit that is ready: what makes it fail, what does not, and how it stops."""

from __future__ import annotations

import random

import pytest

from tests.systemd.site import GIB, Site

pytestmark = pytest.mark.machine

IDLE = 64 * 1024 * 1024


def test_a_lost_worker_is_one_restart(site: Site) -> None:
    """Field case F22: the main process lives, health says 200, one worker is gone."""
    site.configure("--crash-wait", "never")
    site.start()
    first = site.show("InvocationID")
    site.kill(site.workers()[3])
    site.machine.wait(lambda: bool(site.events("engine-failed")), 10, "the loss to be seen")
    assert "lost 1 of" in site.messages("engine-failed")
    site.machine.wait(lambda: site.show("InvocationID") != first and site.state() == "active", 60, "one restart to end well")
    assert site.show("NRestarts") == "1"
    assert len(site.workers()) == 8


def test_watchdog_is_fed_while_healthy(site: Site) -> None:
    site.start()
    before = int(site.show("WatchdogTimestampMonotonic"))
    site.machine.wait(lambda: int(site.show("WatchdogTimestampMonotonic")) > before, 10, "a watchdog message")
    assert site.show("NRestarts") == "0"


def test_health_that_stays_bad_restarts_and_a_short_dip_does_not(site: Site) -> None:
    site.start()
    engine = site.engine_main()
    site.kill(engine, number="USR1")
    site.machine.wait(lambda: bool(site.events("suspect")), 10, "a check to fail")
    site.kill(engine, number="USR2")
    site.machine.wait(lambda: bool(site.events("healthy-again")), 10, "health to come back")
    assert site.show("NRestarts") == "0"
    site.kill(engine, number="USR1")
    site.machine.wait(lambda: bool(site.events("engine-failed")), 20, "the verdict")
    assert "checks failed without a recovery" in site.messages("engine-failed")


@pytest.mark.parametrize(
    ("engine", "phase"),
    [
        (["--load-seconds", "60"], "loading"),
        (["--load-seconds", "60", "--misbehave", "ignore-term"], "loading"),
        (["--warmup-seconds", "60"], "warming"),
        ([], "ready"),
        (["--misbehave", "workers-ignore-term"], "ready"),
        (["--misbehave", "ignore-term"], "ready"),
        (["--misbehave", "leave-orphans"], "ready"),
        (["--misbehave", "term-status=kill"], "ready"),
        (["--misbehave", "term-status=3"], "ready"),
    ],
)
def test_stop_means_stopped(site: Site, engine: list[str], phase: str) -> None:
    """Field cases F6 and F29: in every phase, whatever the engine does, nothing is left and the unit is not "failed"."""
    site.configure(*engine)
    site.start(wait=False)
    site.machine.wait(lambda: site.cli("status", "sglang-kimi")["phase"] == phase, 30, f"phase {phase}")
    site.machine.wait(lambda: len(site.workers()) == 8, 10, "all workers to be there")
    site.stop()
    assert (site.state(), site.show("Result")) == ("inactive", "success")
    assert site.used() <= IDLE
    assert site.cli("holders")["holders"] == []
    assert site.cli("status", "sglang-kimi")["phase"] == "down"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("rm {}", "its state file is missing, or tells of another run: the phase is systemd's word"),
        ("sed -i 's/\\(\"run\": *\"\\)[0-9a-f]/\\1x/' {}", "tells of another run"),
        ("truncate -s 5 {}", "its state file cannot be used"),
    ],
    ids=["gone", "of another run", "torn"],
)
def test_a_unit_that_runs_is_never_called_down_for_its_file(site: Site, spoil: str, words: str) -> None:
    site.start()
    daemon = int(site.show("MainPID"))
    site.kill(daemon, number="STOP")  # or it would write the file again
    site.ask("sh", "-c", spoil.format("/run/gpu-lifecycle/sglang-kimi/state.json"))
    try:
        found = site.cli("status", "sglang-kimi")
    finally:
        site.kill(daemon, number="CONT")
    assert (found["phase"], found["run"]) == ("ready", site.show("InvocationID"))
    assert words in found["text"]
    site.machine.wait(lambda: "ready: " in site.cli("status", "sglang-kimi")["text"], 20, "the file to be written again")


def test_stop_while_the_hook_waits(site: Site) -> None:
    """A stop works while the pre-start hook waits for memory that does not come free."""
    site.machine.nvml.set(f"hidden 4 {10 * GIB}")
    site.start(wait=False)
    site.machine.wait(lambda: "waiting for GPU memory" in site.show("StatusText"), 20, "the wait to be shown")
    site.stop()
    assert site.state() == "inactive"


@pytest.mark.parametrize("seed", range(3))
def test_daemon_killed_at_any_moment(site: Site, seed: int) -> None:
    """Promise 12: SIGKILL of the daemon; nothing is left, and the next start works."""
    site.configure("--no-pdeathsig", "--load-seconds", "2")
    site.start(wait=False)
    site.machine.wait(lambda: site.show("MainPID") != "0", 20, "the daemon to be there")
    pause = random.Random(seed).uniform(0, 4)
    site.machine.run(["sleep", f"{pause:.2f}"])
    daemon = int(site.show("MainPID"))
    if daemon:
        site.kill(daemon)
    site.machine.wait(
        lambda: site.state() == "active" and int(site.show("MainPID")) != daemon, 60, "the next start to be ready"
    )
    assert len(site.workers()) == 8


def test_hostile_titles_break_nothing(site: Site) -> None:
    site.configure("--misbehave", "hostile-title", "--misbehave", "leave-orphans")
    orphan = site.orphan("--title", 'evil\n"READY=1"\x1b[2J\x07 \xff')
    site.start()
    site.stop()
    assert not site.alive(orphan)
    text = str(site.machine.run(["journalctl", "-b", "-u", "sglang-kimi", "-o", "cat", "--no-pager", *site.since]).stdout)
    assert "\x1b" not in "".join(line for line in text.splitlines() if "reaped" in line)
    assert all("\n" not in event["MESSAGE"] for event in site.events("holder-reaped"))
