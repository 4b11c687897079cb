"""``why`` and ``runs``: what the history of a unit says, for a person or a program."""

from __future__ import annotations

import time
from typing import Any

from gpu_lifecycle.errors import BlindError, Exit, LifecycleError, UsageError
from gpu_lifecycle.facts import Layout, Phase, UnitName
from gpu_lifecycle.jobs.history import read
from gpu_lifecycle.jobs.printed import print_json
from gpu_lifecycle.jobs.state import StateFile
from gpu_lifecycle.rules.account import cause_of, cause_row, lines, number, phases, text, times
from gpu_lifecycle.rules.cause import CAUSES, Cause, Outcome, for_unit
from gpu_lifecycle.rules.quantity import show_count, show_duration
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.system.procfs import Proc

SHORT = 8  # characters of a run's id that tell it from others
ENDED = ("inactive", "failed")

Row = dict[str, Any]


def why(unit: UnitName, layout: Layout, run: str, *, as_json: bool) -> int:
    """Prints why the last run, or ``run`` (its id or the beginning of it), has ended. Raises UsageError, NotPermittedError."""
    live = live_run(unit, layout)
    found = runs_of(unit, layout, live)
    chosen = named(found, run, unit) if run else next((row for row in found if "code" in row), None)
    if as_json:
        print_json({"schema": 1, "unit": unit.service, "running": live, **_why_json(chosen, found, unit)})
        return Exit.OK
    if live:
        print(f"{unit.service} runs now: {live['phase']}, run {live['run'][:SHORT]} (gpu-lifecycle status {unit.name})")
    if chosen is None:
        print(f"{unit.service}: no run of it has ended, as far as its history goes")
    else:
        print("\n".join(_why_lines(chosen, found, unit)))
    return Exit.OK


def runs(unit: UnitName, layout: Layout, *, as_json: bool) -> int:
    """Prints all runs that are kept, newest first. Raises NotPermittedError."""
    live = live_run(unit, layout)
    found = runs_of(unit, layout, live)
    if as_json:
        print_json({"schema": 1, "unit": unit.service, "running": live, "runs": [_run_json(row) for row in found]})
    elif not found:
        print(f"{unit.service} has no history: no run of it is known")
    else:
        from gpu_lifecycle.jobs.tables import runs_table, show

        show(runs_table([_cells(row) for row in found]))
    return Exit.OK


def live_run(unit: UnitName, layout: Layout) -> dict[str, str] | None:
    """The run that is alive now. systemd's word outranks a file; without systemd the file has to do."""
    document = StateFile.load(layout, unit).document
    run, phase = printable(document.get("run") or "", 64), str(document.get("phase", Phase.DOWN))
    try:
        from gpu_lifecycle.system.bus import Bus

        with Bus() as bus:
            state = bus.unit_state(unit.service)
    except (BlindError, LifecycleError):
        return {"run": run, "phase": phase} if run and phase not in (Phase.DOWN, Phase.FAILED) else None
    if state.active in ENDED or "auto-restart" in state.sub or not state.invocation_id:
        return None
    return {"run": state.invocation_id, "phase": phase if run == state.invocation_id else state.active}


def runs_of(unit: UnitName, layout: Layout, live: dict[str, str] | None) -> list[Row]:
    """Newest first; a run whose end nobody has written, and that is not alive, is lost.

    Of the run that is alive the state file knows more, until the history has it. So it is read first: what is no longer in it
    is in the history by then.
    """
    account = _account(layout, unit, live)
    rows = read(layout, unit)
    if account and all(row["run"] != account["run"] for row in rows):
        rows.insert(0, account)
    return [row if cause_of(row) else _unended(row, account) for row in rows]


def _account(layout: Layout, unit: UnitName, live: dict[str, str] | None) -> Row:
    """What the state file has of the run that is alive; nothing where none is, or it knows nothing of it."""
    row = StateFile.load(layout, unit).document.get("account") or {}
    return _without_end(row) if live and row.get("run") == live["run"] else {}


def _unended(row: Row, account: Row) -> Row:
    row = _without_end(row)
    if account and row["run"] == account["run"]:
        return row | account
    code = "unwritten" if row.get("boot") == Proc().boot_id else "vanished"
    return row | cause_row(Cause(code, Outcome.LOST, *CAUSES[code]))


def _without_end(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "code"}


def named(found: list[Row], run: str, unit: UnitName) -> Row:
    mine = [row for row in found if row["run"].startswith(run)]
    if len(mine) != 1:
        what = "there is no run" if not mine else f"{len(mine)} runs have an id"
        raise UsageError(f"{what} {printable(run, 64)} of {unit.service}", hint=f"gpu-lifecycle runs {unit.name} lists them")
    return mine[0]


