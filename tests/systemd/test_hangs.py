"""Busy, idle or hung, on a real systemd: each fault with its control, the same picture with an innocent cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.systemd.site import CONFIG, GIB, HOLDER, Site

pytestmark = pytest.mark.machine

WATCHED = '[watch]\ninterval = "300ms"\ntimeout = "1500ms"\nbusy_grace = "4s"\n[stop]\ndrain = "1s"\n'
CLIENT = """
import http.client, json, sys, time
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    line = http.client.HTTPConnection('127.0.0.1', 30000, timeout=60)
    body = {'input_ids': [1] * int(sys.argv[3]), 'sampling_params': {'max_new_tokens': int(sys.argv[2])}}
    line.request('POST', '/generate', json.dumps(body), {'Content-Type': 'application/json'})
    line.getresponse().read(); line.close()
"""


def load(site: Site, seconds: float, tokens: int, prompt: int = 1) -> None:
    """Requests for so many tokens each, one after the other, for so long."""
    site.machine.write("/run/client.py", CLIENT)
    site.machine.run(["sh", "-c", f"python3 -I /run/client.py {seconds} {tokens} {prompt} >/dev/null 2>&1 & echo"])


def pause(site: Site, seconds: float) -> None:
    site.machine.run(["sleep", str(seconds)])


def ended(site: Site) -> str:
    """Why the run was ended; waits for it, and for one restart that ends well."""
    site.machine.wait(lambda: bool(site.events("engine-failed")), 30, "the verdict")
    site.machine.wait(lambda: site.show("NRestarts") == "1" and site.state() == "active", 60, "one restart to end well")
    return site.messages("engine-failed")


def fed(site: Site, seconds: float) -> None:
    """The unit is well for so long: active, its watchdog fed to the end, no restart."""
    pause(site, seconds)
    before = int(site.show("WatchdogTimestampMonotonic"))
    site.machine.wait(lambda: int(site.show("WatchdogTimestampMonotonic")) > before, 10, "a watchdog message")
    assert (site.state(), site.show("NRestarts"), site.messages("engine-failed")) == ("active", "0", "")


def test_a_scheduler_that_hangs_with_work_in_hand(site: Site) -> None:
    """Field case F23: the counters stand still, requests are in hand."""
    site.configure("--enable-metrics", extra=WATCHED)
    site.start()
    load(site, 30, 100_000)
    pause(site, 1)
    site.kill(*site.workers().values(), number="STOP")
    assert "in hand and no progress for" in ended(site)


def test_a_scheduler_that_hangs_under_a_green_health_and_idle_gauges(site: Site) -> None:
    """Field case F23: nothing is queued, by what the page says; a token that we ask for shows the hang."""
    site.configure("--enable-metrics", extra=WATCHED)
    site.start()
    site.kill(*site.workers().values(), number="STOP")
    assert "stalled: " in ended(site)


def test_idle_counters_may_stand_still(site: Site) -> None:
    site.configure("--enable-metrics", extra=WATCHED)
    site.start()
    fed(site, 7)
    assert not site.events("suspect")


@pytest.mark.parametrize("metrics", [["--enable-metrics"], []])
def test_a_pause_within_the_grace_is_left_alone(site: Site, metrics: list[str]) -> None:
    """Field case F27: the first request compiles kernels, and nothing answers meanwhile."""
    site.configure(*metrics, "--health-timeout", "60", extra=WATCHED)
    site.start()
    load(site, 1, 50)
    workers = site.workers().values()
    site.kill(*workers, number="STOP")
    pause(site, 1.8)
    site.kill(*workers, number="CONT")
    fed(site, 3)
    assert not site.events("suspect")


def test_a_long_prefill_under_a_bad_health_is_left_alone(site: Site) -> None:
    """Field case F24: minutes of prefill, and a health endpoint that says 503 meanwhile."""
    site.configure("--enable-metrics", "--chunked-prefill-size", "10", extra=WATCHED)
    site.start()
    load(site, 8, 1, prompt=3000)
    site.kill(site.engine_main(), number="USR1")
    fed(site, 7)
    assert not site.events("suspect")


def test_health_that_takes_longer_than_a_second(site: Site) -> None:
    """Field case F24: SGLang's health endpoint never answers in less."""
    site.configure("--health-latency", "1.03", extra=WATCHED)
    site.start()
    fed(site, 4)
    assert not site.events("suspect")


@pytest.mark.parametrize("metrics", [["--enable-metrics"], []])
def test_a_server_that_says_503_for_ever_after_a_rank_has_hung(site: Site, metrics: list[str]) -> None:
    """Field case F25: it never exits by itself."""
    site.configure(*metrics, "--health-timeout", "1", extra=WATCHED)
    site.start()
    site.kill(site.workers()[3], number="STOP")
    site.kill(site.engine_main(), number="USR1")
    assert "stalled: " in ended(site) if metrics else "status 503" in ended(site)


def test_a_unit_that_was_frozen_is_not_ended(site: Site) -> None:
    """Everything stands still, our own clock too; nothing of what is seen first after it counts."""
    site.configure("--enable-metrics", extra=WATCHED)
    site.start()
    load(site, 12, 100_000)
    site.systemctl("freeze")
    pause(site, 6)
    site.systemctl("thaw")
    fed(site, 3)



def test_what_the_engine_was_asked_is_kept_as_evidence(site: Site) -> None:
    site.configure("--enable-metrics", extra=WATCHED)
    site.start()
    site.kill(*site.workers().values(), number="STOP")
    site.machine.wait(lambda: bool(site.events("evidence-kept")), 30, "the evidence")
    folder = site.messages("evidence-kept").splitlines()[0].rpartition(" ")[2]
    text = site.ask("sh", "-c", f"cat {folder}/*.json")
    rows = json.loads(text)["probes"]
    assert {"metrics", "token"} <= {row["probe"] for row in rows}
    assert any("sglang:realtime_tokens_total" in row["text"] for row in rows)


VLLM = """
[server]
engine = "vllm"
command = ["/bin/sh", "-c", "{holder} --gpu 0 --memory 0={bytes} & exec python3 -I {program} --engine vllm --state /run/core"]
url = "http://127.0.0.1:8000"
model = "m"
[gpus]
claim = [0]
count = 1
[sweep]
term_grace = "2s"
exit_deadline = "5s"
memory_deadline = "6s"
"""


@pytest.mark.parametrize(("core", "words"), [("dead", "status 503"), ("hung", "a request for one token has had no answer")])
def test_a_dead_core_of_vllm_and_one_that_hangs(site: Site, core: str, words: str) -> None:
    """Its health endpoint is 503 once the core has died, and 200 while it hangs."""
    program = "/opt/gpu-lifecycle/standins/engines_standin"
    site.machine.copy(Path(__file__).parent.parent / "standins" / "engines_standin", program)
    text = VLLM.format(holder=HOLDER, bytes=8 * GIB, program=f"{program} --port 8000")
    site.machine.write(CONFIG, text + WATCHED)
    site.machine.write("/run/core", "well")
    site.start()
    fed(site, 3)
    site.machine.write("/run/core", core)
    site.machine.wait(lambda: bool(site.events("engine-failed")), 30, "the verdict")
    site.machine.write("/run/core", "well")
    assert words in ended(site)
