"""The history of a unit, from whoever may write or read it. Never in the way: what cannot be kept is said, and that is all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_lifecycle.errors import LifecycleError, NotPermittedError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.system import history
from gpu_lifecycle.system.patience import Patience

SECONDS = 5.0  # for a write or a read; a disk that hangs must not hold up a stop
ANSWER = 32 << 20  # bytes of a helper's answer: more than 500 runs of the longest texts


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a write: ``before`` other runs have ended for the same cause; ``complaint`` is "" where all is well."""

    before: int = 0
    complaint: str = ""


def keep(layout: Layout, unit: UnitName, row: dict[str, Any]) -> Kept:
    """Writes a row, as the owner of the unit's folder. Never raises."""
    folder = layout.var_dir(unit)
    try:
        os.makedirs(folder, exist_ok=True)  # systemd has made it, but not for a run in the foreground
        owner = _owner(folder)
        if owner is None:
            before, note = Patience(SECONDS).one(os.getpid(), lambda _: history.record(folder, row))
        else:
            answer = _as_owner(owner, "record", folder, row)
            before, note = int(answer.get("before") or 0), printable(str(answer.get("note") or ""), 500)
    except (history.HistoryError, OSError, LifecycleError) as error:
        return Kept(complaint=f"this run is not kept in the history: {_words(error)}")
    return Kept(before, note)


def read(layout: Layout, unit: UnitName) -> list[dict[str, Any]]:
    """All runs, newest first; empty where there is no history yet. Raises NotPermittedError or LifecycleError."""
    found = _found(layout, unit, "rows", history.rows)
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("run"), str)]


def read_starts(layout: Layout, unit: UnitName) -> dict[str, str]:
    """The pictures of the newest starts, as they were written, by run. Raises as ``read`` does."""
    found = _found(layout, unit, "starts", history.starts)
    return {run: text for run, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def _found(layout: Layout, unit: UnitName, verb: str, look: Callable[[str], object]) -> object:
    folder = layout.var_dir(unit)
    try:
        owner = _owner(folder, reading=True)
        if owner is None:
            return Patience(SECONDS).one(os.getpid(), lambda _: look(folder))
        return _as_owner(owner, verb, folder).get(verb)
    except FileNotFoundError:
        return None
    except (history.HistoryError, OSError) as error:
        kind = NotPermittedError if "may not be read" in str(error) or isinstance(error, PermissionError) else LifecycleError
        raise kind(f"cannot read the history of {unit.service}: {_words(error)}") from error


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it took longer than {SECONDS:.0f} s"
    return printable(error.strerror or str(error) if isinstance(error, OSError) else str(error), 500)


def _owner(folder: str, *, reading: bool = False) -> tuple[int, int] | None:
    """Whom the folder belongs to (user, group), where root has to become that user first; None where we go ourselves.

    Raises OSError where this user is not to write there: a folder that others write to leads anywhere.
    """
    info = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(info.st_mode):
        raise NotADirectoryError(0, f"{folder} is no folder", folder)
    mine = info.st_uid == os.geteuid()
    if not mine and os.geteuid() == 0:
        return info.st_uid, info.st_gid
    if mine and info.st_mode & stat.S_IWOTH:
        raise PermissionError(0, f"{folder} may be written by everybody: chmod o-w {folder}", folder)
    if not mine and not reading:
        raise PermissionError(0, f"{folder} belongs to another user", folder)
    return None


def _as_owner(owner: tuple[int, int], verb: str, folder: str, row: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the door's program answers, run as that user. Raises LifecycleError."""
    words = [sys.executable, "-I", "-B", "-S", history.__file__, verb, folder]
    try:
        done = subprocess.run(
            words, input=json.dumps(row or {}).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=SECONDS,
            check=False, cwd="/", env={}, user=owner[0], group=owner[1], extra_groups=[],
        )  # fmt: skip
        answer = json.loads(done.stdout) if len(done.stdout) < ANSWER else None
    except subprocess.TimeoutExpired:
        raise LifecycleError(f"it took longer than {SECONDS:.0f} s") from None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise LifecycleError("its helper gave no answer")
    if answer.get("error"):
        raise history.HistoryError(printable(str(answer["error"]), 500))
    return answer
