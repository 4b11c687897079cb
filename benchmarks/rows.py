"""A row of the table: what was measured, against what, and whether it is good enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

MB = 1_000_000
SHOWN: dict[str, Callable[[float], str]] = {
    "s": lambda value: f"{value * 1000:.0f} ms" if abs(value) < 1 else f"{value:.2f} s",
    "B": lambda value: f"{value / MB:.1f} MB",
    "%": lambda value: f"{value:.2f} %",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``peer``: the same unit, measured beside it. ``limit`` bounds the figure, ``ratio_limit`` the ratio."""

    what: str
    measured: float
    unit: str
    peer: float | None = None
    limit: float | None = None
    ratio_limit: float | None = None
    detail: str = ""

    @property
    def ratio(self) -> float | None:
        return self.measured / self.peer if self.peer else None

    @property
    def met(self) -> bool | None:
        """None: no goal."""
        if self.ratio_limit is not None:
            return (self.ratio or math.inf) <= self.ratio_limit
        return None if self.limit is None else self.measured < self.limit

    @property
    def goal(self) -> str:
        if self.ratio_limit is not None:
            return f"ratio ≤ {self.ratio_limit:g}"
        return "" if self.limit is None else f"< {self.show(self.limit)}"

    def show(self, value: float | None) -> str:
        return "" if value is None else SHOWN[self.unit](value)

    def line(self) -> str:
        goal = f" (goal {self.goal}: {'met' if self.met else 'missed'})" if self.goal else ""
        beside = f", {self.ratio:.2f} times its peer's {self.show(self.peer)}" if self.ratio is not None else ""
        return f"{self.what}: {self.show(self.measured)}{beside}{goal}" + (f"; {self.detail}" if self.detail else "")

    def json(self) -> dict[str, Any]:
        """Seconds, bytes and percent as plain numbers."""
        names = ("what", "measured", "unit", "peer", "ratio", "goal", "met", "detail")
        return {name: getattr(self, name) for name in names}


def print_table(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="gpu-lifecycle on a test machine: medians, timed inside the machine", title_justify="left")
    table.add_column("what", ratio=1)
    for name in ("measured", "peer", "ratio", "goal"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("met", justify="center")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        what = f"{row.what}\n[dim]{row.detail}[/]" if row.detail else row.what
        table.add_row(what, row.show(row.measured), row.show(row.peer), ratio, row.goal, _word(row.met))
    console.print(table)


def _word(met: bool | None) -> str:
    return {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[met]
