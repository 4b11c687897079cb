"""The history, on real files: killed, filled, damaged, locked, planted; and what of it who may see."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.history import keep, read
from gpu_lifecycle.system import history
from gpu_lifecycle.system.history import DAMAGED, KEPT, NAME, HistoryError, record, rows, starts
from tests.killed import killed_after

UNIT = UnitName("sglang-kimi")
NOBODY = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def row(run: str, began: float = 100.0, code: str | None = "cuda-oom", **more: Any) -> dict[str, Any]:
    return {"run": run, "began": began, "code": code, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = Path(Layout(str(tmp_path)).var_dir(UNIT))
    made.mkdir(parents=True)
    return made


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path))


def runs_of(folder: Path) -> list[str]:
    try:
        return [item["run"] for item in rows(str(folder))]
    except FileNotFoundError:
        return []


def sound(folder: Path) -> bool:
    db = sqlite3.connect(folder / NAME)
    try:
        return bool(db.execute("PRAGMA integrity_check").fetchone()[0] == "ok")
    finally:
        db.close()


def test_a_run_is_one_row_whatever_is_added_to_it(folder: Path) -> None:
    record(str(folder), row("a", code=None, boot="b1"))
    record(str(folder), row("a", ended=160.0, outcome="failed", evidence="one\ntwo", boot=None))
    (found,) = rows(str(folder))
    assert found == row("a", ended=160.0, outcome="failed", evidence="one\ntwo", boot="b1")
    assert (folder / NAME).stat().st_mode & 0o777 == 0o640
    assert sorted(item.name for item in folder.iterdir()) == [NAME]


def test_how_often_before(folder: Path) -> None:
    counts = [record(str(folder), row(f"r{n}", float(n), "cuda-oom" if n % 2 else "stopped"))[0] for n in range(6)]
    assert counts == [0, 0, 1, 1, 2, 2]
    assert record(str(folder), row("r5", 5.0))[0] == 2, "a row that is written again does not count itself"
    assert runs_of(folder) == ["r5", "r4", "r3", "r2", "r1", "r0"]


def test_a_clock_that_was_once_ahead_does_not_hide_what_came_later(folder: Path) -> None:
    record(str(folder), row("far", 9.5e9, start="of far"))
    for name, began in (("before", 1.0), ("ahead", 9e9), ("corrected", 2.0)):
        like = "port taken" if name != "before" else ""
        record(str(folder), row(name, began, "refused-75", like=like, start=f"of {name}"))
    assert runs_of(folder) == ["corrected", "before", "far"], "it was like the one before it, whatever the clock said"
    record(str(folder), row("last", 3.0, start="of last"))
    assert runs_of(folder) == ["last", "corrected", "before", "far"]
    assert list(starts(str(folder))) == ["last", "corrected", "before", "far"]


def test_a_start_that_is_refused_all_night_is_one_row(folder: Path) -> None:
    """It does not push out what is worth knowing."""
    record(str(folder), row("end", 1.0))
    counts = [record(str(folder), row(f"r{n}", 10.0 + n, "refused-75", like="port taken"))[0] for n in range(20)]
    assert counts == list(range(20))
    assert record(str(folder), row("r19", 29.0, "refused-75", like="port taken"))[0] == 19, "written twice, counted once"
    assert runs_of(folder) == ["r19", "end"]
    (newest, _) = rows(str(folder))
    assert (newest["times"], newest["first"]) == (20, 10.0)
    record(str(folder), row("s", 40.0, "refused-75", like="a tenant"))
    assert record(str(folder), row("t", 50.0, "refused-75", like="port taken"))[0] == 21
    assert runs_of(folder) == ["t", "s", "r19", "end"]


def test_it_does_not_grow_for_ever(folder: Path) -> None:
    record(str(folder), row("0", 0.0))
    many = [(str(n), -float(n), json.dumps({"e": "x" * 1000})) for n in range(1, 900)]
    with sqlite3.connect(folder / NAME) as db:
        db.executemany("INSERT INTO runs VALUES (?, ?, 0, '', 'x', ?)", many)
    db.close()
    record(str(folder), row("900", 900.0, evidence="y" * 99999, text="z" * 99999))
    found = rows(str(folder))
    assert (len(found), found[0]["run"], found[-1]["run"]) == (KEPT, "900", "401")
    assert (len(found[0]["evidence"]), len(found[0]["text"])) == (history.TEXTS, history.TEXT)


def test_no_history_is_none(folder: Path, layout: Layout) -> None:
    assert read(layout, UNIT) == []
    assert read(layout, UnitName("other")) == []
    (folder / NAME).touch()  # a writer that was killed at once
    assert read(layout, UNIT) == []


# Killed at every step

@pytest.mark.parametrize("first", [True, False], ids=["a new file", "an old file"])
def test_a_writer_that_is_killed_at_any_step_leaves_a_history_that_can_be_read(folder: Path, first: bool) -> None:
    step, through = 1, False
    while not through:
        shutil.rmtree(folder)
        folder.mkdir()
        if not first:
            record(str(folder), row("old"))
        through = killed_after(step, lambda: record(str(folder), row("new", 200.0)))
        assert runs_of(folder) in ((["new"], []) if first else (["new", "old"], ["old"])), step
        record(str(folder), row("next", 300.0))
        assert runs_of(folder)[0] == "next"
        assert sound(folder)
        step += 1
    assert step > 60, "it was really taken apart"
    assert "new" in runs_of(folder)


def test_the_first_look_after_a_kill_mends_and_shows_the_old_rows(folder: Path) -> None:
    """A journal that is complete and not yet deleted: its pages go back into the file."""
    record(str(folder), row("old"))
    program = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 1"); db.execute("BEGIN IMMEDIATE"); db.execute("PRAGMA cache_spill = 1")
for n in range(200): db.execute("INSERT INTO runs VALUES (?, 1, 1, '', '', ?)", (str(n), "x" * 3000))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program, str(folder / NAME)], check=False)
    assert (folder / f"{NAME}-journal").stat().st_size > 0
    assert runs_of(folder) == ["old"]
    assert sound(folder)


# A disk that is full


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@root
def test_a_full_disk_is_said_and_loses_nothing(small: Path) -> None:
    record(str(small), row("old"))
    complaints = []
    for left in range(0, 60000, 2000):
        filler = small / "filler"
        free = os.statvfs(small)
        filler.write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - left))
        try:
            record(str(small), row("new", 200.0, evidence="x" * 9000))
        except HistoryError as error:
            complaints.append(str(error))
            assert runs_of(small) == ["old"]
        filler.unlink()
        assert sound(small)
    assert len(complaints) > 2
    assert [text for text in complaints if "df -h" not in text] == []
    record(str(small), row("new", 200.0))
    assert runs_of(small) == ["new", "old"]


@root
def test_a_disk_that_is_full_from_the_start(small: Path) -> None:
    (small / "filler").write_bytes(b"x" * 65536)
    with pytest.raises(HistoryError):
        record(str(small), row("a"))
    (small / "filler").unlink()
    record(str(small), row("b"))
    assert runs_of(small) == ["b"]


@pytest.mark.parametrize("size", range(0, 16384, 1024))
def test_a_write_that_is_cut_short(folder: Path, size: int) -> None:
    """RLIMIT_FSIZE: every write beyond ``size`` fails, as on a disk that is full (setrlimit(2))."""
    record(str(folder), row("old"))

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        record(str(folder), row("new", 200.0, evidence="x" * 9000))

    child = os.fork()
    if child == 0:
        try:
            work()
        except HistoryError:
            os._exit(3)
        finally:
            os._exit(4)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (3, 4)
    assert runs_of(folder) == (["old"] if status == 3 else ["new", "old"])
    assert sound(folder)


def test_the_file_has_a_greatest_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PAGES", 4)
    record(str(folder), row("old"))
    with pytest.raises(HistoryError, match="full"):
        record(str(folder), row("new", 200.0, evidence="x" * 12000))
    assert runs_of(folder) == ["old"]


# Damaged, locked, of another version


@pytest.mark.parametrize("garbage", [b"no database at all" * 500, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_file_is_set_aside(folder: Path, layout: Layout, garbage: bytes) -> None:
    (folder / NAME).write_bytes(garbage)
    (folder / f"{NAME}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 600)
    with pytest.raises(HistoryError, match="begins anew"):
        rows(str(folder))
    kept = keep(layout, UNIT, row("a"))
    assert (kept.before, "begins anew" in kept.complaint) == (0, True)
    assert (folder / DAMAGED).read_bytes() == garbage
    assert keep(layout, UNIT, row("b", 200.0)).complaint == ""
    assert runs_of(folder) == ["b", "a"]


@pytest.mark.parametrize("page", [1, 2])
def test_a_page_that_is_overwritten_stops_nobody(folder: Path, layout: Layout, page: int) -> None:
    for n in range(40):
        record(str(folder), row(str(n), float(n), evidence="x" * 900))
    with (folder / NAME).open("r+b") as file:
        file.seek((page - 1) * 4096 + 100)
        file.write(b"\xff" * 3000)
    for n in range(40, 43):
        assert keep(layout, UNIT, row(str(n), float(n))).before >= 0
    assert runs_of(folder)[0] == "42"


def test_the_history_of_a_later_version_is_left_alone(folder: Path, layout: Layout) -> None:
    record(str(folder), row("a"))
    db = sqlite3.connect(folder / NAME)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = (folder / NAME).read_bytes()
    assert "its schema is 99" in keep(layout, UNIT, row("b")).complaint
    assert (folder / NAME).read_bytes() == before


def test_a_lock_is_waited_for_and_then_said(folder: Path, layout: Layout) -> None:
    record(str(folder), row("a"))
    db = sqlite3.connect(folder / NAME, isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    begun = time.monotonic()
    assert "another process is writing it" in keep(layout, UNIT, row("b")).complaint
    assert time.monotonic() - begun < history.LOCKED + 2
    db.close()
    assert keep(layout, UNIT, row("b", 200.0)).complaint == ""


def test_a_file_that_brings_a_view_without_end_is_given_up(folder: Path) -> None:
    db = sqlite3.connect(folder / NAME)
    db.execute("CREATE VIEW runs AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
               " SELECT x AS run, x AS began, x AS ended, '' AS outcome, '' AS code, '' AS document FROM n")  # fmt: skip
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    with pytest.raises(HistoryError, match="interrupted"):
        rows(str(folder))


# Planted


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_what_is_no_plain_file_is_not_touched(folder: Path, layout: Layout, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    record(str(tmp_path), row("precious"))
    (tmp_path / NAME).rename(target)
    before = target.read_bytes()
    planted = folder / NAME
    match kind:
        case "link":
            planted.symlink_to(target)
        case "hard link":
            planted.hardlink_to(target)
        case "pipe":
            os.mkfifo(planted)
        case _:
            planted.mkdir()
    assert "no plain file" in keep(layout, UNIT, row("a")).complaint
    with pytest.raises(Exception, match="no plain file"):
        read(layout, UNIT)
    assert target.read_bytes() == before


@pytest.fixture
def place() -> Iterator[Path]:
    """A root that other users can reach, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def users(place: Path) -> Path:
    """The unit's folder is another user's."""
    made = Path(Layout(str(place)).var_dir(UNIT))
    made.mkdir(parents=True)
    os.chown(made, NOBODY, NOBODY)
    return made


