"""``timeline`` of real starts: over leftovers, refused, failed, reloaded, with NVML silent, with the daemon killed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.systemd.site import GIB, Site
from tests.systemd.test_json_outputs import fits

pytestmark = pytest.mark.machine
HISTORY = "/var/lib/gpu-lifecycle/sglang-kimi/history.db"
SVG = "{http://www.w3.org/2000/svg}"
WORDS = ["timeline", "sglang-kimi"]
NO_RESTART = "[Service]\nRestart=no\n"


def marks(document: dict[str, Any]) -> list[str]:
    return [event["text"] for event in document["events"]]


def phases(document: dict[str, Any]) -> list[str]:
    return [phase["name"] for phase in document["phases"]]


def drawn(site: Site, *words: str) -> ElementTree.Element:
    return ElementTree.fromstring(site.ask("gpu-lifecycle", *WORDS, *words, "--svg", "-"))


def loading(site: Site) -> None:
    """The engine has its workers, and the daemon has looked at them."""
    site.machine.wait(lambda: len(site.workers()) == 8, 30, "the workers")
    site.machine.wait(lambda: site.cli("status", "sglang-kimi")["phase"] == "loading", 30, "the engine to load")
    site.machine.run(["sleep", "1.5"])


def test_a_start_over_leftovers_and_the_next_one(site: Site) -> None:
    site.machine.run(["rm", "-f", HISTORY])
    site.plant("left", "--gpu", "2", "--uvm", "--memory", f"2={10 << 30}", "--daemonize")
    site.configure("--load-seconds", "4")
    site.start()
    found = fits(site, WORDS)
    assert marks(found) == ["1 process reaped", "engine started", "port opened", "health 200", "first token", "READY"]
    assert found["run"] == site.show("InvocationID")
    assert (phases(found)[:2], phases(found)[-1]) == (["pre-start", "loading"], "ready")
    assert "loading weights" in [step["name"] for step in found["steps"]]
    assert 4 < found["ready"] < 60
    assert [gpu["index"] for gpu in found["gpus"]] == list(range(8))
    for gpu in found["gpus"]:
        known = [sample["memory"][gpu["uuid"]] for sample in found["samples"] if sample["memory"][gpu["uuid"]] is not None]
        assert len(known) > 5
        assert known[-1] > max(known[0], GIB // 2)
    assert found["samples"][-1]["at"] <= found["ready"]
    site.stop()
    site.configure()
    site.start()
    again = fits(site, WORDS)
    assert again["earlier"] == [{"run": found["run"], "ready": found["ready"]}]
    assert fits(site, [*WORDS, "--run", found["run"][:8]])["samples"] == found["samples"]
    assert drawn(site).find(f"{SVG}polygon") is not None, "the earlier run"


def test_it_is_shown_and_written(site: Site) -> None:
    site.start()
    text = site.ask("gpu-lifecycle", *WORDS)
    assert text.startswith("sglang-kimi.service, run ")
    assert "READY after " in text
    assert "loading weights" in text
    assert "GPU 0" in text  # to 7, where all eight look alike
    assert len(list(drawn(site).iter(f"{SVG}polyline"))) == 8
    assert "READY" in " ".join(drawn(site).itertext())
    done = site.machine.run(["gpu-lifecycle", *WORDS, "--svg", "/no/such/folder.svg"], check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "cannot write /no/such/folder.svg" in done.stderr
    site.machine.run(["gpu-lifecycle", *WORDS, "--png", "/tmp/start.png"])
    assert site.ask("head", "-c", "8", "/tmp/start.png")[1:4] == "PNG"


def test_a_start_that_fails_says_where(site: Site) -> None:
    site.configure("--load-seconds", "30")
    with site.drop_in(NO_RESTART):
        site.start(wait=False)
        loading(site)
        site.kill(site.engine_main())
        site.wait_state("failed", timeout=60)
        found = fits(site, WORDS)
        text = site.ask("gpu-lifecycle", *WORDS)
    assert found["ready"] is None
    assert marks(found) == ["engine started", "engine ended by signal 9", "failed"]
    assert max(sample["memory"][found["gpus"][0]["uuid"]] or 0 for sample in found["samples"]) > 0
    assert "engine-killed" in found["text"]
    assert "GPU 0" in text  # to 7, where all eight look alike


def test_a_start_that_is_refused_in_the_sweep(site: Site) -> None:
    site.service_holder("tenant", "--gpu", "5", "--uvm", "--memory", f"5={30 * GIB}")
    site.plant("left", "--gpu", "2", "--uvm", "--memory", f"2={10 << 30}", "--daemonize")
    with site.drop_in(NO_RESTART):
        site.start_and_fail()
        site.wait_state("failed")
        found = fits(site, WORDS)
    assert (found["ready"], found["samples"], found["gpus"]) == (None, [], [])
    assert phases(found) == ["pre-start"]
    assert marks(found) == ["1 process reaped", "refused"]
    assert "in the way" in found["text"]
    assert "No engine was started" in found["note"]


def test_a_reload_in_the_middle_of_a_start_loses_nothing(site: Site) -> None:
    site.configure("--load-seconds", "12")
    site.start(wait=False)
    run = site.show("InvocationID")
    loading(site)
    site.machine.run(["kill", "-HUP", site.show("MainPID")], check=True)
    site.machine.wait(lambda: bool(site.events("reloaded")), 30, "the reload")
    site.wait_state("active", timeout=60)
    found = fits(site, WORDS)
    assert found["run"] == run
    assert "recorded from here" not in marks(found)
    assert marks(found)[:2] == ["engine started", "daemon reloaded"]
    assert marks(found)[-1] == "READY"
    times = [sample["at"] for sample in found["samples"]]
    assert times == sorted(times)
    assert times[0] < found["events"][0]["at"] + 3, "from before the reload"
    assert [one["ended"] for one, _ in pairwise(found["phases"])] == [other["began"] for _, other in pairwise(found["phases"])]


def test_a_reload_after_the_start_keeps_what_was_recorded(site: Site) -> None:
    site.start()
    before = fits(site, WORDS)
    site.systemctl("reload")
    site.systemctl("stop")
    after = fits(site, WORDS)
    assert after["text"].startswith(before["text"])
    assert after | {"text": ""} == before | {"text": ""}


def test_a_time_in_which_nvml_is_silent_is_a_gap(site: Site) -> None:
    """In the load, for about two seconds."""
    site.configure("--load-seconds", "12")
    site.start(wait=False)
    loading(site)
    site.machine.nvml.set("error nvmlDeviceGetMemoryInfo_v2 999")
    site.machine.run(["sleep", "2"])
    site.machine.nvml.clear("error")
    site.wait_state("active", timeout=60)
    found = fits(site, WORDS)
    for gpu in found["gpus"]:
        known = [sample["memory"][gpu["uuid"]] is not None for sample in found["samples"]]
        assert [one for one, other in pairwise([*known, None]) if one != other] == [True, False, True], "known, not, known"
    # one row for all eight, or, where the silence began or ended between two GPUs of a look, one for each kind
    shown = [line for line in site.ask("gpu-lifecycle", *WORDS).splitlines() if line.startswith("GPU ")]
    assert shown
    assert all("?" in line for line in shown), shown
    assert len(list(drawn(site).iter(f"{SVG}polyline"))) == 16


def test_a_daemon_that_is_killed_before_ready_is_told_of(site: Site) -> None:
    site.configure("--load-seconds", "30")
    with site.drop_in(NO_RESTART):
        site.start(wait=False)
        loading(site)
        site.machine.run(["sleep", "5"])  # an earlier look may not have seen memory
        live = fits(site, [*WORDS, "--run", site.show("InvocationID")])
        assert "still going on" in live["note"]
        site.kill(int(site.show("MainPID")))
        site.wait_state("failed", timeout=60)
        found = fits(site, WORDS)
        text = site.ask("gpu-lifecycle", *WORDS)
    assert (found["run"], found["ready"]) == (live["run"], None)
    for seen in (live, found):
        assert max(sample["memory"][seen["gpus"][0]["uuid"]] or 0 for sample in seen["samples"]) > 0
        assert "loading weights" in [step["name"] for step in seen["steps"]]
    assert found["samples"][: len(live["samples"])] == live["samples"], "what was seen is kept"
    assert phases(found)[:2] == ["pre-start", "loading"]
    assert "daemon-killed" in found["text"]
    for said in (found["note"], " ".join(text.split())):
        assert "Its daemon was killed before READY: what its last seconds held is not known" in said


def test_a_start_is_shown_before_the_history_has_it(site: Site) -> None:
    """Somebody holds a lock on it: the run before is not to be taken for this one."""
    site.start()
    site.stop()
    lock = f"import sqlite3, time; db = sqlite3.connect('{HISTORY}'); db.execute('BEGIN IMMEDIATE'); time.sleep(600)"
    site.ask("systemd-run", "--quiet", "--collect", "--unit=locks-the-history", "python3", "-c", lock)
    site.configure("--load-seconds", "2")
    try:
        site.start()
        run, found = site.show("InvocationID"), fits(site, WORDS)
        newest = site.cli("runs", "sglang-kimi")["runs"][0]
        assert "another process is writing it" in site.messages("history-not-kept")
    finally:
        site.ask("systemctl", "stop", "locks-the-history")
    assert (found["run"], found["note"]) == (run, None)
    assert len(found["samples"]) > 1
    assert marks(found)[-1] == "READY"
    assert (newest["run"], newest["ready"] is None, newest["outcome"]) == (run, False, None)


def test_a_unit_without_a_start(site: Site) -> None:
    done = site.machine.run(["gpu-lifecycle", "timeline", "sglang-other"], check=False)
    assert done.returncode == 2
    assert "no start of sglang-other.service is in its history yet" in done.stderr
