"""``systemctl reload``: another config, other code, the same process, and an engine that notices nothing of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest

from tests.systemd.site import CONFIG, UNIT, Site

pytestmark = pytest.mark.machine
RELOADS = int(os.environ.get("RELOADS", "15"))  # more of them in a row, for the long run

CODE = "/opt/gpu-lifecycle/src/gpu_lifecycle/rules/handover.py"


def reload(site: Site) -> int:
    return int(site.machine.run(["systemctl", "reload", UNIT], check=False, timeout=90).returncode)


def pids(site: Site) -> tuple[str, int, list[int]]:
    return site.show("MainPID"), site.engine_main(), sorted(site.workers().values())


def rewrite(site: Site, old: str, new: str) -> None:
    text = site.machine.read(CONFIG)
    assert old in text
    site.machine.write(CONFIG, text.replace(old, new))


def test_a_reload_changes_what_can_change_and_names_the_rest(site: Site) -> None:
    site.start()
    before, run, since = pids(site), site.show("InvocationID"), site.show("ActiveEnterTimestampMonotonic")
    rewrite(site, 'interval = "500ms"', 'interval = "400ms"')
    rewrite(site, "--load-seconds", "--load-secondz")
    assert reload(site) == 0
    assert (pids(site), site.show("InvocationID")) == (before, run)
    assert (site.state(), site.show("ActiveEnterTimestampMonotonic")) == ("active", since)
    assert "at once: watch.interval; only with the next start: server.command" in site.messages("reloaded")
    assert "load-secondz" not in site.messages("reloaded"), "a command may hold a key"
    fed = int(site.show("WatchdogTimestampMonotonic"))
    site.machine.wait(lambda: int(site.show("WatchdogTimestampMonotonic")) > fed, 10, "the watchdog to be fed on")
    assert "ready" in site.show("StatusText")
    site.stop()
    assert (site.state(), site.show("Result")) == ("inactive", "success")


def test_a_second_reload_still_knows_what_the_engine_was_started_with(site: Site) -> None:
    site.start()
    rewrite(site, "--load-seconds", "--load-secondz")
    assert reload(site) == 0
    assert reload(site) == 0
    assert site.messages("reloaded").count("only with the next start: server.command") == 2
    rewrite(site, "--load-secondz", "--load-seconds")
    assert reload(site) == 0
    assert "the config is the same" in site.messages("reloaded")


def test_a_wrong_config_is_refused_and_all_goes_on(site: Site) -> None:
    site.start()
    before = pids(site)
    rewrite(site, "interval", "intervall")
    assert reload(site) != 0
    message = site.messages("reload-refused")
    assert "not reloaded, all stays as it was" in message
    assert "watch.intervall" in message
    assert (pids(site), site.state()) == (before, "active")
    rewrite(site, "intervall", "interval")
    assert reload(site) == 0
    site.kill(site.workers()[2])
    site.machine.wait(lambda: bool(site.events("engine-failed")), 10, "a lost worker to be noticed after a reload")


@pytest.fixture
def broken(site: Site) -> Iterator[Callable[[], None]]:
    """Breaks the installed code, until the test is over."""
    whole = site.machine.read(CODE)
    folder = CODE.rpartition("/")[0]

    def install() -> None:
        site.machine.run(["sh", "-c", f"mkdir -p /run/pyc && mv {folder}/__pycache__/handover.*.pyc /run/pyc/"])
        site.machine.write(CODE, whole + "\nthis is no code\n")

    yield install
    site.machine.write(CODE, whole)
    site.machine.run(["sh", "-c", f"mv /run/pyc/* {folder}/__pycache__/"])


def test_code_that_does_not_pass_its_test_is_not_taken(site: Site, broken: Callable[[], None]) -> None:
    site.start()
    before = pids(site)
    broken()
    assert reload(site) != 0
    assert "the installed code does not pass its test" in site.messages("reload-refused")
    assert "SyntaxError" in site.messages("reload-refused")
    assert (pids(site), site.state()) == (before, "active")
    fed = int(site.show("WatchdogTimestampMonotonic"))
    site.machine.wait(lambda: int(site.show("WatchdogTimestampMonotonic")) > fed, 10, "the old code to go on")


def test_while_it_loads(site: Site) -> None:
    site.configure("--load-seconds", "6")
    site.start(wait=False)
    site.machine.wait(lambda: len(site.workers()) == 8, 20, "the load to begin")
    site.machine.wait(lambda: bool(site.events("engine-started")), 10, "the engine to be started")
    main = site.show("MainPID")
    site.machine.run(["systemctl", "kill", "--kill-whom=main", "-s", "HUP", UNIT])
    site.wait_state("active", timeout=40)
    assert site.messages("reloaded")
    assert site.show("MainPID") == main
    assert len(site.events("ready")) == 1


def test_a_stop_in_the_middle_of_a_reload(site: Site) -> None:
    for wait in (0, 0.3, 0.6, 0.9, 1.2):
        site.start()
        site.machine.run(["systemctl", "kill", "--kill-whom=main", "-s", "HUP", UNIT])
        site.machine.run(["sleep", str(wait)])
        site.stop()
        assert (site.state(), site.show("Result")) == ("inactive", "success"), wait
        assert site.cli("holders")["holders"] == []


def test_an_engine_that_ends_in_the_middle_of_a_reload(site: Site) -> None:
    for wait in (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0):
        site.begin()
        site.start()
        engine, run = site.engine_main(), site.show("InvocationID")
        site.machine.run(["systemctl", "kill", "--kill-whom=main", "-s", "HUP", UNIT])
        site.machine.run(["sleep", str(wait)])
        site.kill(engine)
        site.machine.wait(lambda: bool(site.events("engine-failed")), 20, "the end to be noticed")
        assert site.events("evidence-kept"), "threads are there again where the new code was not to take over"
        assert not site.events("defect")
        site.machine.wait(lambda: site.show("InvocationID") != run and site.state() == "active", 60, "one restart")  # noqa: B023
        site.stop()


def test_many_reloads_under_a_streaming_client(site: Site) -> None:
    """No stream is dropped, the watchdog is fed on, nothing grows, and the engine keeps its pid."""
    site.start()
    before = pids(site)
    code = (
        "import http.client, json, os, sys\n"
        "count = 0\n"
        "while not os.path.exists(sys.argv[1]):\n"
        "    line = http.client.HTTPConnection('127.0.0.1', 30000, timeout=20)\n"
        "    line.request('POST', '/generate', json.dumps({'input_ids': [1]}), {'Content-Type': 'application/json'})\n"
        "    answer = line.getresponse(); body = answer.read(); line.close()\n"
        "    assert answer.status == 200 and body, (answer.status, body)\n"
        "    count += 1\n"
        "print(count)\n"
    )
    site.machine.write("/run/client.py", code)
    site.machine.run(["sh", "-c", "rm -f /run/enough; python3 -I /run/client.py /run/enough >/run/client.out 2>&1 & echo"])

    def files() -> int:
        """The fewest of some looks: a daemon that asks its engine has more, one that has just begun not yet all."""
        script = f"for i in $(seq 40); do ls /proc/{before[0]}/fd | wc -l; sleep 0.05; done"
        return min(map(int, site.ask("sh", "-c", script).split()))

    few = 0
    for number in range(RELOADS):
        assert reload(site) == 0, number
        if number == 2:
            site.machine.run(["sleep", "1"])
            few = files()
    site.ask("touch", "/run/enough")
    site.machine.wait(lambda: site.ask("cat", "/run/client.out").strip() != "", 40, "the client to end")
    assert site.ask("cat", "/run/client.out").strip().isdecimal(), site.ask("cat", "/run/client.out")
    assert pids(site) == before
    assert site.show("NRestarts") == "0"
    site.machine.wait(lambda: files() <= few, 20, f"no more files than after the first reloads, {few}")
    assert json.loads(site.machine.read("/run/gpu-lifecycle/sglang-kimi/state.json"))["reload"]["number"] >= RELOADS
    assert len(site.events("reloaded")) == RELOADS
    assert int(site.ask("cat", "/run/client.out")) > RELOADS


def test_a_release_that_is_asked_for_in_a_reload_ends_nobody(site: Site) -> None:
    """Its signal ends a program that does not handle it, and one that has just taken the other's place does not yet."""
    site.start()
    before = pids(site)
    storm = f"for i in $(seq 400); do kill -USR1 {site.show('MainPID')} 2>/dev/null; sleep 0.01; done"
    with site.machine.popen(["sh", "-c", storm]) as process:
        for _ in range(3):
            assert reload(site) == 0
        process.communicate(timeout=60)
    assert (pids(site), site.state(), site.show("NRestarts")) == (before, "active", "0")