@root
def test_root_writes_as_the_folders_owner(users: Path, place: Path) -> None:
    layout = Layout(str(place))
    assert keep(layout, UNIT, row("a")) == keep(layout, UNIT, row("a"))
    assert (users / NAME).stat().st_uid == NOBODY
    assert keep(layout, UNIT, row("b", 200.0)).before == 1
    assert [item["run"] for item in read(layout, UNIT)] == ["b", "a"]


@root
def test_root_follows_no_link_to_what_only_root_may_write(users: Path, place: Path, tmp_path: Path) -> None:
    layout = Layout(str(place))
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    record(str(secret), row("precious"))
    before = (secret / NAME).read_bytes()
    for name in (NAME, f"{NAME}-journal"):
        (users / name).unlink(missing_ok=True)
        (users / name).symlink_to(secret / NAME)
        assert keep(layout, UNIT, row("a")).complaint or name != NAME
        assert (secret / NAME).read_bytes() == before
        (users / name).unlink(missing_ok=True)


@root
def test_a_folder_that_is_a_link_is_refused(layout: Layout, folder: Path, tmp_path: Path) -> None:
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert "is no folder" in keep(layout, UNIT, row("a")).complaint
    folder.unlink()
    folder.symlink_to(tmp_path / "nowhere")
    assert keep(layout, UNIT, row("a")).complaint
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / NAME).exists()


