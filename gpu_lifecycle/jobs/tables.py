"""Tables for people, by rich; plain text where standard output is no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpu_lifecycle.facts import GpuView, Judged, Sight
from gpu_lifecycle.rules.quantity import show_size

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


def console() -> Console:
    """Colour and the terminal's width on a terminal; no colour and as wide as it takes in a pipe."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPE_WIDTH, no_color=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=False)
    return table


def _word(word: str) -> str:
    colour = COLOURS.get(word)
    return f"[{colour}]{word}[/]" if colour else escape(word)


def _memory(item: Judged) -> str:
    known = [amount for amount in item.memory.values() if amount is not None]
    return show_size(sum(known)) if known else "unknown" if item.memory else "-"


def _gpus(item: Judged, view: GpuView | None) -> str:
    indices = {gpu.uuid: str(gpu.index) for gpu in view.gpus} if view else {}
    return ",".join(indices.get(uuid, uuid) for uuid in item.gpus) or "-"


def holders_table(items: Sequence[Judged], view: GpuView, sight: Sight) -> None:
    """Who holds what, and what would happen to it."""
    out = console()
    table = _table("PID", "USER", "GPUS", "MEMORY", "OWNER", "VERDICT", "RULE", "COMMAND")
    for item in items:
        owner = f"{item.owner.kind} {item.owner.name}".strip()
        table.add_row(str(item.process.pid), escape(item.process.user), _gpus(item, view), _memory(item), escape(owner),
                      _word(str(item.verdict)), item.rule, escape(item.process.command))  # fmt: skip
    out.print(table if items else "no process holds an NVIDIA device")
    for limit in sight.limits:
        out.print(f"[red]sight is partial:[/] {escape(limit)}")


def gpus_table(rows: Sequence[Mapping[str, Any]], *, clear: bool = False) -> None:
    """Each GPU on a line; ``clear``: in the place of what a terminal shows."""
    table = _table("GPU", "MINOR", "PCI", "NAME", "USED", "TOTAL", "UNEXPLAINED", "HEALTH", "CLAIMED BY", "UUID")
    for row in rows:
        health = row["health"]
        reasons = f" {escape('; '.join(health['reasons']))}" if health["reasons"] else ""
        index = f"{row['index']}, MIG" if row["instance_of"] or row["divided"] else str(row["index"])
        table.add_row(index, _or_dash(row["minor"]), row["pci"], escape(row["name"]), show_size(row["memory_used"]),
                      show_size(row["memory_total"]), show_size(row["memory_unexplained"]), _word(health["state"]) + reasons,
                      escape(", ".join(row["claimed_by"]) or "-"), escape(row["uuid"]))  # fmt: skip
    out = console()
    if clear:
        out.clear()  # which does nothing in a pipe
    out.print(table)


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def sweep_table(outcome: str, text: str, items: Sequence[Judged], results: Mapping[int, str]) -> None:
    """Each process of a sweep with its verdict and, where it was reaped, how it ended."""
    out = console()
    table = _table("PID", "USER", "MEMORY", "VERDICT", "RULE", "RESULT", "COMMAND")
    for item in items:
        table.add_row(str(item.process.pid), escape(item.process.user), _memory(item), _word(str(item.verdict)), item.rule,
                      results.get(item.process.pid, "-"), escape(item.process.command))  # fmt: skip
    if items:
        out.print(table)
    out.print(f"{escape(outcome)}: {escape(text)}")


def runs_table(rows: Sequence[Sequence[str]]) -> None:
    """Each run on a line: id, when it began, how long its phases were, how it ended and why."""
    table = _table("RUN", "BEGAN", "PHASES", "ENDED", "CAUSE")
    for run, began, phases, ended, cause in rows:
        table.add_row(escape(run), began, phases, _word(ended), escape(cause))
    console().print(table)
