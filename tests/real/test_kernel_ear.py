"""The kernel log as the daemon reads it: from its run on, for its GPUs, and with the loss of it said once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from gpu_lifecycle.facts import Gpu, Layout
from gpu_lifecycle.jobs.kernel import KernelEar, KernelNews
from gpu_lifecycle.rules.xid import KernelSays
from gpu_lifecycle.rules.xid_codes import Act
from gpu_lifecycle.system.journal import Journal

GPUS = tuple(Gpu(f"GPU-{index}", index, index, f"00000000:{index + 1:02X}:00.0", "H200", 1, 0, ()) for index in range(2))


def record(sequence: int, text: str) -> str:
    return f"4,{sequence},{sequence}000,-;{text}\n"


def xid(sequence: int, code: int, pid: int = 42, bus: int = 1) -> str:
    return record(sequence, f"NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={pid}, name=python3, text")


class Log:
    """A file that stands in for /dev/kmsg, below a root of its own."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(str(root))
        self.path = Path(self.layout.kernel_log)
        self.path.parent.mkdir()
        self.path.touch()

    def write(self, *lines: str) -> None:
        with self.path.open("a") as file:
            file.write("".join(lines))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.fixture
def ear(log: Log) -> Iterator[KernelEar]:
    log.write(xid(1, 79))  # older than the run
    found = KernelEar(log.layout, Journal("test.service", terminal=True))
    found.begin(GPUS, "")
    found.know([42])
    yield found
    found.close()


def hear(ear: KernelEar, living: Callable[[], Iterable[int]]) -> list[KernelSays]:
    ear.listen(living)
    return ear.judge({})


def living(*pids: int) -> list[int]:
    return list(pids)


def test_only_what_is_new_and_ours(log: Log, ear: KernelEar) -> None:
    assert hear(ear, living) == []
    log.write(xid(2, 79, bus=7), record(3, "usb 1-1: new device"), xid(4, 31), xid(5, 31), xid(6, 79, bus=2))
    said = hear(ear, living)
    assert [says.act for says in said] == [Act.RESTART, Act.RESTART, Act.REFUSE]
    assert [says.events[0].fields["GPU_LIFECYCLE_GPU"] for says in said] == ["GPU-0", "GPU-0", "GPU-1"]
    assert hear(ear, living) == []


def test_a_record_is_judged_once(log: Log, ear: KernelEar) -> None:
    log.write(xid(4, 31))
    assert len(hear(ear, living)) == 1
    log.write(xid(4, 31), xid(3, 31))
    assert hear(ear, living) == []


@pytest.mark.parametrize(
    ("comparable", "pid", "alive", "act"),
    [
        (True, 42, (), Act.RESTART),
        (True, 43, (43,), Act.RESTART),
        (True, 44, (43,), Act.LOG),
        (False, 44, (43,), Act.RESTART),
    ],
)
def test_whose_pid(log: Log, ear: KernelEar, comparable: bool, pid: int, alive: tuple[int, ...], act: Act) -> None:
    """A pid that is not known yet is looked up among the living; one of a dead worker was known before."""
    ear.comparable = comparable
    log.write(xid(4, 31, pid))
    assert [says.act for says in hear(ear, lambda: alive)] == [act]


def test_the_living_are_asked_once_for_many_lines(log: Log, ear: KernelEar) -> None:
    asked = []

    def ask() -> list[int]:
        asked.append(1)
        return [43]

    ear.comparable = True
    log.write(*(xid(4 + place, 31, pid=50 + place) for place in range(100)), xid(900, 31, pid=43), xid(901, 31, pid=42))
    assert [says.act for says in hear(ear, ask)].count(Act.RESTART) == 2
    assert len(asked) == 1


def test_without_a_log_it_is_deaf_and_says_so_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ear = KernelEar(Layout(str(tmp_path)), Journal("test.service", terminal=True))
    ear.begin(GPUS, "")
    assert hear(ear, living) == hear(ear, living) == []
    ear.close()
    said = capfd.readouterr().err
    assert said.count("no kernel log: cannot open") == 1
    assert "Xid errors are not noticed" in said


def test_why_the_hook_had_none_comes_first(log: Log, capfd: pytest.CaptureFixture[str]) -> None:
    """Root's own refusal is the reason; what the sandbox of the daemon says is not."""
    ear = KernelEar(log.layout, Journal("test.service", terminal=True))
    ear.begin(GPUS, "no kernel log: cannot open /dev/kmsg: Operation not permitted")
    assert ear.log is None
    assert "Operation not permitted" in capfd.readouterr().err


def test_a_log_that_breaks_is_given_up(ear: KernelEar, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ear.log
    fd = ear.log.fd
    os.dup2(folder := os.open(tmp_path, os.O_RDONLY), fd, inheritable=False)
    os.close(folder)
    assert hear(ear, living) == hear(ear, living) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert capfd.readouterr().err.count("can no longer be read: Is a directory") == 1


@pytest.mark.parametrize(
    ("lines", "actions", "asked", "acts"),
    [
        ([xid(2, 48)], {}, 1, [Act.REFUSE]),
        ([xid(2, 48)], {"GPU-0": 0}, 1, [Act.RESTART]),
        ([xid(2, 48)], {"GPU-1": 0}, 1, [Act.REFUSE]),
        ([xid(2, 31), xid(3, 31)], {"GPU-0": 2}, 1, [Act.REFUSE, Act.REFUSE]),
        ([xid(2, 79)], {"GPU-0": 0}, 0, [Act.REFUSE]),  # lost: what it answers is not believed
        ([xid(2, 48, bus=7)], {"GPU-0": 0}, 0, []),
        ([record(2, "usb 1-1: new device")], {}, 0, []),
    ],
)
def test_the_driver_is_asked_what_follows_from_a_line(
    log: Log, ear: KernelEar, lines: list[str], actions: dict[str, int], asked: int, acts: list[Act]
) -> None:
    questions: list[int] = []
    told: list[KernelSays] = []

    async def ask() -> Mapping[str, int]:
        questions.append(1)
        return actions

    log.write(*lines)
    asyncio.run(KernelNews(ear, ask, living, told.append).hear())
    assert (len(questions), [says.act for says in told]) == (asked, acts)


def test_what_is_heard_is_told_in_order_and_in_any_case(log: Log, ear: KernelEar) -> None:
    """The engine's end is heard of while an answer is waited for; then the daemon is told to stop waiting."""
    told: list[KernelSays] = []

    async def never() -> Mapping[str, int]:
        await asyncio.Event().wait()
        return {}

    async def run() -> None:
        news = KernelNews(ear, never, living, told.append)
        log.write(xid(2, 48))
        first = asyncio.create_task(news.hear())
        await asyncio.sleep(0.05)
        log.write(xid(3, 31))
        second = asyncio.create_task(news.hear())
        await asyncio.sleep(0.05)
        assert told == []
        first.cancel()
        await asyncio.wait({first})
        assert [says.act for says in told] == [Act.REFUSE]
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.wait({second})

    asyncio.run(run())
    assert [says.act for says in told] == [Act.REFUSE, Act.RESTART]
