"""Commands that tell people, with real programs: each in its time, apart from the engine, and never in the way of an end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs import notices as job
from gpu_lifecycle.jobs.notices import AT_ONCE, WAITING, Notices
from gpu_lifecycle.jobs.outlets import Outlets
from gpu_lifecycle.jobs.state import StateFile, hand_on
from gpu_lifecycle.rules.config import Config, Notify, Server
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.notice import row_of
from gpu_lifecycle.system.engine import Family, reap_adopted
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.procfs import Proc

UNIT = UnitName("kimi")


class Desk:
    """One daemon's notices, with a shell script as the command."""

    def __init__(self, folder: Path, script: str, limit: float = 10.0, events: tuple[str, ...] | None = None) -> None:
        self.folder = folder
        self.state = StateFile(Layout(str(folder)), UNIT, "r1")
        self.journal = Journal(UNIT.service, "r1", terminal=True)
        self.apart: set[int] = set()
        self.config = Notify(("/bin/sh", "-c", script), events, limit)
        self.notices = Notices(self.config, self.state, self.journal, self.apart)

    def tell(self, *words: str, **fields: str) -> None:
        self.notices.take(row_of(Event(word, "so it is", fields), UNIT.service, "r1", time.time()) for word in words)
        self.notices.go_on()

    async def settle(self, seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while self.notices.running:
                await asyncio.wait(self.notices.running)
        assert not self.notices.waiting

    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "heard").read_text().splitlines()]

    def left(self) -> list[str]:
        return [row["GPU_LIFECYCLE_EVENT"] for row in StateFile.load(Layout(str(self.folder)), UNIT).document.get("untold", [])]


HEAR = 'cat >> "{0}/heard"; echo >> "{0}/ran"'


def run(use: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await use()

    asyncio.run(main())


def test_it_gets_the_event_as_json_and_what_it_prints_is_ours(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    desk = Desk(tmp_path, HEAR.format(tmp_path) + '; echo "sent by $GPU_LIFECYCLE_UNIT"; [ -z "$NOTIFY_SOCKET" ]')

    async def use() -> None:
        desk.tell("engine-failed", "ready")
        await desk.settle()

    run(use)
    (heard,) = desk.heard()
    assert (heard["event"], heard["priority"], heard["unit"], heard["message"]) == (
        "engine-failed", "error", "kimi.service", "so it is",
    )  # fmt: skip
    assert capfd.readouterr().out == "sent by kimi.service\n"
    assert desk.notices.counts == {"done": 1, "failed": 0, "dropped": 0}
    assert desk.apart == set()


def test_the_events_that_were_named(tmp_path: Path) -> None:
    desk = Desk(tmp_path, HEAR.format(tmp_path), events=("ready", "notify-failed"))

    async def use() -> None:
        desk.tell("engine-failed", "ready", "notify-failed")
        await desk.settle()

    run(use)
    assert [item["event"] for item in desk.heard()] == ["ready"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("/bin/sh", "-c", "exit 3"), "exited with status 3"),
        (("/bin/sh", "-c", "kill -9 $$"), "was ended by signal 9"),
        (("/bin/sh", "-c", "sleep 60 & sleep 60"), "took longer than 300ms (notify.limit), and was killed"),
        (("/no/such/program",), "exited with status 127: mostly, it is not there"),
        (("/etc/passwd",), "exited with status 126: mostly, it may not be executed"),
    ],
)
def test_a_failure_is_told_once_until_it_works_again(
    tmp_path: Path, command: tuple[str, ...], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, "", limit=0.3)
    desk.notices.config = Notify(command, None, 0.3)

    async def use() -> None:
        for word in ("engine-failed", "suspect", "xid-seen"):
            desk.tell(word)
            await desk.settle()
        desk.notices.config = Notify(("/bin/true",), None, 5)
        desk.tell("gpu-lost")
        await desk.settle()
        desk.notices.config = Notify(command, None, 0.3)
        desk.tell("defect")
        await desk.settle()

    run(use)
    assert capfd.readouterr().err.count(f"people were not told: notify.command {words}") == 2
    assert desk.notices.counts == {"done": 1, "failed": 4, "dropped": 0}


