"""The pictures of starts in the history, on real files: beside the runs, never in their way."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.history import keep, read, read_starts
from gpu_lifecycle.system import history
from gpu_lifecycle.system.history import NAME, START, STARTS_KEPT, HistoryError, record, rows, starts
from tests.killed import killed_after

UNIT = UnitName("sglang-kimi")
NOBODY = 65534


def row(run: str, began: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"run": run, "began": began, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = Path(Layout(str(tmp_path)).var_dir(UNIT))
    made.mkdir(parents=True)
    return made


def test_a_start_is_kept_beside_its_run(folder: Path) -> None:
    record(str(folder), row("a"))
    assert starts(str(folder)) == {}
    record(str(folder), row("a", start="one"))
    record(str(folder), row("a", start="two", ended=5.0))
    record(str(folder), row("a", outcome="failed"))  # the post-stop hook knows nothing of it
    assert starts(str(folder)) == {"a": "two"}
    assert rows(str(folder)) == [row("a", ended=5.0, outcome="failed")]


def test_a_history_of_before_gets_them_and_its_version_may_go_on(folder: Path) -> None:
    """The file as the first version made it: only the runs."""
    db = sqlite3.connect(folder / NAME)
    db.execute(history.TABLE)
    db.execute("INSERT INTO runs VALUES ('old', 1, 2, 'stopped', 'stopped', '{}')")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    assert starts(str(folder)) == {}
    record(str(folder), row("new", start="x"))
    assert [item["run"] for item in rows(str(folder))] == ["new", "old"]
    assert starts(str(folder)) == {"new": "x"}
    db = sqlite3.connect(folder / NAME)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    db.execute("DELETE FROM runs WHERE run = 'new'")  # as the first version does, which knows no more
    db.commit()
    db.close()
    assert starts(str(folder)) == {}
    record(str(folder), row("newer", 200.0, start="y"))
    db = sqlite3.connect(folder / NAME)
    assert db.execute("SELECT run FROM starts").fetchall() == [("newer",)]
    db.close()


def test_the_newest_are_kept(folder: Path) -> None:
    for number in range(STARTS_KEPT + 5):
        record(str(folder), row(str(number), -float(number), start="x"))
    assert list(starts(str(folder))) == [str(number) for number in range(STARTS_KEPT + 4, 4, -1)]


def test_one_that_is_too_long_costs_the_row_nothing(folder: Path) -> None:
    _, note = record(str(folder), row("a", start="x" * (START + 1), outcome="failed"))
    assert "not kept" in note
    assert rows(str(folder)) == [row("a", outcome="failed")]


def test_where_there_is_no_room_the_row_is_kept_alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PAGES", 6)
    record(str(folder), row("old"))
    kept = keep(Layout(str(tmp_path)), UNIT, row("a", 200.0, start="x" * 40000))
    assert "the picture of this start is not kept" in kept.complaint
    assert [item["run"] for item in rows(str(folder))] == ["a", "old"]
    assert starts(str(folder)) == {}


def test_a_table_that_is_none_costs_the_row_nothing(folder: Path) -> None:
    record(str(folder), row("old"))
    db = sqlite3.connect(folder / NAME)
    db.execute("CREATE VIEW starts AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
               " SELECT x AS run, '' AS document FROM n")  # fmt: skip
    db.commit()
    db.close()
    _, note = record(str(folder), row("a", 200.0, start="x"))
    assert "not kept" in note
    assert [item["run"] for item in rows(str(folder))] == ["a", "old"]


@pytest.mark.parametrize("garbage", [b"no database at all" * 500, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_file_begins_anew_with_both(folder: Path, garbage: bytes) -> None:
    (folder / NAME).write_bytes(garbage)
    with pytest.raises(HistoryError):
        starts(str(folder))
    _, note = record(str(folder), row("a", start="x"))
    assert "begins anew" in note
    assert starts(str(folder)) == {"a": "x"}


def test_a_writer_that_is_killed_at_any_step_loses_one_start_at_most(folder: Path) -> None:
    step, through = 1, False
    while not through:
        (folder / NAME).unlink(missing_ok=True)
        (folder / f"{NAME}-journal").unlink(missing_ok=True)
        record(str(folder), row("old", start="o"))
        through = killed_after(step, lambda: record(str(folder), row("new", 200.0, start="n" * 9000)))
        found = starts(str(folder))
        assert found["old"] == "o"
        assert set(found) <= {item["run"] for item in rows(str(folder))}
        step += 3
    assert starts(str(folder)).keys() == {"new", "old"}


@pytest.fixture
def users() -> Iterator[Layout]:
    """The unit's folder is another user's."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        layout = Layout(made)
        Path(layout.var_dir(UNIT)).mkdir(parents=True)
        os.chown(layout.var_dir(UNIT), NOBODY, NOBODY)
        yield layout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_reads_and_writes_them_as_the_folders_owner(users: Layout) -> None:
    assert read_starts(users, UNIT) == {}
    assert keep(users, UNIT, row("a", start="x" * 30000)).complaint == ""
    assert read_starts(users, UNIT) == {"a": "x" * 30000}
    assert [item["run"] for item in read(users, UNIT)] == ["a"]
    assert Path(users.var_dir(UNIT), NAME).stat().st_uid == NOBODY


def test_no_history_has_none(tmp_path: Path, folder: Path) -> None:
    assert read_starts(Layout(str(tmp_path)), UNIT) == {}
    assert read_starts(Layout(str(tmp_path)), UnitName("other")) == {}
    assert folder.exists()
