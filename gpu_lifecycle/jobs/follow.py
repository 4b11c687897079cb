"""Following a unit: in its place on a terminal, a line for each change in a pipe."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.jobs.printed import print_json
from gpu_lifecycle.rules.text import printable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rich.console import Console

Item = Mapping[str, Any]
STDIN = 0
Show = Callable[[Sequence[Item]], None]


def on_terminal() -> bool:
    """Whether standard output is a terminal that can draw over what it shows."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def shown_in_place() -> AbstractContextManager[Show]:
    """For use in ``with``: shows units over what it showed before; the last of it stays."""
    from gpu_lifecycle.jobs.tables import console

    return _live(console())


@contextmanager
def _live(out: Console) -> Iterator[Show]:
    from rich.console import Group
    from rich.live import Live

    from gpu_lifecycle.jobs.screen import unit_block
    from gpu_lifecycle.system.terminal import ended_in_order, keys_unseen

    # Without a thread of its own: what is drawn is drawn here, and nowhere else.
    drawn = Live(console=out, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with ended_in_order(), keys_unseen(STDIN), drawn as live:
        yield lambda items: live.update(Group(*(unit_block(item, time.time()) for item in items)), refresh=True)


def as_lines(line: Callable[[Item], str], *, named: bool = False, as_json: bool = False) -> AbstractContextManager[Show]:
    """For use in ``with``: prints ``line`` of a unit whenever it has changed; ``named``: with the unit's name before it.

    ``as_json``: prints the unit's whole document then, on one line.
    """
    last: dict[str, str] = {}

    def show(items: Sequence[Item]) -> None:
        for item in items:
            if (text := line(item)) == last.get(item["unit"]):
                continue
            last[item["unit"]] = text
            if as_json:
                print_json(dict(item), indent=None)
            else:
                print(f"{item['unit']}: {text}" if named else text, flush=True)

    return nullcontext(show)


def phase_and_text(item: Item) -> str:
    return f"{item['phase']}: {printable(str(item['text']), 400)}"
