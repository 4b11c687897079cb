"""The engine's own lines in the journal: they come through the daemon and look as if they had come by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.systemd.site import UNIT, Site

pytestmark = pytest.mark.machine


def engine_lines(site: Site) -> list[dict[str, Any]]:
    lines = site.machine.journal(UNIT, "-b", *site.since)
    return [line for line in lines if line.get("GPU_LIFECYCLE_PHASE") and not line.get("GPU_LIFECYCLE_EVENT")]


def test_they_bear_the_units_name_and_the_runs(site: Site) -> None:
    site.start()
    run = site.show("InvocationID")
    site.stop()
    lines = engine_lines(site)
    begun = [line for line in lines if "Load weight begin" in str(line["MESSAGE"])]
    assert len(begun) == 8
    for line in lines:
        assert (line["SYSLOG_IDENTIFIER"], line["GPU_LIFECYCLE_UNIT"]) == ("sglang-kimi", UNIT)
        assert (line["GPU_LIFECYCLE_RUN"], line["_SYSTEMD_UNIT"]) == (run, UNIT)
    assert {line["GPU_LIFECYCLE_PHASE"] for line in begun} == {"loading"}
    bars = [line for line in lines if "loading shards" in str(line["MESSAGE"])]
    assert bars
    assert all("\r" not in str(line["MESSAGE"]) for line in bars)


def test_the_reason_is_the_engines_own_first_words(site: Site) -> None:
    code = "import sys,time; print('ValueError: no such model', file=sys.stderr); print('Received sigquit'); sys.exit(9)"
    text = site.machine.read("/etc/gpu-lifecycle/sglang-kimi.toml")
    command = next(line for line in text.splitlines() if line.startswith("command"))
    changed = text.replace(command, f'command = ["/usr/bin/python3", "-c", "{code}"]')
    site.machine.write("/etc/gpu-lifecycle/sglang-kimi.toml", changed)
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("engine-failed")), 20, "the engine to fail")
    assert 'it said: "ValueError: no such model"' in site.messages("engine-failed")


def test_no_line_is_lost_in_a_reload(site: Site) -> None:
    """An engine that counts, while the daemon is replaced again and again."""
    site.configure("--load-seconds", "12")
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("engine-started")), 20, "the engine to be started")
    for number in range(3):
        site.machine.run(["systemctl", "kill", "--kill-whom=main", "-s", "HUP", UNIT])
        site.machine.wait(lambda: len(site.events("reloaded")) > number, 20, "the reload")  # noqa: B023
    site.wait_state("active", timeout=60)
    said = "\n".join(str(line["MESSAGE"]) for line in engine_lines(site))
    for rank in range(8):
        mine = [line for line in said.splitlines() if f" TP{rank}]" in line]
        for marker in (
            "Init parallel begin",
            "Load weight begin",
            "Load weight end",
            "KV Cache is",
            "Memory pool end",
            "graph end",
        ):
            assert sum(marker in line for line in mine) == 1, (rank, marker)
    assert not site.events("output-lost")


def test_status_passes_through_the_steps_of_the_load(site: Site) -> None:
    site.configure("--load-seconds", "10")
    site.start(wait=False)
    for words in ("loading weights", "capturing CUDA graphs"):
        site.machine.wait(lambda: site.show("StatusText").startswith(words), 30, words)  # noqa: B023
    site.wait_state("active", timeout=40)
    assert "loading weights" in site.show("StatusText")


def test_an_engine_that_says_it_serves_before_it_listens_is_ready_once_it_does(site: Site) -> None:
    """The look at that line comes too early; the next one is not half a second later."""
    took = []
    for _ in range(3):
        site.configure("--skip-server-warmup", "--log-level-http", "info", "--misbehave", "listens-late=0.1")
        site.start()
        (bound,) = [line for line in engine_lines(site) if "Uvicorn running on" in str(line["MESSAGE"])]
        ready = int(site.show("ActiveEnterTimestampMonotonic"))
        took.append((ready - int(bound["__MONOTONIC_TIMESTAMP"])) / 1e6)
        site.stop()
        site.begin()
    assert min(took) < 0.35, took
