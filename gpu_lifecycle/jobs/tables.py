"""Tables for people, by rich; plain text where standard output is no terminal.

Each table is a function from values to a renderable; ``show`` prints one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gpu_lifecycle.facts import GpuView, Judged, Sight
from gpu_lifecycle.rules.quantity import show_size
from gpu_lifecycle.rules.text import steady

if TYPE_CHECKING:
    from rich.console import RenderableType

COLOURS = {
    "reap": "yellow",
    "conflict": "red",
    "spare": "green",
    "ignore": "dim",
    "ok": "green",
    "bad": "red",
    "warn": "yellow",
    "stopped": "green",
    "failed": "red",
    "refused": "yellow",
    "lost": "red",
}
PIPE_WIDTH = 4000  # no line of a pipe is folded: what reads it counts on one line for each process or GPU
LIMIT = 2000  # characters of one cell


def console() -> Console:
    """Colour and the terminal's width on a terminal; no colour and as wide as it takes in a pipe."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPE_WIDTH, no_color=True)


def show(table: RenderableType, *, clear: bool = False) -> None:
    """Prints it; ``clear``: in the place of what a terminal shows."""
    out = console()
    if clear:
        out.clear()  # which does nothing in a pipe
    out.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=False)
    return table


def cell(value: object, style: str = "") -> Text:
    """A text that is never read as markup, and of which no escape gets out."""
    return Text(steady(str(value), LIMIT), style=style)


def word(text: str) -> Text:
    """One of our own words, in its colour."""
    return cell(text, COLOURS.get(text, ""))


def memory_held(item: Judged) -> str:
    known = [amount for amount in item.memory.values() if amount is not None]
    return show_size(sum(known)) if known else "unknown" if item.memory else "-"


def gpus_held(item: Judged, view: GpuView | None) -> str:
    indices = {gpu.uuid: gpu.label for gpu in view.gpus} if view else {}
    return ",".join(indices.get(uuid, uuid) for uuid in item.gpus) or "-"


def owner_text(item: Judged) -> str:
    return f"{item.owner.kind} {item.owner.name}".strip()


def holders_table(items: Sequence[Judged], view: GpuView, sight: Sight) -> RenderableType:
    """Who holds what, and what would happen to it."""
    table = _table("PID", "USER", "GPUS", "MEMORY", "OWNER", "VERDICT", "RULE", "COMMAND")
    for item in items:
        table.add_row(str(item.process.pid), cell(item.process.user), cell(gpus_held(item, view)), memory_held(item),
                      cell(owner_text(item)), word(str(item.verdict)), item.rule, cell(item.process.command))  # fmt: skip
    limits = [Text.assemble(("sight is partial:", "red"), " ", cell(limit)) for limit in sight.limits]
    return Group(table if items else "no process holds an NVIDIA device", *limits)


def gpus_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Each GPU on a line."""
    table = _table("GPU", "MINOR", "PCI", "NAME", "USED", "TOTAL", "UNEXPLAINED", "HEALTH", "CLAIMED BY", "UUID")
    for row in rows:
        health = row["health"]
        reasons = f" {'; '.join(health['reasons'])}" if health["reasons"] else ""
        label = f"{row['label']}, MIG" if row["divided"] else row["label"]
        table.add_row(label, _or_dash(row["minor"]), cell(row["pci"]), cell(row["name"]), show_size(row["memory_used"]),
                      show_size(row["memory_total"]), show_size(row["memory_unexplained"]),
                      word(health["state"]).append_text(cell(reasons)), cell(", ".join(row["claimed_by"]) or "-"),
                      cell(row["uuid"]))  # fmt: skip
    return table


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def sweep_table(outcome: str, text: str, items: Sequence[Judged], results: Mapping[int, str]) -> RenderableType:
    """Each process of a sweep with its verdict and, where it was reaped, how it ended."""
    table = _table("PID", "USER", "MEMORY", "VERDICT", "RULE", "RESULT", "COMMAND")
    for item in items:
        table.add_row(str(item.process.pid), cell(item.process.user), memory_held(item), word(str(item.verdict)), item.rule,
                      results.get(item.process.pid, "-"), cell(item.process.command))  # fmt: skip
    return Group(*([table] if items else []), cell(f"{outcome}: {text}"))


def runs_table(rows: Sequence[Sequence[str]]) -> RenderableType:
    """Each run on a line: id, when it began, how long its phases were, how it ended and why."""
    table = _table("RUN", "BEGAN", "PHASES", "ENDED", "CAUSE")
    for run, began, phases, ended, cause in rows:
        table.add_row(cell(run), cell(began), cell(phases), word(ended), cell(cause))
    return table
