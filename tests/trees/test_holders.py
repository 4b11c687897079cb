"""Who holds a device, found by its number: in real processes, in every way that a holder can hide; and in generated trees."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.facts import Node, Process
from gpu_lifecycle.system.devices import Devices, find_devices, parse_majors
from gpu_lifecycle.system.holders import Scanner
from gpu_lifecycle.system.patience import Patience
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.worker import Worker

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
TTY40 = os.makedev(4, 40)  # nobody has it open
ZERO = os.makedev(1, 5)  # can be mapped
OPEN = "import os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)\n"
READY = "print('ready', flush=True); sys.stdin.read()\n"
MAPPED = OPEN + "import mmap; held = mmap.mmap(fd, 4096, mmap.MAP_PRIVATE); os.closerange(3, 64)\n" + READY  # it keeps a copy
# The first thread ends by itself, exit(2) of the one thread: the process is a zombie to look at while another thread runs.
LEADERLESS = (
    OPEN
    + """
import ctypes, threading
def rest():
    while open(f"/proc/self/task/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    os.write(1, b"ready\\n")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=rest).start()
ctypes.CDLL(None).syscall(EXIT, 0)
""".replace("EXIT", {"x86_64": "60", "aarch64": "93"}[os.uname().machine])
)

# A thread takes a descriptor table of its own, unshare(2) with CLONE_FILES, and opens the node in it: its process has none.
OWN_TABLE = """
import ctypes, os, sys, threading
def alone():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
    os.write(1, b"ready\\n")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=alone).start()
