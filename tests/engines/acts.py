"""What is done to a unit with a real engine, whichever it is, and what must come of it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gpu_lifecycle.rules.engines import ENGINES
from tests.engines.unit import LONG_PROMPT, READY, SETTINGS, Unit

PATIENT = SETTINGS.replace('busy_grace = "20s"', 'busy_grace = "300s"')
PHASES = ["down", "pre-start", "loading", "warming", "ready"]


@dataclass
class Start:
    """One start as ``status`` told it, from the order to READY=1."""

    unit: Unit
    told: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def of(cls, unit: Unit) -> Start:
        start, begun = cls(unit), time.monotonic()
        unit.begin()
        unit.systemctl("start", "--no-block")
        while not start.told or start.told[-1]["phase"] != "ready":
            start.told.append(unit.cli("status", unit.name))
            assert start.told[-1]["phase"] != "failed", unit.tail()
            assert time.monotonic() - begun < READY, unit.tail()
            time.sleep(0.4)
        unit.wait_ready()
        start.seconds = time.monotonic() - begun
        start.events = unit.events()
        return start

    events: list[dict[str, Any]] = field(default_factory=list)


def shows_its_load(start: Start) -> None:
    unit = start.unit
    phases = [PHASES.index(item["phase"]) for item in start.told]
    assert phases == sorted(phases)
    assert PHASES[phases[-1]] == "ready"
    drawn = [phase["name"] for phase in unit.cli("timeline", unit.name)["phases"]]
    assert {"loading", "ready"} <= set(drawn), "also where a load is over before anybody asks"
    progress = [item["progress"] for item in start.told if item["progress"] is not None]
    assert progress == sorted(progress)
    assert start.told[-1]["progress"] == 1.0
    words = [event["GPU_LIFECYCLE_EVENT"] for event in start.events]
    assert words.index("start-allowed") < words.index("engine-started") < words.index("ready")
    assert not {"suspect", "engine-failed", "output-lost", "pulse-unseen"} & set(words), unit.messages()
    (load,) = json.loads(unit.machine.read(f"/var/lib/gpu-lifecycle/{unit.name}/loads.json"))["loads"]
    passed = [step for step in load["steps"] if step not in ("none", "distributed", "serving")]  # one GPU has no other to meet
    assert passed == list(unit.preset.steps), load
    assert "serving" in load["steps"], load
    assert all(amount > unit.preset.memory for amount in load["memory"].values())
    assert len(load["memory"]) == len(unit.gpus)
    assert f"0 of {len(unit.gpus)}" not in start.told[-1]["text"]


def serves(unit: Unit) -> None:
    """A completion, health, the names of the preset's counters, and which of them move."""
    assert unit.http("/health")[0] == 200
    before = unit.metrics()
    body = {"model": "tiny", "prompt": "the fox", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    status, text = unit.http("/v1/completions", body)
    assert status == 200, text
    assert json.loads(text)["usage"]["completion_tokens"] == 20
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "the fox"}], "max_tokens": 2}
    assert unit.http("/v1/chat/completions", chat)[0] == 200
    after = unit.metrics()
    known = ENGINES[unit.preset.engine].metrics
    assert known is not None
    for name in (*known.levels, *known.running, *known.queued):
        assert name in after, f"{name} is not on the page"
    grown = {name for name, value in after.items() if value > before.get(name, 0.0)}
    for name in known.progress:
        assert grown & {name, f"{name}_sum", f"{name}_count"}, f"{name} has not moved: {grown}"
    holders = {item["pid"]: item for item in unit.cli("holders", unit.name)["holders"]}
    assert set(unit.titled(unit.preset.worker)) <= set(holders)
    assert unit.used() > unit.preset.memory


def fault(unit: Unit, victims: list[int]) -> None:
    """Kill these; it is noticed, and comes to one restart, with nothing left of the run before."""
    assert victims
    unit.begin()
    before, restarts = list(unit.titles()), int(unit.show("NRestarts"))
    unit.kill(*victims)
    unit.wait(lambda: unit.events("engine-failed"), 60, "the fault to be noticed")
    unit.wait(lambda: int(unit.show("NRestarts")) > restarts, 120, "the restart")
    assert unit.alive(*before) == []
    unit.wait_ready()
    assert int(unit.show("NRestarts")) == restarts + 1
    assert len(unit.events("engine-failed")) == 1
    assert len(unit.events("engine-started")) == 1
    owned = {item["pid"] for item in unit.cli("holders", unit.name)["holders"]}
    assert not owned & set(before)