def _seconds(row: Row) -> float | None:
    began, ended = number(row, "began"), number(row, "ended")
    return max(0.0, ended - began) if began is not None and ended is not None else None


def _run_json(row: Row) -> Row:
    return {
        "run": printable(row["run"], 64),
        "began": number(row, "began"),
        "ready": number(row, "ready_at"),
        "ended": number(row, "ended"),
        "seconds": _seconds(row),
        "phases": phases(row),
        "outcome": text(row, "outcome") or None if "code" in row else None,
        "cause": row.get("code"),
        "text": text(row, "text") or None,
        "times": times(row),
        "first": number(row, "first"),
        "systemd": printable(text(row, "systemd"), 100) or None,
    }


def _why_json(row: Row | None, found: list[Row], unit: UnitName) -> Row:
    if row is None:
        return {"run": None, "cause": None, "evidence": [], "incident": None, "before": {"count": 0, "of": 0, "last": None}}
    same, earlier = _before(row, found)
    cause = cause_of(row)
    return {
        "run": _run_json(row),
        "cause": {"code": cause.code, "text": cause.text, "cure": for_unit(cause.cure, unit.name)} if cause else None,
        "evidence": [printable(line, 500) for line in lines(row, "evidence")],
        "incident": printable(text(row, "folder"), 300) or None,
        "before": {"count": _total(same, row), "of": _total(earlier, row), "last": number(same[0], "ended") if same else None},
    }


def _before(row: Row, found: list[Row]) -> tuple[list[Row], list[Row]]:
    earlier = found[found.index(row) + 1 :]
    return [item for item in earlier if item.get("code") == row.get("code")], earlier


def _total(found: list[Row], row: Row) -> int:
    """All of these, and those that ``row`` itself stands for beside the last one."""
    return sum(map(times, found)) + times(row) - 1


def _why_lines(row: Row, found: list[Row], unit: UnitName) -> list[str]:
    cause = cause_of(row)
    if cause is None:
        return [f"run {printable(row['run'][:SHORT])} has not ended"]
    lasted = ", ".join(f"{phase} {show_duration(seconds)}" for phase, seconds in phases(row).items())
    seconds = _seconds(row)
    after = f", after {show_duration(round(seconds, 1))}" if seconds is not None else ""
    shown = [f"run {printable(row['run'][:SHORT])} {_ended(cause)} {_when(number(row, 'ended'))}{after}"]
    shown += [f"  phases: {lasted}"] if lasted else []
    shown.append(f"  cause: {cause.text} ({cause.code})")
    shown += [f"  seen: {printable(line, 500)}" for line in cause.evidence]
    shown.append(f"  what to do: {for_unit(cause.cure, unit.name)}")
    return [*shown, f"  before: {_often(row, found)}", f"  more: {_more(row)}"]


def _ended(cause: Cause) -> str:
    return "failed" if cause.outcome is Outcome.FAILED else f"was {cause.outcome}"


def _often(row: Row, found: list[Row]) -> str:
    same, earlier = _before(row, found)
    count, total = _total(same, row), _total(earlier, row)
    if not total:
        return "no earlier run is known"
    if not count:
        return "not so in the one earlier run that is known" if total == 1 else f"none of {total} earlier runs"
    last = f", the last {_when(number(same[0], 'ended'))}" if same else ""
    since = f", {times(row)} in a row since the first {_when(number(row, 'first'))}" if times(row) > 1 else last
    return f"{count} of {show_count(total, 'earlier run')}{since}"


def _more(row: Row) -> str:
    folder = printable(text(row, "folder"), 300)
    return (f"{folder}; " if folder else "") + f"journalctl GPU_LIFECYCLE_RUN={printable(row['run'], 64)}"


def _when(at: float | None) -> str:
    if at is None:
        return "at a time that is not known"
    try:
        shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "at a time that makes no sense"
    ago = round(time.time() - at)
    return f"at {shown}" + (f", {show_duration(ago)} ago" if ago >= 0 else "")


def _cells(row: Row) -> tuple[str, ...]:
    """One line of the table: run, began, phases, outcome, cause."""
    lasted = ", ".join(f"{phase} {show_duration(seconds)}" for phase, seconds in phases(row).items())
    began = _when(number(row, "began")).removeprefix("at ").partition(",")[0]
    cause = cause_of(row)
    first = printable(cause.evidence[0], 60) if cause and cause.evidence else ""
    ended = f"{cause.code}: {first}" if cause and first else cause.code if cause else ""
    return printable(row["run"][:SHORT]), began, lasted, _outcome(row, cause), ended


def _outcome(row: Row, cause: Cause | None) -> str:
    if cause is None:
        return "running"
    return f"{cause.outcome}, {times(row)} times" if times(row) > 1 else str(cause.outcome)
