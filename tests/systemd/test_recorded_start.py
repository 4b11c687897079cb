"""``timeline`` of real starts: one that comes to READY=1 over leftovers, one that fails, one that is reloaded."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.systemd.site import Site

pytestmark = pytest.mark.machine
SVG = "{http://www.w3.org/2000/svg}"


def recorded(site: Site, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.ask("gpu-lifecycle", "timeline", "sglang-kimi", "--json", *words))
    return found


def marks(document: dict[str, Any]) -> list[str]:
    return [event["text"] for event in document["events"]]


def test_a_start_over_leftovers_and_the_next_one(site: Site) -> None:
    site.plant("left", "--gpu", "2", "--uvm", "--memory", f"2={10 << 30}", "--daemonize")
    site.start()
    document = recorded(site)
    assert marks(document) == ["1 process reaped", "engine started", "port open", "health 200", "READY=1"]
    assert document["ready"]
    assert document["run"] == site.show("InvocationID")
    names = [phase["name"] for phase in document["phases"]]
    assert names[0] == "pre-start"
    assert "weights" in names
    assert [item["gpu"] for item in document["gpus"]] == [str(number) for number in range(8)]
    for item in document["gpus"]:
        held = [amount for _, amount in item["memory"]]
        assert held[0] < held[-1] == max(held)
    assert document["seconds"] == pytest.approx(document["phases"][-1]["end"], abs=0.2)
    site.systemctl("stop")
    site.start()
    again = recorded(site)
    assert again["earlier_seconds"][0] == pytest.approx(document["seconds"], abs=1)
    assert recorded(site, "--run", document["run"][:8])["events"] == document["events"]


def test_it_is_shown_and_written(site: Site) -> None:
    site.start()
    text = site.ask("gpu-lifecycle", "timeline", "sglang-kimi")
    assert text.startswith("sglang-kimi.service: ready after ")
    assert "loading weights" in text
    assert "memory, GPU 7" in text
    root = ElementTree.fromstring(site.ask("gpu-lifecycle", "timeline", "sglang-kimi", "--svg", "-"))
    assert len(list(root.iter(f"{SVG}polyline"))) == 8
    done = site.machine.run(["gpu-lifecycle", "timeline", "sglang-kimi", "--svg", "/no/such/folder.svg"], check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "cannot write /no/such/folder.svg" in done.stderr
    site.machine.run(["gpu-lifecycle", "timeline", "sglang-kimi", "--png", "/tmp/start.png"])
    assert site.ask("head", "-c", "8", "/tmp/start.png")[1:4] == "PNG"


def test_a_start_that_fails_says_where(site: Site) -> None:
    site.configure("--load-seconds", "30")
    site.start(wait=False)
    site.machine.wait(lambda: len(site.workers()) == 8, 30, "the workers")
    site.kill(site.engine_main())
    site.machine.wait(lambda: bool(site.events("run-ended")), 60, "the end to be told")
    site.systemctl("stop")
    document = recorded(site)
    assert not document["ready"]
    assert marks(document)[0] == "engine started"
    assert len(marks(document)) == 2
    assert "READY=1" not in marks(document)


def test_a_reload_after_the_start_keeps_what_was_recorded(site: Site) -> None:
    site.start()
    before = recorded(site)
    site.systemctl("reload")
    site.systemctl("stop")
    assert recorded(site) == before


def test_a_unit_without_a_start(site: Site) -> None:
    done = site.machine.run(["gpu-lifecycle", "timeline", "sglang-other"], check=False)
    assert done.returncode == 2
    assert "no start of sglang-other.service is in its history yet" in done.stderr
