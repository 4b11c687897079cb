"""The door to a unit's history: one SQLite file in its folder below ``/var/lib``, a row for each run.

The folder belongs to the unit's user, who may put anything there. So root opens nothing in it: it starts this file as a program
that runs as the folder's owner (``as_owner``). That is why nothing of our own is imported here.

A rollback journal, not a write-ahead log: who may read the file, but not write beside it, can then read it, and there are three
writes in a run. A writer that is killed leaves a journal that the next one rolls back (sqlite.org/atomiccommit.html).
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import sys
from contextlib import closing, suppress
from typing import Any

SCHEMA = 1
NAME = "history.db"
DAMAGED = f"{NAME}.damaged"
KEPT = 500  # runs
TEXT = 2000  # characters of a text of a row
LONG = ("evidence",)
TEXTS = 12000  # ... of its longest
PAGES = 4096  # of 4 KiB: the file's greatest size
LOCKED = 2.0  # seconds to wait for another one's write
STEPS = 20_000_000  # of SQLite's machine that one use of it may take: the file may hold anything
TABLE = (
    "CREATE TABLE runs (run TEXT PRIMARY KEY, began REAL NOT NULL, ended REAL, outcome TEXT, code TEXT, document TEXT NOT NULL)"
)
# Newest is what was written last, by the numbers that SQLite gives rows (sqlite.org/rowidtable.html), and not what began last:
# the run of a clock that was once years ahead would stand first for years.
SELECT = "SELECT run, began, ended, outcome, code, document FROM runs"
BEFORE = "SELECT sum(coalesce(json_extract(document, '$.times'), 1)) FROM runs WHERE code = ? AND run != ?"
STARTS = "CREATE TABLE starts (run TEXT PRIMARY KEY, document TEXT NOT NULL)"  # beside the runs: versions without it may go on
STARTS_KEPT = 50
START = 1 << 16  # characters of one of them
HAS_STARTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'starts'"
NEWEST_STARTS = "SELECT starts.run, starts.document FROM starts JOIN runs USING (run) ORDER BY runs.rowid DESC LIMIT ?"
OLD_STARTS = (
    "DELETE FROM starts WHERE run NOT IN"
    " (SELECT starts.run FROM starts JOIN runs USING (run) ORDER BY runs.rowid DESC LIMIT ?)"
)
BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)

Row = dict[str, Any]


class HistoryError(Exception):
    """The history cannot be used; the text says why, and what to do."""


def record(folder: str, row: Row) -> tuple[int, str]:
    """Adds ``row``, or its keys to those of the run that is known. A value of None changes nothing.

    ``run`` and ``began`` (seconds since the epoch) have to be there; one that is ``like`` the one before it takes its place.
    ``start``, a text, is the picture of its start: where there is no room for it, the row is kept without it.
    Returns how many other runs have ended with this ``code``, and "" or what was wrong and is mended. Raises HistoryError,
    and leaves all as it was.
    """
    note, start = "", row.get("start")
    row = {key: value for key, value in row.items() if key != "start"}
    for _ in range(2):
        try:
            count = _record(folder, row)
            said = _record_start(folder, row["run"], start) if isinstance(start, str) else ""
            return count, "; ".join(text for text in (note, said) if text)
        except sqlite3.Error as error:
            if _code(error) not in BROKEN:
                raise HistoryError(_say(error, folder)) from error
            note = f"the history was damaged ({error}) and begins anew; the old one is {folder}/{DAMAGED}"
            _set_aside(folder)
        except OSError as error:
            raise HistoryError(f"{folder}: {error.strerror}") from error
    raise HistoryError(f"{folder}/{NAME} is damaged again and again; look at the disk")


def rows(folder: str, limit: int = KEPT) -> list[Row]:
    """The newest runs, newest first. Raises FileNotFoundError where there is none yet, HistoryError where it is of no use."""
    path = _plain(folder)
    writable = os.access(folder, os.W_OK)  # a journal that a killed writer left can be rolled back then
    try:
        with closing(_connect(path, "rw" if writable else "ro")) as db:
            _known(db)
            return [_row(item) for item in db.execute(f"{SELECT} ORDER BY rowid DESC LIMIT ?", (limit,))]
    except sqlite3.Error as error:
        raise HistoryError(_say(error, folder)) from error


def starts(folder: str) -> dict[str, str]:
    """The pictures of the newest starts that have one, by run. Raises as ``rows`` does."""
    path = _plain(folder)
    try:
        with closing(_connect(path, "rw" if os.access(folder, os.W_OK) else "ro")) as db:
            _known(db)
            if not db.execute(HAS_STARTS).fetchone():
                return {}
            found = db.execute(NEWEST_STARTS, (STARTS_KEPT,)).fetchall()
            return {run: text for run, text in found if isinstance(run, str) and isinstance(text, str) and len(text) <= START}
    except sqlite3.Error as error:
        raise HistoryError(_say(error, folder)) from error


def _record_start(folder: str, run: str, start: str) -> str:
    """Returns why it could not be kept; "" where it is."""
    if len(start) > START:
        return f"the picture of this start is not kept: it has {len(start)} characters"
    try:
        with closing(_connect(_plain(folder), "rw")) as db:
            db.execute(f"PRAGMA max_page_count = {PAGES}")
            db.execute("BEGIN IMMEDIATE")
            if not db.execute(HAS_STARTS).fetchone():
                db.execute(STARTS)
            db.execute("INSERT OR REPLACE INTO starts VALUES (?, ?)", (run, start))
            db.execute(OLD_STARTS, (STARTS_KEPT,))
            db.execute("COMMIT")
    except (sqlite3.Error, OSError, HistoryError) as error:
        why = _say(error, folder) if isinstance(error, sqlite3.Error) else str(error)
        return f"the picture of this start is not kept: {why}"
    return ""


def _spend(left: list[int]) -> bool:
    left[0] -= 1
    return left[0] < 0


def _row(item: tuple[Any, ...]) -> Row:
    try:
        document = json.loads(item[5])
    except (TypeError, ValueError, RecursionError):
        document = {}
    named = dict(zip(("run", "began", "ended", "outcome", "code"), item[:5], strict=True))
    return (document if isinstance(document, dict) else {}) | {key: value for key, value in named.items() if value is not None}


def _record(folder: str, row: Row) -> int:
    _make(folder)
    with closing(_connect(_plain(folder), "rw")) as db:
        db.execute(f"PRAGMA max_page_count = {PAGES}")
        db.execute("BEGIN IMMEDIATE")
        _known(db, make=True)
        old = db.execute(f"{SELECT} WHERE run = ?", (row["run"],)).fetchone()
        new = (_row(old) if old else {}) | {key: _cut(key, value) for key, value in row.items() if value is not None}
        _count(db, new)
        named = [new.get(key) for key in ("run", "began", "ended", "outcome", "code")]
        db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", (*named, json.dumps(new)))
        db.execute("DELETE FROM runs WHERE run NOT IN (SELECT run FROM runs ORDER BY rowid DESC LIMIT ?)", (KEPT,))
        count = db.execute(BEFORE, (new.get("code"), new["run"])).fetchone()[0]
        db.execute("COMMIT")
        return int(count or 0) + _times(new) - 1


def _count(db: sqlite3.Connection, new: Row) -> None:
    """A run that is ``like`` the one before it takes its place, and counts it: a start may be refused every 15 s all night."""
    newest = db.execute(f"{SELECT} WHERE run != ? ORDER BY rowid DESC LIMIT 1", (new["run"],)).fetchone()
    before = _row(newest) if newest else {}
    if new.get("like") and before.get("like") == new["like"]:
        new["times"] = _times(before) + 1
        new["first"] = before.get("first", before["began"])
        db.execute("DELETE FROM runs WHERE run = ?", (before["run"],))


def _times(row: Row) -> int:
    times = row.get("times")
    return times if isinstance(times, int) and 0 < times < 1 << 31 else 1


def _cut(key: str, value: Any) -> Any:
    return value[: TEXTS if key in LONG else TEXT] if isinstance(value, str) else value


def _known(db: sqlite3.Connection, *, make: bool = False) -> None:
    """Raises HistoryError for the file of another version; makes the table in a new one."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == 0 and make:
        db.execute(TABLE)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
    elif version == 0:
        raise FileNotFoundError(NAME)
    elif version != SCHEMA:
        raise HistoryError(f"its schema is {version}, and this version of gpu-lifecycle knows {SCHEMA}: it is left as it is")


