"""What a start shows of itself, what it learns from the one before, what a stall leaves, and what a drain shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.systemd.site import UNIT, Site

pytestmark = pytest.mark.machine

LOADS = "/var/lib/gpu-lifecycle/sglang-kimi/loads.json"
INCIDENTS = "/var/lib/gpu-lifecycle/sglang-kimi/incidents"
WATCH = '[watch]\ninterval = "500ms"\ntimeout = "2s"\n'
CLIENT = """
import http.client, json, sys
line = http.client.HTTPConnection("127.0.0.1", 30000, timeout=120)
body = {"input_ids": [1], "sampling_params": {"max_new_tokens": int(sys.argv[1])}}
line.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
answer = line.getresponse()
answer.read()
open(f"/run/answer-{sys.argv[1]}", "w").write(str(answer.status))
"""


def shown(site: Site) -> dict[str, Any]:
    return site.cli("status", "sglang-kimi")


def learned(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(site.machine.read(LOADS))["loads"]
    return found


@pytest.fixture(autouse=True)
def nothing_learned(site: Site) -> None:
    site.ask("rm", "-rf", LOADS)


def test_the_second_start_shows_what_the_first_took(site: Site) -> None:
    site.configure("--load-seconds", "8")
    site.start()
    ready = shown(site)
    assert (ready["progress"], ready["eta"]) == (1.0, 0.0)
    site.machine.wait(lambda: "loads.json" in site.ask("ls", "/var/lib/gpu-lifecycle/sglang-kimi"), 10, "the load to be kept")
    (first,) = learned(site)
    assert 8 <= first["seconds"] < 60
    assert first["steps"]["weights"] > 2
    assert len(first["memory"]) == 8
    assert min(first["memory"].values()) == 72 << 30
    assert site.ask("stat", "-c", "%U %a", LOADS).split() == ["gpu-lifecycle", "644"]
    site.stop()
    assert (shown(site)["progress"], shown(site)["eta"]) == (None, None)

    site.start(wait=False)
    site.machine.wait(lambda: " left after " in site.show("StatusText"), 30, "the time left to be shown")
    one = shown(site)
    assert one["phase"] in ("loading", "warming")
    assert 0 <= one["progress"] < 1
    assert 0 < one["eta"] <= first["seconds"] + 5
    assert "progress: " in site.ask("gpu-lifecycle", "status", "sglang-kimi")
    site.machine.run(["sleep", "2"])
    other = shown(site)
    assert other["progress"] > one["progress"] or other["phase"] == "ready"
    assert other["eta"] < one["eta"]
    site.wait_state("active", timeout=60)
    site.machine.wait(lambda: len(learned(site)) == 2, 10, "the second load to be kept")


def test_another_model_is_not_misled(site: Site) -> None:
    site.start()
    site.stop()
    site.configure("--load-seconds", "8", "--served-model-name", "other")
    site.start(wait=False)
    site.machine.wait(lambda: "loading weights" in site.show("StatusText"), 30, "the weights to be loaded")
    for _ in range(5):
        text = site.show("StatusText")
        assert "left after" not in text
        assert "slower than" not in text
    site.wait_state("active", timeout=60)


def test_a_spoilt_file_is_told_once_and_is_in_nobodys_way(site: Site) -> None:
    site.machine.write(LOADS, '{"schema": 1, "loads": [')
    site.start()
    site.machine.wait(lambda: "torn" in site.messages("loads-not-kept"), 10, "it to be told")
    site.stop()
    site.start()
    assert len(site.events("loads-not-kept")) == 1  # it was replaced after the first start
    assert len(learned(site)) >= 1


def test_a_stalled_load_names_what_its_processes_did(site: Site) -> None:
    site.configure("--load-seconds", "4", "--misbehave", "stall-at=40", extra='[ready]\nstall = "6s"\n' + WATCH)
    site.start(wait=False)
    site.machine.wait(lambda: "no progress for" in site.show("StatusText"), 40, "the silence to be shown")
    site.machine.wait(lambda: bool(site.events("engine-failed")), 30, "the stall to be found")
    said = site.messages("engine-failed")
    assert "no progress for ready.stall, 6s: loading weights " in said
    assert "sglang::scheduler_TP* waiting" in said
    assert "; the last was " in said
    site.machine.wait(lambda: bool(site.events("evidence-kept")), 20, "the evidence to be kept")
    newest = max(site.ask("ls", INCIDENTS).split())
    load = json.loads(site.machine.read(f"{INCIDENTS}/{newest}/incident.json"))["load"]
    assert load["phase"] == "loading weights"
    assert load["total"] == 64
    assert load["seconds_without_progress"] >= 6
    assert load["last_progress"]
    assert "sglang::scheduler_TP* waiting" in load["doing"]
    site.systemctl("stop", check=False)


def ask(site: Site, *tokens: int) -> None:
    site.machine.write("/run/client.py", CLIENT)
    for number in tokens:
        site.machine.run(["sh", "-c", f"python3 -I /run/client.py {number} >/dev/null 2>&1 & echo"])


def test_a_stop_under_load_shows_the_requests_getting_fewer(site: Site) -> None:
    site.configure("--enable-metrics", "--token-seconds", "0.02", extra=WATCH + '[stop]\ndrain = "60s"\n')
    site.start()
    ask(site, 301, 502, 703)
    site.machine.run(["sleep", "1"])
    site.systemctl("stop", "--no-block")
    seen: list[str] = []

    def ended() -> bool:
        text = site.show("StatusText")
        if not seen or seen[-1] != text:
            seen.append(text)
        return site.state() == "inactive"

    site.machine.wait(ended, 90, "the unit to stop")
    counts = [int(text.split()[1]) for text in seen if " in flight; " in text and text.split()[1].isdigit()]
    assert counts == sorted(counts, reverse=True)
    assert {3, 2, 1} <= set(counts), seen
    assert [site.machine.read(f"/run/answer-{number}") for number in (301, 502, 703)] == ["200"] * 3
    assert site.show("Result") == "success"
    lines = site.machine.journal(UNIT, "-b", *site.since)
    (heard,) = [line for line in lines if "Draining requests and shutting down" in str(line["MESSAGE"])]
    assert heard["GPU_LIFECYCLE_PHASE"] == "draining"


def test_a_drain_whose_metrics_are_silent_ends_in_time(site: Site) -> None:
    site.configure("--enable-metrics", extra=WATCH + '[stop]\ndrain = "6s"\n')
    site.start()
    site.kill(site.engine_main(), number="STOP")
    site.systemctl("stop", "--no-block")
    site.machine.wait(lambda: "cannot be seen: no answer" in site.show("StatusText"), 20, "the silence to be said")
    site.wait_state("inactive", timeout=60)
    assert site.show("Result") == "success"
    assert not site.events("defect")


def test_requests_that_are_cut_off_are_told(site: Site) -> None:
    site.configure("--enable-metrics", extra=WATCH + '[stop]\ndrain = "2s"\n')
    site.start()
    ask(site, 100_000)
    site.machine.run(["sleep", "1"])
    site.stop()
    assert "stop.drain, 2s, is over: 1 request in flight cut off" in site.messages("drain-cut")


def test_a_traceback_is_an_error_from_its_first_line_and_lines_bear_the_phase(site: Site) -> None:
    code = "import sys\ndef f(): raise ValueError('no such model')\nprint('begin', file=sys.stderr)\nf()"
    text = site.machine.read("/etc/gpu-lifecycle/sglang-kimi.toml")
    command = next(line for line in text.splitlines() if line.startswith("command"))
    words = json.dumps(["/usr/bin/python3", "-c", code])
    site.machine.write("/etc/gpu-lifecycle/sglang-kimi.toml", text.replace(command, f"command = {words}"))
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("engine-failed")), 20, "the engine to fail")
    lines = [line for line in site.machine.journal(UNIT, "-b", *site.since) if line.get("SYSLOG_IDENTIFIER") == "sglang-kimi"]
    said = {str(line["MESSAGE"]): line for line in lines if line.get("GPU_LIFECYCLE_PHASE")}
    assert said["begin"]["PRIORITY"] == "6"
    trace = [line for message, line in said.items() if message != "begin"]
    assert {"Traceback (most recent call last):", "ValueError: no such model"} <= said.keys()
    assert {line["PRIORITY"] for line in trace} == {"3"}
    assert {line["GPU_LIFECYCLE_PHASE"] for line in trace} == {"loading"}
