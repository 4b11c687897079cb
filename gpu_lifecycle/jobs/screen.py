"""What a unit and its GPUs look like on a terminal: values in, rich's renderables out. Nothing here looks or prints.

Every text goes through ``steady`` into a ``Text``: it is never read as markup, and no escape of it gets out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.quantity import show_duration, show_size
from gpu_lifecycle.rules.report import label_of
from gpu_lifecycle.rules.text import steady

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

Item = Mapping[str, Any]

BAR_MIN, BAR_MAX = 8, 40
OWN, OTHER, FREE = ("█", "▒", "·"), ("#", "+", "."), ("green", "magenta", "dim")
COLOURS = {
    Phase.READY: "bold green",
    Phase.FAILED: "bold red",
    Phase.SUSPECT: "bold yellow",
    Phase.DOWN: "dim",
}
UNDER_WAY = "bold cyan"


class Bar:
    """A bar of parts that differ in shape, not in colour alone: this unit's, others', and what is left of ``total``."""

    def __init__(self, own: float, others: float, total: float) -> None:
        whole = max(total, own + others)
        self.shares = (own / whole, others / whole) if whole > 0 else (0.0, 0.0)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        shapes = OTHER if options.ascii_only else OWN
        for shape, colour, count in zip(shapes, FREE, self._cells(min(options.max_width, BAR_MAX)), strict=True):
            yield Segment(shape * count, Style.parse(colour))

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(BAR_MIN, options.max_width), min(BAR_MAX, options.max_width))

    def _cells(self, width: int) -> tuple[int, int, int]:
        """Something is never shown as nothing."""
        own, others = (max(round(share * width), 1 if share else 0) for share in self.shares)
        own = min(own, width - (1 if others else 0))
        others = min(others, width - own)
        return own, others, width - own - others


def said(value: object, limit: int = 400, style: str = "") -> Text:
    """A text from outside, made safe."""
    return Text(steady(str(value), limit), style=style, overflow="fold")


def unit_block(item: Item, now: float) -> RenderableType:
    """All that ``status`` knows of a unit; ``now`` in seconds since the epoch."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for label, value in _rows(item, now):
        rows.add_row(label, value)
    return Group(said(item["unit"], 100, "bold"), rows)


def _rows(item: Item, now: float) -> Iterator[tuple[str, RenderableType]]:
    yield "  phase", phase_text(item, now)
    yield "", said(item["text"])
    share = progress(item)
    if share is not None:
        yield "  progress", _progress_row(share)
    if (left := time_left(item)) is not None:
        yield "  left", Text(f"about {show_duration(round(left))}")
    if systemd := item["systemd"]:
        yield "  systemd", said(f"{systemd['active']} ({systemd['sub']}), {systemd['restarts']} automatic restarts")
    if gpus := [gpu for gpu in item["gpus"] if isinstance(gpu, dict)]:
        yield "  GPUs", gpu_rows(gpus)
    if probes := [probe for probe in item["probes"] if isinstance(probe, dict)]:
        yield "  probes", probe_rows(probes)
    end = item["last_end"]
    if isinstance(end, dict):
        yield "  last end", said(f"{end.get('reason')}: {end.get('text')}")


def phase_text(item: Item, now: float) -> Text:
    """The phase in its colour, and for how long."""
    phase = str(item["phase"])
    since = amount(item["since"])
    age = f" for {show_duration(max(0, round(now - since)))}" if since is not None else ""
    style = COLOURS.get(Phase(phase), UNDER_WAY) if phase in list(Phase) else ""
    return Text.assemble((steady(phase, 20), style), age)


def progress(item: Item) -> float | None:
    """How far a load is, 0 to 1; None where there is no load, or no such number."""
    share = amount(item["progress"])
    return share if item["phase"] in (Phase.LOADING, Phase.WARMING) and share is not None and share <= 1 else None


def time_left(item: Item) -> float | None:
    """Seconds; None where they are not known, or make no sense."""
    left = amount(item["eta"])
    return left if progress(item) is not None and left is not None and left < 1e6 else None


def _progress_row(share: float) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_column()
    row.add_column(no_wrap=True)
    row.add_row(Bar(share, 0, 1), f"{int(share * 100)}%")
    return row


def gpu_rows(gpus: Sequence[Item]) -> Table:
    """A line a GPU. ``memory_own`` is this unit's part of ``memory_used``; what is not known gets no bar."""
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for name, justify in (("GPU", "right"), ("MEMORY", "left"), ("USED", "right"), ("OF", "right"), ("THIS UNIT'S", "right")):
        # Where there is no room for all, rich takes it from columns that may wrap: from the bars.
        table.add_column(name, justify=justify, no_wrap=name != "MEMORY")  # type: ignore[arg-type]  # a word that rich takes
    for gpu in gpus:
        used, total, own = (size(gpu.get(key)) for key in ("memory_used", "memory_total", "memory_own"))
        table.add_row(label_of(gpu), memory_bar(used, total, own), show_size(used), show_size(total),
                      "-" if own is None else show_size(own))  # fmt: skip
    return table


def memory_bar(used: int | None, total: int | None, own: int | None) -> RenderableType:
    if used is None or not total:
        return Text("unknown", style="dim")
    mine = min(own or 0, used)
    return Bar(mine, used - mine, total)


def probe_rows(probes: Sequence[Item]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True, justify="right")
    for probe in probes:
        style = {True: "green", False: "red"}.get(probe["ok"], "") if isinstance(probe.get("ok"), bool) else ""
        seconds = amount(probe.get("seconds"))
        table.add_row(said(probe.get("probe"), 20, style), said(probe.get("text"), 200),
                      "" if seconds is None else show_duration(seconds))  # fmt: skip
    return table


def amount(value: object) -> float | None:
    """A number that is not negative and not absurd; None for anything else. The state file is the unit's user's to write."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15 else None


def size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None
