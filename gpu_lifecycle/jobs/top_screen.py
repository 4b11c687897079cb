"""The screen of ``top``: values in, a renderable out that fits the terminal; and what a key does to what is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpu_lifecycle.facts import Gpu, GpuView, Identity, Judged, OwnerKind, Verdict
from gpu_lifecycle.jobs.glance import Glance
from gpu_lifecycle.jobs.screen import Bar, Item, memory_bar, phase_text, progress, time_left
from gpu_lifecycle.jobs.tables import COLOURS, gpus_held, memory_held, owner_text
from gpu_lifecycle.rules.quantity import show_count, show_duration
from gpu_lifecycle.rules.text import steady

if TYPE_CHECKING:
    from rich.console import RenderableType

GIB = 1 << 30
GPU_ROWS, GPU_COLUMNS = 8, 4  # more GPUs stand beside each other
UNIT_ROWS = 3
HOLDER_ROWS = 3  # at least, where there is any room
LOW = 20  # lines; below it the units get one
FIXED = 6  # lines: the title, three headings, the names of the columns, the keys
KEYS = "q: quit   arrows: choose a holder   r: reap"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the person at the keys has chosen. ``unit``: whose sweep would reap, "" for none. ``go``: it was confirmed."""

    unit: str = ""
    root: bool = False
    holder: Identity | None = None
    asking: bool = False
    go: bool = False
    note: str = ""


def pressed(choice: Choice, key: str, seen: Glance) -> Choice:
    """The choice after a key: ``up``, ``down``, or a letter."""
    if choice.asking:
        yes = key == "y"
        return replace(choice, asking=False, go=yes, note="" if yes else "nothing was done")
    if key in ("up", "down"):
        return replace(choice, holder=_next(choice, 1 if key == "down" else -1, seen.holders), note="")
    return _asked(choice, seen) if key == "r" else replace(choice, note="")


def _next(choice: Choice, step: int, holders: Sequence[Judged]) -> Identity | None:
    at = _place(choice, holders)
    if not holders:
        return None
    return holders[0 if at is None else min(max(at + step, 0), len(holders) - 1)].process.identity


def _place(choice: Choice, holders: Sequence[Judged]) -> int | None:
    return next((at for at, item in enumerate(holders) if item.process.identity == choice.holder), None)


def _asked(choice: Choice, seen: Glance) -> Choice:
    """To reap is offered only for what a sweep would reap; all else gets its reason."""
    at = _place(choice, seen.holders)
    if not choice.root:
        return replace(choice, note="only root may reap: run it with sudo")
    if not choice.unit:
        return replace(choice, note="a sweep is one unit's: say which one, gpu-lifecycle top UNIT")
    if at is None:
        return replace(choice, note="choose a holder first, with the arrow keys")
    item = seen.holders[at]
    if item.verdict is not Verdict.REAP:
        note = f"process {item.process.pid} is not reaped: {item.verdict}, by rule {item.rule}: {item.why}"
        return replace(choice, note=note)
    return replace(choice, asking=True, note="")


def question(choice: Choice, seen: Glance) -> str:
    pids = [item.process.pid for item in seen.holders if item.verdict is Verdict.REAP]
    shown = ", ".join(map(str, pids[:4])) + (f" and {len(pids) - 4} more" if len(pids) > 4 else "")
    return f"y: sweep for {choice.unit}, which ends {show_count(len(pids), 'process')} ({shown}); any other key: no"


def screen(seen: Glance, choice: Choice, height: int, title: str, now: float) -> RenderableType:
    """At most ``height`` lines, none of which is folded. ``now`` in seconds since the epoch."""
    units = _units(seen.units[: UNIT_ROWS if height >= LOW else 1], now)
    room = height - FIXED - units.row_count - (1 if seen.limits else 0)
    gpus = _gpus(seen, min(GPU_ROWS, max(1, room - HOLDER_ROWS)))
    limits = [_line(f"not everything is seen: {'; '.join(seen.limits)}", "red")] if seen.limits else []
    foot = question(choice, seen) if choice.asking else choice.note or KEYS
    parts = [
        _line(title, "bold"),
        *limits,
        _line(f"GPUs ({len(seen.gpus)}{_left_out(seen, gpus)})", "bold dim"),
        gpus,
        _line(f"UNITS ({len(seen.units)})", "bold dim"),
        units,
        *_holders(seen, choice, max(room - gpus.row_count, 1)),
        _line(foot, "bold yellow" if choice.asking else "reverse"),
    ]
    return Group(*parts)