def test_a_folder_that_is_missing_is_made(layout: Layout, folder: Path) -> None:
    folder.rmdir()
    folder.parent.rmdir()
    assert keep(layout, UNIT, row("a")).complaint == ""
    assert [item["run"] for item in read(layout, UNIT)] == ["a"]


def test_a_folder_that_everybody_may_write_is_refused(layout: Layout, folder: Path) -> None:
    folder.chmod(0o777)
    assert "chmod o-w" in keep(layout, UNIT, row("a")).complaint


def as_user(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Our own command line as another user, on this tree."""
    code = """
import sys
from gpu_lifecycle import cli
from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Layout
arguments = cli.parser().parse_args(sys.argv[2:])
try:
    sys.exit(arguments.run(arguments, Layout(sys.argv[1])))
except LifecycleError as error:
    print(error, file=sys.stderr)
    sys.exit(error.status)
"""
    environment = {"PYTHONPATH": str(Path(history.__file__).parents[2]), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-B", "-c", code, str(place), *words]
    who: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/", "env": environment}
    return subprocess.run(command, capture_output=True, text=True, **who)


@root
def test_without_root_it_is_read_by_who_may_and_said_to_who_may_not(users: Path, place: Path) -> None:
    now = time.time()
    ended = row("feed", now, ended=now + 1, outcome="failed", evidence="the engine exited", cure="")
    assert not keep(Layout(str(place)), UNIT, ended).complaint
    done = as_user(place, "why", "sglang-kimi")
    assert (done.returncode, done.stderr) == (0, "")
    assert "run feed failed at" in done.stdout
    os.chown(users / NAME, 0, 0)
    done = as_user(place, "why", "sglang-kimi")
    assert (done.returncode, done.stdout) == (77, "")
    assert "may not be read by this user: run it as root" in done.stderr
    os.chown(users, 0, 0)
    os.chown(users / NAME, 0, NOBODY)
    assert "run feed failed at" in as_user(place, "why", "sglang-kimi").stdout, "a member of the file's group"
    os.chown(users, 0, 0)
    users.chmod(0o700)
    assert as_user(place, "runs", "sglang-kimi").returncode == 77