def test_nothing_that_it_has_started_is_left(tmp_path: Path) -> None:
    desk = Desk(tmp_path, f"sleep 300 & echo $! > {tmp_path}/pid")

    async def use() -> None:
        desk.tell("engine-failed")
        await desk.settle()

    run(use)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while (stat := Proc().stat(pid)) and not stat.zombie and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stat is None or stat.zombie
    reap_adopted(set())


def test_so_many_at_once_and_the_worst_of_the_rest(tmp_path: Path) -> None:
    script = f"echo >> {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; cat >> {tmp_path}/heard"
    desk = Desk(tmp_path, script)

    async def use() -> None:
        for number in range(60):
            desk.tell("xid-seen", GPU_LIFECYCLE_GPU=f"GPU-{number}")
        desk.tell("gpu-lost")
        await asyncio.sleep(0.5)
        assert len((tmp_path / "began").read_text()) == AT_ONCE == len(desk.notices.running) == len(desk.apart)
        (tmp_path / "go").touch()
        await desk.settle()

    run(use)
    heard = [item["event"] for item in desk.heard()]
    assert len(heard) == AT_ONCE + WAITING
    assert heard.count("gpu-lost") == 1
    assert desk.notices.counts["dropped"] == 61 - AT_ONCE - WAITING


def test_the_same_event_is_told_once_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "QUIET", 0.4)
    desk = Desk(tmp_path, HEAR.format(tmp_path))

    async def use() -> None:
        for _ in range(5):
            desk.tell("suspect")
        await asyncio.sleep(0.5)
        desk.tell("suspect")
        await desk.settle()

    run(use)
    assert [item["skipped"] for item in desk.heard()] in ([0, 4], [4, 0])


def test_a_rest_ends_it_at_once_and_leaves_it_for_the_next(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "sleep 300")

    async def use() -> None:
        desk.tell("engine-failed", "suspect", "xid-seen", "gpu-lost", "gpu-unfit")
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await desk.notices.rest()
        assert time.monotonic() - began < 1

    run(use)
    assert sorted(desk.left()) == ["engine-failed", "gpu-lost", "gpu-unfit", "suspect", "xid-seen"]
    assert desk.apart == set()


@pytest.mark.parametrize(("limit", "stop_after", "seconds"), [(1.0, 60, (0.9, 3)), (300.0, 0.3, (0.2, 2))])
def test_the_end_waits_a_little_and_not_for_a_stop(
    tmp_path: Path, limit: float, stop_after: float, seconds: tuple[float, float]
) -> None:
    desk = Desk(tmp_path, f"trap '' TERM; touch {tmp_path}/began; sleep 300; sleep 300", limit)

    async def use() -> None:
        desk.tell("engine-failed")
        began = time.monotonic()
        await desk.notices.finish(asyncio.sleep(stop_after))
        assert seconds[0] <= time.monotonic() - began < seconds[1]

    run(use)
    assert (tmp_path / "began").exists()


def test_what_is_told_in_time_is_not_left(tmp_path: Path) -> None:
    desk = Desk(tmp_path, f"sleep 0.3; {HEAR.format(tmp_path)}")

    async def use() -> None:
        desk.tell("engine-failed")
        await desk.notices.finish(asyncio.sleep(300))

    run(use)
    assert [item["event"] for item in desk.heard()] == ["engine-failed"]
    assert desk.left() == []


