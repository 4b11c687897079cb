"""The stand-in holder is as awkward as it is told to be."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.standins.build import build

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("built")).holder


@pytest.fixture
def start(program: Path, tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []
    pidfile = tmp_path / "pid"

    def launch(*options: str) -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen([str(program), *options, "--pidfile", str(pidfile)]))
        wait_for(pidfile.exists)
        return running[-1]

    yield launch
    for process in running:
        with process:
            process.kill()


def wait_for(condition: Callable[[], object], timeout: float = 10) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and state(pid) != "Z"


def test_it_ends_cleanly_when_asked(start: Start) -> None:
    process = start()
    process.terminate()
    assert process.wait(5) == 0


def test_it_can_refuse_to_end(start: Start) -> None:
    process = start("--ignore-term")
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)


def test_it_can_take_its_time_to_end(start: Start) -> None:
    process = start("--term-delay", "300")
    begin = time.monotonic()
    process.terminate()
    assert process.wait(5) == 0
    assert time.monotonic() - begin >= 0.29


def test_it_notes_each_signal_and_its_sender(start: Start, tmp_path: Path) -> None:
    process = start("--signals", str(tmp_path / "signals"))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
        process.send_signal(number)
    assert process.wait(5) == 0
    lines = (tmp_path / "signals").read_text().splitlines()
    assert sorted(lines) == sorted(f"{number} {os.getpid()}" for number in (1, 2, 10, 15))


def test_it_holds_a_mapping_without_a_descriptor(start: Start) -> None:
    process = start("--map", "/dev/zero")
    assert "/dev/zero" in Path(f"/proc/{process.pid}/maps").read_text()
    links = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    assert "/dev/zero" not in links


def test_it_becomes_a_daemon(start: Start, tmp_path: Path) -> None:
    assert start("--daemonize").wait(5) == 0
    pid = int((tmp_path / "pid").read_text())
    try:
        assert os.getsid(pid) not in (os.getsid(0), pid)
        assert os.getpgid(pid) != os.getpgid(0)
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not exists(pid))


def test_it_takes_another_title(start: Start) -> None:
    process = start("--title", "sglang::sched")
    assert Path(f"/proc/{process.pid}/comm").read_text() == "sglang::sched\n"
    assert Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0") == b"sglang::sched"


def test_its_leader_exits_and_a_thread_stays(start: Start) -> None:
    process = start("--leader-exits")
    wait_for(lambda: state(process.pid) == "Z")
    time.sleep(0.1)
    assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 2
    process.terminate()
    assert process.wait(5) == 0


def test_its_storm_replaces_what_is_killed(start: Start) -> None:
    process = start("--fork-storm")
    wait_for(lambda: len(children(process.pid)) == 24)
    first = children(process.pid)
    for child in first:
        os.kill(child, signal.SIGKILL)
    wait_for(lambda: len(children(process.pid) - first) == 24)
    second = children(process.pid)
    process.kill()
    process.wait(5)
    assert all(exists(child) for child in second)
    for child in second:
        os.kill(child, signal.SIGKILL)
    wait_for(lambda: not any(exists(child) for child in second))


def test_it_answers_http(start: Start) -> None:
    start("--listen", "38123")
    with urllib.request.urlopen("http://127.0.0.1:38123/health", timeout=5) as answer:
        assert (answer.status, answer.read()) == (200, b"ok\n")


def test_it_ends_by_itself_and_uses_no_time(start: Start) -> None:
    begin = time.monotonic()
    process = start("--seconds", "0.4")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    assert status == 0
    assert time.monotonic() - begin >= 0.39
    assert usage.ru_utime + usage.ru_stime < 0.05