def _connect(path: str, mode: str) -> sqlite3.Connection:
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    db = sqlite3.connect(f"file:{quoted}?mode={mode}", uri=True, timeout=LOCKED, isolation_level=None, check_same_thread=False)
    left = [STEPS // 1000]
    db.set_progress_handler(lambda: _spend(left), 1000)
    db.execute("PRAGMA trusted_schema = OFF")  # what a file brings along, such as a view, gets no function that could do harm
    return db


def _make(folder: str) -> None:
    """An empty file, for the owner and the group: it holds words of the engine. The umask would have its own way."""
    with suppress(FileExistsError):
        fd = os.open(f"{folder}/{NAME}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            os.fchmod(fd, 0o640)
        finally:
            os.close(fd)


def _plain(folder: str) -> str:
    """The file's path, once it is a plain file: no link, no pipe, nothing that has another name elsewhere."""
    path = f"{folder}/{NAME}"
    try:
        info = os.stat(path, follow_symlinks=False)
    except PermissionError:
        raise HistoryError(_denied(folder)) from None
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        raise HistoryError(f"{path} is no plain file: remove it")
    if not os.access(path, os.R_OK):
        raise HistoryError(_denied(folder))
    return path


def _denied(folder: str) -> str:
    return f"{folder}/{NAME} may not be read by this user: run it as root, as the unit's user, or as a member of its group"


def _set_aside(folder: str) -> None:
    """A journal beside it belongs to the damaged file, and must not be rolled into a new one."""
    os.rename(f"{folder}/{NAME}", f"{folder}/{DAMAGED}")
    for end in ("-journal", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/{NAME}{end}")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _say(error: sqlite3.Error, folder: str) -> str:
    cure = {
        sqlite3.SQLITE_BUSY: "another process is writing it",
        sqlite3.SQLITE_FULL: f"free some space there: df -h {folder}",
        sqlite3.SQLITE_IOERR: f"is there space left, and is the disk well: df -h {folder}; journalctl -k",
        sqlite3.SQLITE_INTERRUPT: "it is not as we write it: remove it",
        sqlite3.SQLITE_READONLY: "it may not be written, or a killed writer has left it half done: run this as root",
        sqlite3.SQLITE_CANTOPEN: "it may not be written, or a killed writer has left it half done: run this as root",
    }.get(_code(error), f"the next end of a run moves it to {DAMAGED} and begins anew")
    return f"{folder}/{NAME}: {error} ({cure})"


def main(words: list[str]) -> int:
    """``record FOLDER`` takes a row on stdin; ``rows`` and ``starts FOLDER`` give them; one JSON object is the answer."""
    answer: Row = {}
    try:
        if words[0] == "record":
            answer["before"], answer["note"] = record(words[1], json.load(sys.stdin))
        elif words[0] == "starts":
            answer["starts"] = starts(words[1])
        else:
            answer["rows"] = rows(words[1])
    except FileNotFoundError:
        answer["rows"] = []
    except HistoryError as error:
        answer["error"] = str(error)
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