"""
# The node is registered with a ring, io_uring_register(2) with IORING_REGISTER_FILES, and its descriptor closed.
RING = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))
if ring < 0:
    os.write(1, b"no rings here\\n")
    os._exit(0)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
assert libc.syscall(427, ring, 2, ctypes.byref(ctypes.c_int(fd)), 1) == 0
os.close(fd)
os.write(1, b"ready\\n")
os.read(0, 1)
"""


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs ``code`` and has said that it is ready."""
    words, pipe = [sys.executable, "-c", code, *arguments], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def node(tmp_path: Path) -> Callable[[str, int], str]:
    def make(name: str, rdev: int) -> str:
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o600, rdev)
        return str(tmp_path / name)

    return make


def scanner(rdev: int, minor: int | None = 0) -> Scanner:
    return Scanner(Proc(), Devices((Node("/dev/nvidia0", rdev, minor),), frozenset({os.major(rdev)})))


def found(rdev: int, pid: int) -> Process | None:
    return next((process for process in scanner(rdev).scan().holders if process.pid == pid), None)


@needs_root
@pytest.mark.parametrize(
    ("code", "rdev", "how"),
    [
        (OPEN + READY, TTY40, ("fd",)),
        (MAPPED, ZERO, ("map",)),
        (MAPPED.replace("os.closerange(3, 64)", ""), ZERO, ("fd", "map")),
    ],
)
@pytest.mark.parametrize("unlinked", [False, True])
def test_a_holder_is_found(node: Callable[[str, int], str], code: str, rdev: int, how: tuple[str, ...], unlinked: bool) -> None:
    path = node("nvidia0", rdev)
    with child(code, path) as process:
        if unlinked:
            os.unlink(path)
        seen = found(rdev, process.pid)
        assert seen
        assert (seen.devices, seen.how, seen.ppid, seen.state) == (frozenset({rdev}), how, os.getpid(), "S")
    assert found(rdev, process.pid) is None


@needs_root
def test_who_holds_another_number_of_that_major_is_told_apart(node: Callable[[str, int], str]) -> None:
    other = os.makedev(4, 41)
    with child(OPEN + READY, node("nvidia1", other)) as process:
        seen = found(TTY40, process.pid)
        assert seen
        assert seen.devices == {other}
        assert scanner(TTY40).devices.minor_of(other) is None
        assert found(ZERO, process.pid) is None


@needs_root
def test_a_second_node_of_the_same_number_holds_as_well(node: Callable[[str, int], str]) -> None:
    node("nvidia0", TTY40)
    with child(OPEN + READY, node("elsewhere", TTY40)) as process:
        assert found(TTY40, process.pid)


@needs_root
def test_a_process_whose_first_thread_has_ended(node: Callable[[str, int], str]) -> None:
    with child(LEADERLESS, node("nvidia0", TTY40)) as process:
        stat_ = Proc().stat(process.pid)
        assert stat_
        assert (stat_.zombie, stat_.threads) == (True, 2)
        seen = found(TTY40, process.pid)
        assert seen
        assert (seen.state, seen.how) == ("Z", ("fd",))
        assert Proc().is_alive(seen.identity)


@needs_root
@pytest.mark.parametrize("code", [OWN_TABLE, RING], ids=["thread with a table of its own", "file of a ring"])
def test_a_holder_whose_process_shows_no_such_descriptor(node: Callable[[str, int], str], code: str) -> None:
    path = node("nvidia0", TTY40)
    with child(code, path) as process:
        names = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
        assert path not in names
        seen = found(TTY40, process.pid)
        assert seen
        assert (seen.devices, seen.how) == (frozenset({TTY40}), ("fd",))


@needs_root
def test_members_of_a_cgroup_are_listed_whether_they_hold_or_not() -> None:
    with child("import sys\n" + READY) as process:
        own = Proc().cgroup(process.pid)
        members = {member.pid for member in scanner(TTY40).scan(own).members}
        assert process.pid in members
        assert scanner(TTY40).scan("").members == ()
        assert scanner(TTY40).scan(own.rstrip("/") + "/no-such").members == ()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Proc().stat(process.pid), "a zombie is there"
        assert process.pid not in {seen.pid for seen in scanner(TTY40).scan(own).members}


# Generated trees: /proc/PID/fd/N links to a node, as the kernel's do.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def process(root: Path, pid: int, *, state: str = "S", flags: int = 0, threads: int = 1, comm: str = "x") -> Path:
    folder = root / str(pid)
    (folder / "fd").mkdir(parents=True)
    zeros = " 0" * 10
    (folder / "stat").write_text(f"{pid} ({comm}) {state} 1 1 1 0 -1 {flags}{zeros} {threads} 0 5{zeros}\n")
    return folder


NULL = Devices((Node("/dev/nvidia0", os.makedev(1, 3), 0), Node("/dev/nvidia-uvm", os.makedev(1, 7), None)), frozenset({1}))


def test_a_tree(tree: Path) -> None:
    holder = process(tree, 10, comm=") evil\n(")
    (holder / "fd/3").symlink_to("/dev/null")
    (holder / "fd/4").symlink_to("/dev/full")
    (holder / "fd/5").symlink_to("socket:[1]")
    (holder / "environ").write_text("")
    leaderless = process(tree, 11, state="Z", threads=2)
    (leaderless / "task/11/fd").mkdir(parents=True)
    (leaderless / "task/12/fd").mkdir(parents=True)
    (leaderless / "task/12/fd/3").symlink_to("/dev/null")
    mapper = process(tree, 12)
    (mapper / "map_files").mkdir()
    (mapper / "map_files/1000-2000").symlink_to("/dev/full")
    (mapper / "maps").write_text("00001000-00002000 rw-s 00000000 00:05 7    /dev/nvidia-uvm (deleted)\n7-8 r--p 0 0:0 0\n")
    fallback = process(tree, 13)  # without the right to read map_files, by the path
    (fallback / "maps").write_text("1000-2000 rw-s 00000000 00:05 7    /dev/null\n")
    process(tree, 14)
    (process(tree, 15, flags=0x200000) / "fd/3").symlink_to("/dev/null")  # a kernel thread
    (process(tree, 16) / "fd/3").symlink_to("/etc/passwd")
    (tree / "17").mkdir()  # vanished
    for pid in (10, 14):
        (tree / str(pid) / "cgroup").write_text("0::/a/b\n")
    seen = Scanner(Proc(str(tree)), NULL).scan("/a")
    null, full = os.makedev(1, 3), os.makedev(1, 7)
    assert {process.pid: (set(process.devices), process.how) for process in seen.holders} == {
        10: ({null, full}, ("fd",)), 11: ({null}, ("fd",)), 12: ({full}, ("map",)), 13: ({null}, ("map",)),
    }  # fmt: skip
    assert sorted(process.pid for process in seen.members) == [10, 14]
    assert (seen.sight.full, seen.processes) == (True, 8)
    assert Scanner(Proc(str(tree)), NULL).scan("/a/bb").members == ()


@pytest.mark.parametrize(("where", "found"), [("maps", False), ("cgroup", False), (None, True)])
def test_a_process_that_ends_while_it_is_looked_at(tree: Path, where: str | None, found: bool) -> None:
    """A pipe in place of a file holds the reader up just there, while the process ends."""
    folder = process(tree, 10)
    (folder / "fd/3").symlink_to("/dev/null")
    ending = threading.Thread(target=_end_at, args=(folder, where))
    if where:
        os.mkfifo(folder / where)
        ending.start()
    seen = Scanner(Proc(str(tree)), NULL).scan("/a")
    if where:
        ending.join(10)
    assert (bool(seen.holders), seen.members, seen.sight.full) == (found, (), True)


def _end_at(folder: Path, where: str) -> None:
    with (folder / where).open("w"):  # comes back once the reader is there
        shutil.rmtree(folder)


@contextmanager
def pipes(*paths: Path) -> Iterator[None]:
    """In place of files that block whoever reads them. Who waits there in the end is let go."""
    for path in paths:
        os.mkfifo(path)
    try:
        yield
    finally:
        for path in paths:
            with contextlib.suppress(OSError):  # nobody waits there
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("split", [100, 2])
def test_processes_that_block_whoever_looks_at_their_memory(tree: Path, split: int) -> None:
    """What their descriptors show counts; they are named; nobody is waited for twice; the others are seen whole."""
    for pid in range(10, 16):
        (process(tree, pid, comm="stuck") / "fd/3").symlink_to("/dev/null")
    proc = Proc(str(tree))
    proc.patience = Patience(0.1)
    scanner = Scanner(proc, NULL, split=split)
    scanner.patience = Patience(0.1)
    with pipes(tree / "11/maps", tree / "12/environ", tree / "12/cmdline", tree / "15/maps"):
        seen = scanner.scan()
        assert {process.pid: process.how for process in seen.holders} == dict.fromkeys(range(10, 16), ("fd",))
        assert [identity.pid for identity in seen.blocked] == [11, 15]
        assert {process.command for process in seen.holders} == {"[stuck]"}
        assert [process.pid for process in seen.holders if process.blocks] == [12]
        assert seen.sight.full, "who blocks is told apart from who cannot be read"
        began = time.monotonic()
        assert scanner.held(11) == (frozenset({os.makedev(1, 3)}), ("fd",))
        assert [identity.pid for identity in scanner.scan().blocked] == [11, 15]
        assert time.monotonic() - began < 0.1 or split == 2
    assert wait_until(lambda: not any(left.blocked(pid) for left in (proc.patience, scanner.patience) for pid in (11, 12, 15)))
    (tree / "11/maps").unlink()
    assert scanner.held(11)[1] == ("fd",)


def wait_until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def test_patience() -> None:
    gate = threading.Event()
    patience = Patience(0.05)

    def look(pid: int) -> int:
        if pid == 2:
            gate.wait(30)
        return 6 // pid

    assert patience.each([1, 2, 3], look) == {1: 6, 3: 2}
    assert patience.blocked(2)
    with pytest.raises(TimeoutError, match="process 2 blocks"):
        patience.one(2, look)
    with pytest.raises(ZeroDivisionError):
        patience.each([1, 0], look)
    gate.set()
    assert wait_until(lambda: not patience.blocked(2))
    assert patience.one(2, look) == 3


def test_a_process_that_cannot_be_read_limits_the_sight() -> None:
    """As another user, which root becomes for this: what is refused is counted, not taken for empty."""
    code = (
        "import os, sys\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "from gpu_lifecycle.system.devices import Devices\n"
        "from gpu_lifecycle.system.holders import Scanner\n"
        "from gpu_lifecycle.system.procfs import Proc\n"
        "print(Scanner(Proc(), Devices((), frozenset())).scan().sight.limits)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "processes cannot be read (pid 1, " in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("text", "majors"),
    [
        ("", set()),
        ("Character devices:\n  1 mem\n195 nvidia-frontend\n235 nvidia-uvm\n\nBlock devices:\n259 nvidia\n", {195, 235}),
        ("Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-caps\n  8 xnvidia\nnvidia 7\n", {195, 511}),
    ],
)
def test_majors(text: str, majors: set[int]) -> None:
    assert parse_majors(text) == majors
    assert parse_majors(text, "nvidia-uvm") == majors & {235}


@needs_root
def test_devices(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    names = ("195 nvidia", "235 nvidia-uvm", "240 nvidia-caps", "241 nvidia-caps-imex-channels")
    (tmp_path / "proc/devices").write_text("Character devices:\n" + "\n".join(names) + "\n")
    for folder in ("nvidia-caps", "nvidia-caps-imex-channels"):
        (tmp_path / "dev" / folder).mkdir()
    nodes = {"nvidia0": (195, 0), "nvidia12": (195, 12), "nvidiactl": (195, 255), "nvidia-uvm": (235, 0), "nvidia1": (77, 1)}
    nodes |= {"nvidia-caps/nvidia-cap2": (240, 2), "nvidia-caps-imex-channels/channel0": (241, 0), "channel1": (241, 1)}
    for name, (major, minor) in {**nodes, "nvidia-x": (195, 9), "null": (1, 3)}.items():
        os.mknod(tmp_path / "dev" / name, stat.S_IFCHR, os.makedev(major, minor))
    (tmp_path / "dev/nvidia2").write_text("a file")
    (tmp_path / "dev/nvidia3").symlink_to("nowhere")
    dev = str(tmp_path / "dev")
    devices = find_devices(dev, str(tmp_path / "proc"))
    assert {(node.path.removeprefix(dev + "/"), node.minor) for node in devices.nodes} == {
        ("nvidia0", 0), ("nvidia12", 12), ("nvidiactl", None), ("nvidia-uvm", None), ("nvidia-caps/nvidia-cap2", None),
        ("nvidia-caps-imex-channels/channel0", None),
    }  # fmt: skip
    assert devices.wrong == (f"{dev}/nvidia1", f"{dev}/nvidia2")
    assert devices.majors == {195, 235, 240, 241}
    rdevs = [(195, 12), (195, 255), (195, 200), (195, 250), (235, 0), (235, 1), (240, 2)]
    assert [devices.minor_of(os.makedev(*rdev)) for rdev in rdevs] == [12, None, 200, None, None, None, None]
    uvm = [False, False, False, False, True, False, False]
    assert [devices.is_uvm(os.makedev(*rdev)) for rdev in rdevs] == uvm
    os.unlink(f"{dev}/nvidia-uvm")
    unnamed = find_devices(dev, str(tmp_path / "proc"))
    assert [unnamed.is_uvm(os.makedev(*rdev)) for rdev in rdevs] == uvm, "it has no name in a container that hides it"
    assert find_devices(dev, str(tmp_path / "nowhere")).majors == {195}
    assert find_devices(str(tmp_path / "nowhere")).nodes == ()


# Two processes that scan

TWO_CORES = len(os.sched_getaffinity(0)) > 1


class Mute(Worker):
    """A worker that never starts: as where no process or descriptor is left."""

    def start(self, work: Callable[[], Any]) -> None:
        """Nothing."""


@needs_root
@pytest.mark.parametrize("worker", [Worker, Mute])
def test_two_processes_find_what_one_finds(node: Callable[[str, int], str], worker: type[Worker]) -> None:
    """A worker that gives no answer hides nobody: its half is looked through here then."""
    path = node("nvidia0", TTY40)
    with child(OPEN + READY, path) as one, child(OPEN + READY, path) as two, child(OWN_TABLE, path) as three:
        devices = Devices((Node("/dev/nvidia0", TTY40, 0),), frozenset({4}))
        pair = Scanner(Proc(), devices, split=2, worker=worker)
        seen = {process.pid for process in pair.scan().holders if process.ppid == os.getpid()}
        assert seen == {one.pid, two.pid, three.pid}
        assert pair.helped is (worker is Worker and TWO_CORES)


@pytest.mark.parametrize(
    ("work", "answer"),
    [
        (lambda: ({1: (frozenset({2}), ("fd",))}, [3]), ({1: (frozenset({2}), ("fd",))}, [3])),
        (lambda: "x" * 1_000_000, "x" * 1_000_000),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), None),
        (lambda: 1 // 0, None),
        (object, None),
    ],
    ids=["answers", "answers at length", "dies", "raises", "cannot say it"],
)
def test_a_worker_gives_a_whole_answer_or_none(work: Callable[[], object], answer: object) -> None:
    before = os.listdir("/proc/self/fd")
    with closing(Worker()) as worker:
        worker.start(work)
        assert worker.answer(30) == answer
    assert os.listdir("/proc/self/fd") == before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_worker_that_is_not_waited_for_is_ended() -> None:
    began = time.monotonic()
    with closing(Worker()) as worker:
        worker.start(lambda: time.sleep(60))
    assert time.monotonic() - began < 30


def test_what_cannot_be_read_limits_the_sight_of_two(tree: Path) -> None:
    for pid in (10, 11, 12, 13):
        folder = process(tree, pid)
        (folder / "fd").rmdir()
        (folder / "fd").symlink_to("fd")  # a ring of links: neither gone nor readable
    limits = Scanner(Proc(str(tree)), NULL, split=2).scan().sight.limits
    assert "4 of 4 processes cannot be read" in limits[0]
