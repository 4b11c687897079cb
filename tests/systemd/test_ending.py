"""How a run ends: what comes before the drain, what is kept of a failure, and how long the next try waits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.systemd.site import Site

pytestmark = pytest.mark.machine

INCIDENTS = "/var/lib/gpu-lifecycle/sglang-kimi/incidents"


def stop_section(*lines: str) -> str:
    return '[watch]\ninterval = "500ms"\ntimeout = "2s"\n[stop]\ndrain = "5s"\n' + "\n".join(lines) + "\n"


def script(site: Site, body: str) -> str:
    path = "/usr/local/bin/leave-the-pool"
    site.machine.write(path, f"#!/bin/sh\n{body}\n", 0o755)
    return path


def incidents(site: Site) -> list[str]:
    return sorted(site.ask("ls", INCIDENTS).split())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("env > /var/lib/gpu-lifecycle/sglang-kimi/before; curl -s -m1 localhost:30000/health -o /dev/null && echo up", ""),
        ("exit 3", "stop.before exited with status 3"),
        ("sleep 60", "stop.before took longer than 1s"),
    ],
    ids=["does its work", "fails", "takes too long"],
)
def test_what_keeps_requests_away_runs_before_the_drain(site: Site, body: str, words: str) -> None:
    site.configure(extra=stop_section(f'before = ["{script(site, body)}"]', 'before_limit = "1s"'))
    site.start()
    engine = site.engine_main()
    site.systemctl("stop", "--no-block")
    if words.endswith("1s"):
        site.machine.wait(lambda: "keep new requests away" in site.show("StatusText"), 10, "stop.before to be shown")
        assert site.alive(engine), "the engine is not signalled before"
    site.wait_state("inactive", timeout=30)
    assert site.show("Result") == "success"
    assert words in site.messages("stop-requested")
    assert site.ask("pgrep", "-f", "leave-the-pool") == ""
    if not words:
        seen = site.ask("cat", "/var/lib/gpu-lifecycle/sglang-kimi/before")
        assert "GPU_LIFECYCLE_UNIT=sglang-kimi.service" in seen
        assert "NOTIFY_SOCKET" not in seen


def test_the_engine_does_not_wait_for_our_own_questions(site: Site) -> None:
    """Its metrics page hangs, and while somebody waits for it, it does not end: we are to leave first."""
    site.configure("--misbehave", "awaits-askers", "--enable-metrics", extra=stop_section().replace('"2s"', '"60s"'))
    site.start()
    port = ":30000"
    site.machine.wait(lambda: port in site.ask("ss", "-Htn", "state", "established", "dport", "=", port), 20, "a question")
    site.stop()
    assert site.show("Result") == "success"
    assert "Gracefully exiting" in site.ask("journalctl", "-u", "sglang-kimi", "-o", "cat", *site.since), "it ended by itself"
    assert "killing" not in site.messages()


def test_asked_twice_a_stop_is_shorter(site: Site) -> None:
    site.configure("--misbehave", "ignore-term", extra=stop_section().replace('"5s"', '"10min"'))
    site.start()
    site.systemctl("stop", "--no-block")
    site.machine.wait(lambda: "draining" in site.show("StatusText"), 10, "the drain to begin")
    site.machine.run(["systemctl", "kill", "--kill-whom=main", "sglang-kimi.service"])
    site.wait_state("inactive", timeout=30)
    assert "asked again" in site.messages("stop-requested")
    assert site.show("Result") == "success"


def test_a_failure_leaves_evidence_behind(site: Site) -> None:
    """Written before the signals: the workers' wait places, the GPUs and the last probes are those of the failure."""
    before = incidents(site)
    site.start()
    site.kill(site.workers()[3])
    site.machine.wait(lambda: bool(site.events("evidence-kept")), 20, "evidence to be kept")
    (new,) = set(incidents(site)) - set(before)
    assert f"{INCIDENTS}/{new}" in site.messages("evidence-kept")
    document: dict[str, Any] = json.loads(site.machine.read(f"{INCIDENTS}/{new}/incident.json"))
    assert "lost 1 of" in document["why"]
    titles = [process["title"] for process in document["processes"]]
    assert sum(title.startswith("sglang::scheduler") for title in titles) == 7
    assert all(process["threads"] for process in document["processes"])
    assert len(document["gpus"]) == 8
    assert any(probe["ok"] for probe in document["probes"])
    assert document["run"] == site.events("ready")[0]["GPU_LIFECYCLE_RUN"]
    site.machine.wait(lambda: site.show("NRestarts") == "1" and site.state() == "active", 60, "the restart to end well")


def test_evidence_that_cannot_be_kept_is_in_nobodys_way(site: Site) -> None:
    site.machine.run(["sh", "-c", f"rm -rf {INCIDENTS}; touch {INCIDENTS}"])
    try:
        site.start()
        site.kill(site.workers()[3])
        site.machine.wait(lambda: site.show("NRestarts") == "1" and site.state() == "active", 60, "the restart to end well")
        assert "no evidence of this is kept" in site.messages("sight-partial")
    finally:
        site.machine.run(["rm", "-f", INCIDENTS])


def test_each_try_waits_longer_and_a_start_by_hand_does_not(site: Site) -> None:
    with site.drop_in("[Service]\nRestartSec=2s\n"):
        site.configure("--misbehave", "exit-at-once=1")
        site.start(wait=False)
        site.machine.wait(lambda: len(site.events("start-delayed")) >= 2, 60, "two tries to be put off")
        said = [line["MESSAGE"] for line in site.events("start-delayed")]
        assert said[:2] == [
            "2 runs in a row have failed: the next start waits 2s",
            "3 runs in a row have failed: the next start waits 6s",
        ]
        site.machine.wait(lambda: "runs in a row have failed" in site.show("StatusText"), 10, "the wait to be shown")
        site.stop()
        assert (site.state(), site.show("Result")) == ("inactive", "success"), "a stop ends the wait"
        site.configure()
        site.begin()
        site.start()
        assert not site.events("start-delayed")


def test_a_load_that_waits_for_the_lock_of_a_dead_build_names_it(site: Site) -> None:
    """Field case F51: torch's baton is a file; whoever finds it waits for its maker, who was killed long ago."""
    folder = "/var/cache/gpu-lifecycle/sglang-kimi/torch_extensions/py311/fused"
    site.machine.run(["sh", "-c", f"mkdir -p {folder} && touch -d '2 hours ago' {folder}/lock"])
    site.configure("--misbehave", "never-listens", extra='[ready]\nstall = "3s"\n[watch]\ninterval = "500ms"\n')
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("build-locked")), 40, "the lock to be named")
    assert f"{folder}/lock was left 2h ago by a build that is dead; to go on: rm {folder}/lock" in site.messages("build-locked")
    assert "no progress for ready.stall" in site.messages("engine-failed")
    assert site.ask("ls", folder).strip() == "lock", "it is not ours to remove"
    site.machine.run(["rm", "-r", folder])