def test_it_is_no_part_of_the_engine(tmp_path: Path) -> None:
    """Its processes are not counted as the unit's, nor signalled with them; those of the engine are."""
    desk = Desk(tmp_path, "sleep 300 & wait")
    family = Family(Proc(), None)
    family.apart = desk.apart
    desk.notices.apart = family.apart

    async def use() -> None:
        with subprocess.Popen(["sleep", "60"], start_new_session=True) as engine:  # noqa: ASYNC220
            try:
                desk.tell("engine-failed")
                await asyncio.sleep(0.5)
                assert len(family.pids(())) >= 3  # a shell and its child, and the engine
                assert set(family.living(())) == {engine.pid}
                reap_adopted({engine.pid} | family.apart)
                await desk.notices.rest()
            finally:
                engine.kill()

    run(use)


def test_events_before_the_loop_and_those_of_a_hook_are_told(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    hook, said = StateFile(layout, UNIT, "r1"), Journal(UNIT.service, "r1", terminal=True)
    for word in ("holder-conflict", "holder-spared", "run-ended", "start-refused"):
        said.tell(Event(word, "by a hook"))
    hand_on(hook, said)
    hook.write()
    state, journal = StateFile.load(layout, UNIT, "r1"), Journal(UNIT.service, "r1", terminal=True)
    journal.tell(Event("start-doubtful", "before the loop"))
    config = Config(Server(("/bin/x",)), notify=Notify(("/bin/sh", "-c", HEAR.format(tmp_path))))

    async def use() -> None:
        outlets = Outlets(config, UNIT, state, journal, set())
        outlets.begin()
        await asyncio.to_thread(journal.tell, Event("loads-not-kept", "from a thread"))
        for _ in range(500):
            if not outlets.notices or outlets.notices.counts["done"] == 4:
                break
            await asyncio.sleep(0.01)
        await outlets.rest()

    run(use)
    lines = (tmp_path / "heard").read_text().splitlines()
    assert {json.loads(line)["event"] for line in lines} == {
        "holder-conflict", "start-refused", "start-doubtful", "loads-not-kept",
    }  # fmt: skip
    assert "untold" not in state.document


IDLE = """
import asyncio, sys
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.outlets import Outlets
from gpu_lifecycle.jobs.state import StateFile
from gpu_lifecycle.rules.config import Config, Server
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.system.journal import Journal
async def main():
    journal = Journal("x.service", terminal=False)
    outlets = Outlets(Config(Server(("/bin/x",))), UnitName("x"), StateFile(Layout(sys.argv[1]), UnitName("x")), journal, set())
    outlets.begin()
    journal.tell(Event("ready", "x"))
    assert not journal.heard and journal.wake is None
    outlets.see(None, None, None, (), {})
    await outlets.close(None, asyncio.Queue())
asyncio.run(main())
names = ("prometheus_client", "gpu_lifecycle.jobs.metrics", "gpu_lifecycle.jobs.notices", "gpu_lifecycle.system.page_server")
print([name for name in names if name in sys.modules])
"""


def test_what_is_off_is_not_even_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IDLE, str(tmp_path)], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


@pytest.fixture(autouse=True)
def no_journal_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")  # which the command must not get


def test_the_state_file_keeps_so_many_and_drops_junk(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    state = StateFile(layout, UNIT, "r1")
    for number in range(30):
        state.keep_untold([row_of(Event("suspect", str(number)), UNIT.service, "r1", 1.0)])
    state.keep_untold([row_of(Event("engine-failed", "x"), UNIT.service, "r1", 1.0)])
    for reason in ("host-oom", "host-oom", "unknown"):
        state.count_end(reason)
    assert state.write() == ""
    again = StateFile.load(layout, UNIT)
    assert again.document["ends"] == {"host-oom": 2, "unknown": 1}
    rows = again.take_untold()
    assert [row["MESSAGE"] for row in rows] == [*map(str, range(11, 30)), "x"]
    assert again.take_untold() == []
    state.document |= {"untold": [{"MESSAGE": ["x"]}], "ends": {"host-oom": {}}, "holders": "many"}
    state.write()
    assert not {"untold", "ends", "holders"} & StateFile.load(layout, UNIT).document.keys()