def stalls(unit: Unit, frozen: list[int]) -> None:
    """Work in hand, and the core does nothing more of it."""
    assert frozen
    restarts = int(unit.show("NRestarts"))
    with unit.load("8", "50", "200") as load:
        assert load.stdout is not None
        assert load.stdout.readline() == "flowing\n"
        unit.kill(*frozen, number="STOP")
        unit.wait(lambda: unit.events("engine-failed"), 90, "the stall to be found")
    assert "stalled: " in unit.messages("engine-failed")
    unit.wait(lambda: int(unit.show("NRestarts")) > restarts, 120, "the restart")
    unit.wait_ready()
    assert int(unit.show("NRestarts")) == restarts + 1
    assert unit.alive(*frozen) == []


def streams_end(unit: Unit) -> None:
    """A stop waits for the streams that are running, and takes no more than it needs."""
    with unit.load("4", "1", "220") as load:
        assert load.stdout is not None
        assert load.stdout.readline() == "flowing\n"
        unit.systemctl("stop", timeout=150)
        told = load.stdout.read().split("\n")
    assert len(told) == 5
    if unit.preset.drains:
        assert all(line.startswith("200 ") and line.endswith(" whole") for line in told[:-1]), told


def read_prompt(unit: Unit, tokens: int) -> int:
    """Has one prompt read, whose start no other prompt shares; how often its health was not told within 2 s."""
    prompt = [5 + (number + tokens // LONG_PROMPT) % 4 for number in range(tokens)]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
    late = 0
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(unit.http, "/v1/completions", body, 600)
        while not asked.done():
            late += unit.http("/health", timeout=2)[0] != 200
            assert unit.show("ActiveState") == "active", unit.tail()
            time.sleep(1)
    assert asked.result()[0] == 200, asked.result()
    return late


def long_prefill(unit: Unit) -> None:
    """One prompt that keeps the core, and with SGLang the health endpoint, busy for longer than a probe waits."""
    unit.systemctl("stop", check=False, timeout=150)
    unit.configure(*unit.preset.long, model=unit.preset.long_model, extra=PATIENT)
    unit.ensure_ready()
    unit.begin()
    run, restarts = unit.show("InvocationID"), unit.show("NRestarts")
    late = read_prompt(unit, LONG_PROMPT)
    if unit.preset.health_waits and late < 2:  # this machine has read it in a few seconds; twice as long takes four times that
        late = read_prompt(unit, 2 * LONG_PROMPT)
    assert not {"suspect", "engine-failed"} & {event["GPU_LIFECYCLE_EVENT"] for event in unit.events()}, unit.messages()
    assert (unit.show("InvocationID"), unit.show("NRestarts")) == (run, restarts)
    if unit.preset.health_waits:
        assert late >= 2
    unit.configure()


def stops_clean(unit: Unit) -> None:
    """After a stop: not failed, nothing lives, nothing is held, the GPUs are free."""
    assert (unit.show("ActiveState"), unit.show("Result")) == ("inactive", "success")
    assert unit.machine.pids_of_unit(unit.service) == []
    assert unit.used() == 0
    assert not unit.events("engine-failed")
    assert unit.events("stopped")
    assert unit.ask("ls", "-A", "/dev/shm").split() == []
    scratch = (*unit.ask("ls", "-A", "/tmp").split(), *unit.ask("ls", "-A", "/var/tmp").split())
    usual = ("systemd-private-", ".X", ".ICE", ".font")  # those with a dot are made at each boot
    left = [name for name in scratch if unit.service in name or not name.startswith(usual)]
    assert left == [], left
    assert not [item for item in unit.cli("holders", unit.name)["holders"] if item["owner"]["name"] == unit.service]


def cut_stop(unit: Unit) -> None:
    """A stop in the middle of the load, when the engine has no handler for signals yet and its children outlive it."""
    unit.systemctl("stop", check=False, timeout=150)
    unit.begin()
    unit.systemctl("start", "--no-block")
    ours = 2  # the daemon and its NVML helper
    unit.wait(lambda: len(unit.titles()) >= ours + unit.preset.children, 120, "processes of the engine")
    there = list(unit.titles())
    begun = time.monotonic()
    unit.systemctl("stop", timeout=150)
    assert time.monotonic() - begun < 20
    assert unit.alive(*there) == []
    stops_clean(unit)
