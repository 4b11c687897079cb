"""``top``: GPUs, holders and units on the whole screen. It only looks; what it reaps, it reaps by the sweep of ``sweep``."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import Exit, LifecycleError, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.follow import STDIN, on_terminal
from gpu_lifecycle.jobs.glance import Watcher
from gpu_lifecycle.jobs.printed import managed_units
from gpu_lifecycle.system.terminal import ended_in_order, keys_unseen, woken

if TYPE_CHECKING:
    from gpu_lifecycle.jobs.top_screen import Choice

REDRAW = 1.0  # seconds; ages and times go on between two looks
INSTEAD = "gpu-lifecycle holders, gpu-lifecycle gpus --watch, gpu-lifecycle status --follow"


def top(unit: UnitName | None, layout: Layout) -> int:
    """Shows it until ``q``. Raises UsageError where there is no terminal that can be drawn on, and what a sweep raises."""
    if not (on_terminal() and os.isatty(STDIN)):
        raise UsageError("cannot show top: it needs a terminal that can be drawn on", hint=f"use {INSTEAD}")
    from gpu_lifecycle.jobs.top_screen import Choice

    units = managed_units(layout)
    if unit and unit not in units:
        raise UsageError(f"cannot show top for {unit.service}: it has no config file", hint=layout.config(unit))
    unit = unit or (units[0] if len(units) == 1 else None)  # as holders does
    choice = Choice(unit.name if unit else "", os.geteuid() == 0)
    while (choice := _shown(unit, layout, choice)).go and unit:
        choice = Choice(choice.unit, choice.root, note=_sweep(unit, layout))
    return Exit.OK


def _shown(unit: UnitName | None, layout: Layout, choice: Choice) -> Choice:
    """Draws until it is to end (``go`` is False) or to reap (True). The terminal is given back either way."""
    from rich.live import Live

    from gpu_lifecycle.jobs.tables import console
    from gpu_lifecycle.jobs.top_screen import pressed, screen

    out, asked = console(), False
    drawn = Live(console=out, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with (
        ended_in_order(),
        keys_unseen(STDIN, at_once=True),
        woken(STDIN) as keys,
        drawn as live,
        Watcher(unit, layout, keys.wake) as watcher,
    ):
        while not choice.go:
            if watcher.failure:
                raise watcher.failure
            title = f"gpu-lifecycle top - {socket.gethostname()} - {time.strftime('%H:%M:%S')}"
            live.update(screen(watcher.latest, choice, out.height, title, time.time()), refresh=True)
            if choice.asking and not asked:
                keys.forget()  # only what is pressed once the question stands there answers it
            asked = choice.asking
            for key in keys.read(REDRAW):
                if key == "q" and not choice.asking:
                    return choice
                choice = pressed(choice, key, watcher.latest)
                if choice.asking or choice.go:
                    break
    return choice


def _sweep(unit: UnitName, layout: Layout) -> str:
    """The sweep of ``gpu-lifecycle sweep``, on the plain terminal: it judges anew, shows its waits, and Ctrl-C ends it."""
    from gpu_lifecycle.jobs.inspect import sweep

    print(f"gpu-lifecycle sweep {unit.name}", flush=True)
    try:
        status = sweep(unit, layout, as_json=False, dry_run=False)
    except LifecycleError as error:
        print(f"gpu-lifecycle: {error}", file=sys.stderr)
        status = int(error.status)
    print(f"\nThe sweep has ended with status {int(status)}. Enter: back to top", flush=True)
    sys.stdin.readline()
    return f"the sweep for {unit.name} has ended with status {int(status)}"
