"""The last word on a run, by the post-stop hook: systemd's part of the evidence, the history, and the cause in one line.

The daemon has mostly said why. Where there was none (a refused start), or it was killed, what it left in the state file and
systemd's word have to do.
"""

from __future__ import annotations

import os
import time
from typing import Any

from gpu_lifecycle.facts import Layout, Phase, UnitName
from gpu_lifecycle.jobs.account import end_event
from gpu_lifecycle.jobs.history import keep
from gpu_lifecycle.jobs.state import StateFile
from gpu_lifecycle.rules.account import cause_of, cause_row, ended_of, joined, lines, number, phases, since_began, spend
from gpu_lifecycle.rules.cause import Outcome, classify, one_line
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.procfs import Proc

WORDS = ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS")  # systemd.exec(5)


def last_word(layout: Layout, unit: UnitName, state: StateFile, journal: Journal, doing: str, after: str) -> str:
    """``doing`` is what the run said last of itself, ``after`` what could not be cleared. Returns one line for STATUS=."""
    row = finished(state, doing, after)
    cause = cause_of(row)
    assert cause
    state.count_end(cause.code)
    kept = keep(layout, unit, row)
    if kept.complaint:
        journal.tell(Event("history-not-kept", kept.complaint))
    journal.tell(end_event(cause, kept.before, unit))
    return one_line(cause, kept.before)


def finished(state: StateFile, doing: str, after: str) -> dict[str, Any]:
    """The run's row, with its end."""
    account = state.document.get("account") or {}
    row = dict(account) if account.get("run") == state.run else state.begun(Proc().boot_id)
    result, code, status = (os.environ.get(name, "") for name in WORDS)
    now = time.time()
    ended, began = number(row, "ended") or now, number(row, "began") or now
    row |= {"ended": ended, "began": began, "systemd": " ".join(word for word in (result, code, status) if word)}
    row.setdefault("lasted", round(since_began(row, ended, time.monotonic()), 3))
    if not phases(row):
        spend(row, Phase.PRE_START, number(row, "lasted") or 0.0)
    cause = cause_of(row)
    if cause is None:
        seen = "" if result == "success" else doing
        cause = classify(ended_of(row, result=result, code=code, status=status, doing=seen, after=after))
        row |= cause_row(cause)
    elif after:
        found = classify(ended_of(row, after=after)) if cause.outcome is Outcome.STOPPED else cause
        row |= cause_row(found) | {"evidence": joined((*lines(row, "evidence"), f"after the stop: {after}"))}
    return row
