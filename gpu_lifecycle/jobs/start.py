"""``start``: systemctl start that shows how far it is, until the unit is ready or why it is not.

It queues systemd's own start job and watches it. What it shows, ``status`` shows; what ends it, systemd decides. When it goes
away, the start goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_lifecycle.errors import ConfigError, Exit, UsageError
from gpu_lifecycle.facts import Layout, Phase, UnitName
from gpu_lifecycle.jobs.follow import as_lines, on_terminal, shown_in_place
from gpu_lifecycle.jobs.state import StateFile
from gpu_lifecycle.jobs.status import document
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.system.bus import Bus, UnitState

POLL = 0.5  # seconds
UP = ("active", "reloading")
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


@dataclass(frozen=True, slots=True)
class End:
    """How a start has ended: with which status, and in which words."""

    status: Exit
    text: str
    hint: str = ""


def start(unit: UnitName, layout: Layout) -> int:
    """Starts a unit and shows it until its start has ended. Returns 0, or the status that the start itself ended with.

    Raises UsageError, ConfigError or NotPermittedError where it cannot be started, BlindError where systemd does not answer.
    """
    began = time.monotonic()
    with Bus() as bus:
        before = bus.unit_state(unit.service)
        _must_be_startable(unit, layout, before)
        if before.active in UP:
            print(f"{unit.service} is already active (gpu-lifecycle status {unit.name})")
            return Exit.OK
        known = _runs_before(unit, layout, before)
        job = bus.start(unit.service)
    try:
        end = _watch(unit, layout, job, known)
    except KeyboardInterrupt:
        print(f"{unit.service}: the start goes on. To follow it: gpu-lifecycle status {unit.name} --follow;"
              f" to stop it: systemctl stop {unit.name}")  # fmt: skip
        return INTERRUPTED
    after = show_duration(round(time.monotonic() - began, 1))
    print(f"{unit.service} {end.text} after {after}" if end.status is Exit.OK else f"{unit.service}: {end.text}")
    if end.hint:
        print(f"  {end.hint}")
    return end.status


def _must_be_startable(unit: UnitName, layout: Layout, state: UnitState) -> None:
    """What systemd would say in words of its own, said with the cure; and a unit that is not ours is not started here."""
    if state.load == "masked":
        raise ConfigError(f"cannot start {unit.service}: it is masked", hint=f"systemctl unmask {unit.name}")
    if state.load == "not-found":
        raise UsageError(f"cannot start {unit.service}: it is not installed", hint=f"gpu-lifecycle install {unit.name}")
    if state.load != "loaded":
        text = f"cannot start {unit.service}: systemd cannot use its unit file ({printable(state.load, 40)})"
        raise ConfigError(text, hint=f"systemctl status {unit.name}")
    try:
        os.stat(layout.config(unit))
    except FileNotFoundError:
        text = f"cannot start {unit.service}: it is no managed unit, for it has no config file {layout.config(unit)}"
        raise ConfigError(text, hint=f"gpu-lifecycle config init --output {layout.config(unit)} {unit.name}") from None
    except OSError:
        return  # it cannot be seen by this user; the start itself will tell


def _runs_before(unit: UnitName, layout: Layout, state: UnitState) -> frozenset[str]:
    """The runs that are not this start's: systemd's, and the state file's (systemd forgets a unit that is down)."""
    if state.active == "activating" and "auto-restart" not in state.sub:
        return frozenset()  # a start is under way: this one joins it
    return frozenset((state.invocation_id, str(StateFile.load(layout, unit).document.get("run") or "")))


def _watch(unit: UnitName, layout: Layout, job: int, known: frozenset[str]) -> End:
    """Shows the unit until systemd has no more of our job, then says how it stands. Raises KeyboardInterrupt."""
    with shown_in_place() if on_terminal() else as_lines(_phase) as show:
        while True:
            with Bus() as bus:  # the job first: when it is gone, what is read after it is how it has ended
                going = bus.job(unit.service) == job
                state = bus.unit_state(unit.service)
            item = document(unit, layout)
            show([_of_this_start(item, state) if going else item])
            if not going and state.active != "deactivating":  # a stop takes the job away first, and then its time
                return _ended(unit, layout, state, known)
            time.sleep(POLL)


def _phase(item: Mapping[str, Any]) -> str:
    return str(item["phase"])


def _of_this_start(item: dict[str, Any], state: UnitState) -> dict[str, Any]:
    """The unit's document; until the start has written a word of its own, what stands there is of the run before."""
    active, sub = (item["systemd"] or {}).get("active"), (item["systemd"] or {}).get("sub", "")
    if active in ("inactive", "failed") or "auto-restart" in sub:
        phase, text = "queued", "systemd has queued the start"
    elif active == "activating" and item["run"] != state.invocation_id:
        phase, text = str(Phase.PRE_START), "the start begins"
    else:
        return item
    return item | {"phase": phase, "text": text, "since": None, "progress": None, "eta": None, "gpus": [], "probes": []}


def _ended(unit: UnitName, layout: Layout, state: UnitState, known: frozenset[str]) -> End:
    if state.active in UP:
        return End(Exit.OK, f"is active{'' if on_terminal() else _said(unit, layout)}")
    document = StateFile.load(layout, unit).document
    run = next((run for run in (state.invocation_id, document.get("run")) if run and run not in known), "")
    if not run:
        text = "not started: a unit that it needs has failed, or the job was cancelled"
        return End(Exit.TEMPFAIL, text, f"systemctl status {unit.name}")
    return _failed(unit, document, state, run)


def _said(unit: UnitName, layout: Layout) -> str:
    """What the state file says, in brackets; a terminal shows it already."""
    text = printable(str(StateFile.load(layout, unit).document.get("text") or ""), 200)
    return f" ({text})" if text else ""


def _failed(unit: UnitName, document: dict[str, Any], state: UnitState, run: str) -> End:
    """The run's own status and words, from what it left; systemd's word where it left none."""
    last, account = document.get("last_end") or {}, document.get("account") or {}
    if account.get("run") != run:
        last, account = {}, {}  # of a run before, or already of the next one
    if state.active == "inactive" and state.result == "success":
        text, status = "the start was stopped", Exit.TEMPFAIL
    else:
        status = _status(account, last)
        said = last.get("text") or f"systemd says: {state.result}"
        again = state.active == "activating"
        text = f"not ready (status {status.value}): {printable(str(said), 600)}"
        text += f"; systemd tries again in {show_duration(state.restart)}" if again else ""
    return End(status, text, f"gpu-lifecycle why {unit.name}")


def _status(account: dict[str, Any], last: dict[str, Any]) -> Exit:
    """The status of a refusal; else that of the main process, as the post-stop hook saw it; else "not now"."""
    exited = last.get("exit_status") if last.get("exit_code") == "exited" else None
    for value in (account.get("refusal"), exited):
        if str(value) in [str(each.value) for each in Exit if each > Exit.USAGE]:
            return Exit(int(str(value)))
    return Exit.TEMPFAIL
