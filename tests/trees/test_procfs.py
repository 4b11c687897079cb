"""What ``/proc`` says, read from generated trees: titles that lie, files that vanish, every cgroup layout."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_lifecycle.facts import Identity
from gpu_lifecycle.system.procfs import Proc, Stat, choose_cgroup, parse_stat, read_bytes

ONE_TREE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
NAMES = st.one_of(
    st.sampled_from([b"", b")", b"(", b" (", b") S 1 (", b"a\nb", b"python3 -m x", b"\xff\xfe", b"0 (x) S 1 1 1 1"]),
    st.binary(max_size=15).map(lambda name: name.replace(b"\0", b"")),
)


def stat_line(
    pid: int = 7, comm: bytes = b"python3", state: str = "S", ppid: int = 1, *, tty: int = 0, flags: int = 0, threads: int = 1,
    start: int = 500,
) -> bytes:  # fmt: skip
    rest = [state, ppid, 7, 7, tty, -1, flags, *[0] * 10, threads, 0, start, *[0] * 30]
    return b"%d (%s) " % (pid, comm) + " ".join(map(str, rest)).encode() + b"\n"


def process(root: Path, pid: int = 7, stat: bytes | None = None, **files: bytes) -> Path:
    """A folder ``/proc/PID`` with those files."""
    folder = root / str(pid)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "stat").write_bytes(stat_line(pid) if stat is None else stat)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Proc:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("boot-1\n")
    return Proc(str(tmp_path))


NUMBERS = st.integers(0, 2**63)


@given(NAMES, st.sampled_from("RSDZTXI"), NUMBERS, st.integers(-1, 2**31), NUMBERS, NUMBERS)
def test_a_name_cannot_move_a_field(comm: bytes, state: str, ppid: int, tty: int, flags: int, start: int) -> None:
    line = stat_line(7, comm, state, ppid, tty=tty, flags=flags, threads=3, start=start)
    assert parse_stat(line) == Stat(7, comm, state, ppid, tty, flags, 3, start, session=7)


@given(st.binary())
def test_anything_else_is_no_stat_line(text: bytes) -> None:
    stat = parse_stat(text)
    assert stat is None or (b" (" in text and b")" in text)


@pytest.mark.parametrize("cut", [0, 1, 5, 12, 30, 53, 54, 55])
def test_a_torn_line_is_no_stat_line(cut: int) -> None:
    assert parse_stat(stat_line()[:cut]) is None


@pytest.mark.parametrize(
    ("line", "thread", "zombie"),
    [
        (stat_line(flags=0x200040), True, False),
        (stat_line(flags=0x400100), False, False),
        (stat_line(state="Z"), False, True),
        (stat_line(state="X"), False, True),
        (stat_line(state="D"), False, False),
    ],
)
def test_kinds_of_process(line: bytes, thread: bool, zombie: bool) -> None:
    stat = parse_stat(line)
    assert stat
    assert (stat.kernel_thread, stat.zombie) == (thread, zombie)


@pytest.mark.parametrize(
    ("line", "identity", "alive"),
    [
        (stat_line(), Identity("boot-1", 7, 500), True),
        (stat_line(), Identity("boot-0", 7, 500), False),
        (stat_line(), Identity("boot-1", 7, 501), False),
        (stat_line(), Identity("boot-1", 8, 500), False),
        (stat_line(state="Z"), Identity("boot-1", 7, 500), False),
        (stat_line(state="Z", threads=2), Identity("boot-1", 7, 500), True),
        (stat_line(state="D"), Identity("boot-1", 7, 500), True),
        (b"", Identity("boot-1", 7, 500), False),
    ],
)
def test_alive_means_that_very_process(tree: Proc, line: bytes, identity: Identity, alive: bool) -> None:
    process(Path(tree.root), stat=line)
    assert tree.is_alive(identity) is alive


V2 = "/system.slice/a.service"


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        (f"0::{V2}", V2),
        (f"12:memory:/other\n1:name=systemd:{V2}\n0::/", V2),
        (f"12:memory:/other\n1:name=systemd:{V2}", V2),
        (f"1:name=systemd:/old\n0::{V2}", V2),
        (f"0::{V2} (deleted)", V2),
        ("0::/a:b:c", "/a:b:c"),
        ("0::/../other", "/../other"),
        ("0::/", "/"),
        ("2:cpu:/x", ""),
        ("", ""),
        ("garbage", ""),
    ],
)
def test_cgroup(tree: Proc, lines: str, path: str) -> None:
    process(Path(tree.root), cgroup=f"{lines}\n".encode())
    assert tree.cgroup(7) == path


@given(st.binary())
def test_any_cgroup_file_is_read(text: bytes) -> None:
    assert "\n" not in choose_cgroup(text)


STATUS = b"Name:\tx\nUid:\t0\t0\t0\t0\nNSpid:\t7\n"


@ONE_TREE
@given(
    NAMES,
    st.one_of(NAMES, st.binary(max_size=300)),
    st.binary(max_size=100),
    st.lists(st.sampled_from(["cmdline", "environ", "loginuid", "cgroup", "status"]), unique=True),
)
def test_describe_survives_every_content(tree: Proc, comm: bytes, title: bytes, junk: bytes, missing: list[str]) -> None:
    files = {"cmdline": title, "environ": junk, "loginuid": junk, "cgroup": junk, "status": STATUS}
    process(Path(tree.root), 7, stat_line(comm=comm), **{name: text for name, text in files.items() if name not in missing})
    seen = tree.describe(7)
    assert seen
    assert seen.identity == Identity("boot-1", 7, 500)
    assert seen.command
    assert seen.command.isprintable()
    assert len(seen.command) <= 160
    assert seen.readable is ("environ" not in missing)
    assert seen.uid == (-1 if "status" in missing else 0)
    assert seen.user == ("-1" if "status" in missing else "root")


def test_describe(tree: Proc) -> None:
    folder = process(
        Path(tree.root), stat=stat_line(tty=34816, ppid=3, state="D"), cmdline=b"python3\0-m\0sglang\0", loginuid=b"1000",
        environ=b"A=1\0GPU_LIFECYCLE_UNIT=a.service\0GPU_LIFECYCLE_RUN=r1\0INVOCATION_ID=r0\0junk\0", status=STATUS,
        cgroup=b"0::/x\n",
    )  # fmt: skip
    (folder / "exe").symlink_to("/opt/python (deleted)")
    seen = tree.describe(7, devices=frozenset({9}), how=("map",))
    assert seen
    assert (seen.ppid, seen.state, seen.command, seen.executable) == (3, "D", "python3 -m sglang", "/opt/python")
    assert (seen.uid, seen.user, seen.cgroup, seen.tty, seen.login_uid) == (0, "root", "/x", 34816, 1000)
    assert (seen.marker_unit, seen.marker_run, seen.container) == ("a.service", "r1", "")
    assert (seen.devices, seen.how, seen.readable) == (frozenset({9}), ("map",), True)


@pytest.mark.parametrize(
    ("files", "field", "value"),
    [
        ({"loginuid": b"4294967295"}, "login_uid", None),
        ({"loginuid": b"0"}, "login_uid", 0),
        ({"loginuid": b""}, "login_uid", None),
        ({"environ": b"INVOCATION_ID=r0\0"}, "marker_run", "r0"),
        ({"environ": b"GPU_LIFECYCLE_RUN=\0INVOCATION_ID=r0\0"}, "marker_run", "r0"),
        ({"environ": b"XGPU_LIFECYCLE_UNIT=a.service\0"}, "marker_unit", ""),
        ({"environ": b"GPU_LIFECYCLE_UNIT=a\x1b[2J\0"}, "marker_unit", "a\\x1b[2J"),
        ({"status": b"Uid:\t4000000\nNSpid:\t7\t1\n"}, "container", "pid namespace"),
        ({"status": b"Uid:\t4000000\n"}, "user", "4000000"),
        ({"status": b"Uid:\n"}, "uid", -1),
        ({"cmdline": b""}, "command", "[python3]"),
        ({"cmdline": b"\0 \0"}, "command", "[python3]"),
        ({}, "readable", False),
        ({}, "executable", ""),
    ],
)
def test_one_field(tree: Proc, files: dict[str, bytes], field: str, value: object) -> None:
    process(Path(tree.root), 7, None, **files)
    seen = tree.describe(7)
    assert seen
    assert getattr(seen, field) == value


def test_vanished(tree: Proc) -> None:
    assert (tree.describe(7), tree.stat(7), tree.identity(7), tree.cgroup(7), tree.status(7)) == (None, None, None, "", {})
    assert (tree.environment(7), tree.pids()) == (None, [])
    assert not tree.is_alive(Identity("boot-1", 7, 500))


@pytest.mark.parametrize(
    ("happens", "described"),
    [
        (lambda root: process(root, 7, stat_line(start=501), status=STATUS), False),
        (lambda root: shutil.rmtree(root / "7"), False),
        (lambda _: None, True),
    ],
)
def test_a_pid_that_changes_meanwhile_is_not_described_by_halves(
    tree: Proc, happens: Callable[[Path], object], described: bool
) -> None:
    """A pipe in place of the file that is read about half-way holds the reader up while something happens."""
    root = Path(tree.root)
    pipe = process(root, status=STATUS) / "cgroup"
    os.mkfifo(pipe)

    def change() -> None:
        with pipe.open("w"):  # comes back once the reader is there
            happens(root)

    changing = threading.Thread(target=change)
    changing.start()
    assert bool(tree.describe(7)) is described
    changing.join(10)


def test_family(tree: Proc) -> None:
    for pid, parent in [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1), (6, 6), (8, 9), (9, 8)]:
        process(Path(tree.root), pid, stat_line(pid, ppid=parent))
    (Path(tree.root) / "self").mkdir()
    (Path(tree.root) / "٣").mkdir()
    assert sorted(tree.pids()) == [1, 2, 3, 4, 5, 6, 8, 9]
    assert tree.ancestors(4) == {4, 3, 2, 1}
    assert tree.ancestors(8) == {8, 9}  # torn reads could show a circle: it must end
    assert tree.descendants(2) == {3, 4}
    assert tree.descendants(6) == {6}
    assert tree.descendants(77) == set()
    assert tree.children()[1] == sorted(tree.children()[1], key=tree.pids().index)


def test_a_tree_without_a_boot_id(tmp_path: Path) -> None:
    assert Proc(str(tmp_path)).boot_id == ""


def test_read_bytes_ends_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 200_000)
    assert [len(read_bytes(str(tmp_path / "big"), limit)) for limit in (0, 10, 70_000, 10**6)] == [0, 10, 70_000, 200_000]


def test_ourselves() -> None:
    proc = Proc()
    seen = proc.describe(os.getpid())
    assert seen
    assert (seen.pid, seen.ppid, seen.uid) == (os.getpid(), os.getppid(), os.geteuid())
    assert seen.executable == os.readlink("/proc/self/exe")
    assert proc.is_alive(seen.identity)
    assert len(proc.boot_id) == 36
    assert {os.getpid(), os.getppid(), 1} <= proc.ancestors(os.getpid())
