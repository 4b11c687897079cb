"""Clears what earlier runs outside the unit left in the host's ``/dev/shm`` and ``/tmp``. Never a reason to refuse a start.

A managed run leaves nothing there: its unit has a ``/dev/shm`` and a ``/tmp`` of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_lifecycle.facts import UnitName
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.remains import (
    SHM,
    Decision,
    Owner,
    Remain,
    concerns,
    full_text,
    judge,
    keep_by_itself,
    kept_text,
    removed_text,
    size_text,
)
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.remains import ENTRIES, Folder, Processes, moment, owner, places

if TYPE_CHECKING:
    from gpu_lifecycle.system.journal import Journal


def clear(
    unit: UnitName,
    user: Callable[[str], str],
    journal: Journal,
    show: Callable[[str], None],
    folders: Mapping[str, str] | None = None,
) -> str:
    """Removes what is proven to be nobody's, and tells what stays. Never raises.

    ``user`` says which user a unit runs as, and is asked only where something was found. ``folders``: the shared ones, by their
    place the path; None: this machine's. Returns a warning about a
    ``/dev/shm`` that is nearly full, or "".
    """
    try:
        return _clear(unit, user, journal, show, places(Proc()) if folders is None else folders)
    except Exception as error:  # noqa: BLE001 -- a start must not fail for what it does not need
        journal.tell(Event("remains-kept", f"left alone all files of earlier runs: {str(error) or type(error).__name__}"))
        return ""


def _clear(
    unit: UnitName, user: Callable[[str], str], journal: Journal, show: Callable[[str], None], paths: Mapping[str, str]
) -> str:
    with contextlib.ExitStack() as stack:
        folders = {}
        for place, path in paths.items():
            with contextlib.suppress(OSError):  # a link, or not there: nothing is to be done
                folders[place] = stack.enter_context(Folder(place, path))
        found = [remain for folder in folders.values() for remain in folder.find()]
        for folder in folders.values():
            if folder.cut:
                journal.tell(Event("remains-kept", f"looked at the first {ENTRIES} entries of {folder.place} only"))
        if found:
            show(f"looking at {size_text(found)} of files that earlier runs may have left")
            who = owner(user(unit.service))
            _tell(_remove(_judged([remain for remain in found if concerns(remain, who)], who), folders), journal)
        return full_text(folders[SHM].used()) if SHM in folders else ""


def _judged(found: Sequence[Remain], who: Owner) -> list[Decision]:
    """The processes are looked at only where a file may go by all that it shows itself."""
    proc = Proc()
    now = moment(proc)
    kept = {remain: keep_by_itself(remain, who, now) for remain in found}
    open_ = [remain for remain, decision in kept.items() if decision is None]
    seen = Processes(proc, open_).look() if open_ else None
    judged = [judge(remain, who, seen) for remain in open_] if seen else []
    return [*(decision for decision in kept.values() if decision), *judged]


def _remove(judged: Sequence[Decision], folders: dict[str, Folder]) -> list[Decision]:
    """What became of each: the door has the last word."""
    done = []
    for item in judged:
        complaint = folders[item.remain.place].remove(item.remain) if item.remove else ""
        done.append(Decision(item.remain, False, "held", complaint) if complaint else item)
    return done


def _tell(done: Sequence[Decision], journal: Journal) -> None:
    """One event for what is gone, and one for each rule that kept something."""
    removed = [item for item in done if item.remove]
    if removed:
        journal.tell(Event("remains-removed", removed_text(removed), {"GPU_LIFECYCLE_RULE": removed[0].rule}))
    for rule in dict.fromkeys(item.rule for item in done if not item.remove):
        kept = [item for item in done if item.rule == rule]
        journal.tell(Event("remains-kept", kept_text(kept), {"GPU_LIFECYCLE_RULE": rule}))