def _line(text: str, style: str = "") -> Text:
    return Text(steady(text, 500), style=style, no_wrap=True, overflow="ellipsis")


def _left_out(seen: Glance, gpus: Table) -> str:
    shown = gpus.row_count * len(gpus.columns) // 3
    return f", the first {shown} shown" if shown < len(seen.gpus) else ""


def _gpus(seen: Glance, most: int) -> Table:
    """On at most so many lines; in columns of three cells."""
    columns = min(GPU_COLUMNS, max(1, math.ceil(len(seen.gpus) / most)))
    rows = min(most, math.ceil(len(seen.gpus) / columns))
    table = Table.grid(padding=(0, 1))
    for _ in range(columns):
        table.add_column(justify="right", no_wrap=True)
        table.add_column()
        table.add_column(justify="right", no_wrap=True)
    for row in range(rows):
        table.add_row(*(part for gpu in seen.gpus[row : rows * columns : rows] for part in _gpu(gpu, seen)))
    return table


def _gpu(gpu: Gpu, seen: Glance) -> tuple[RenderableType, ...]:
    services = {str(item["unit"]) for item in seen.units}
    mine = [item for item in seen.holders if item.owner.kind is OwnerKind.UNIT and item.owner.name in services]
    own = sum(item.memory.get(gpu.uuid) or 0 for item in mine)
    used, total = ("?" if size is None else f"{size / GIB:.0f}" for size in (gpu.used, gpu.total))
    return gpu.label, memory_bar(gpu.used, gpu.total, own), f"{used}/{total} GiB"


def _units(items: Sequence[Item], now: float) -> Table:
    table = Table.grid(padding=(0, 2))
    for narrow in (True, True, True, True, False):
        table.add_column(no_wrap=narrow)
    for item in items:
        share, left = progress(item), time_left(item)
        bar = _short_bar(share) if share is not None else ""
        soon = "" if left is None else f"{show_duration(round(left))} left"
        table.add_row(_line(str(item["unit"])), phase_text(item, now), bar, _line(soon), _line(str(item["text"])))
    return table


def _short_bar(share: float) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=8)
    table.add_column(no_wrap=True)
    table.add_row(Bar(share, 0, 1), f"{int(share * 100)}%")
    return table


def _holders(seen: Glance, choice: Choice, rows: int) -> list[RenderableType]:
    """As many as there is room for, the chosen one among them."""
    at = _place(choice, seen.holders)
    first = max(0, min((at or 0) - rows // 2, len(seen.holders) - rows))
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))
    for name in ("PID", "USER", "GPUS", "MEMORY", "VERDICT", "RULE", "OWNER", "COMMAND"):
        table.add_column(f"  {name}" if name == "PID" else name, no_wrap=name in ("PID", "VERDICT"))
    for number, item in enumerate(seen.holders[first : first + rows], first):
        verdict = Text(str(item.verdict), style=COLOURS.get(str(item.verdict), ""))
        table.add_row(f"{'>' if number == at else ' '} {item.process.pid}", _line(item.process.user), _line(_held(item, seen)),
                      _line(memory_held(item)), verdict, _line(item.rule), _line(owner_text(item)),
                      _line(item.process.command), style="reverse" if number == at else "")  # fmt: skip
    return [_line(f"HOLDERS ({len(seen.holders)})", "bold dim"), table]


def _held(item: Judged, seen: Glance) -> str:
    return gpus_held(item, GpuView(seen.gpus))
