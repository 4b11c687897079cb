"""What every table looks like, at the widths people have; and that no text from outside breaks one.

The pictures lie in tests/snapshots. GPU_LIFECYCLE_SNAPSHOTS=renew writes them anew: look at the difference before it is kept.
"""

from __future__ import annotations

import os
import random
import re
import unicodedata
from pathlib import Path

import pytest

from tests.drawn import DRAWINGS, drawn

FOLDER = Path(__file__).parent / "snapshots"
RENEW = os.environ.get("GPU_LIFECYCLE_SNAPSHOTS") == "renew"
WIDTHS = (80, 120)
OUR_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
STRINGS, AT_ONCE = 3000, 50

# What breaks terminals, markup and widths: controls, escapes, bidi, what joins and what has no width, half a character.
NASTY = [
    "\x1b[2J", "\x1b]0;owned\x07", "\x1b[31m", "\x9b2J", "\x1bP+q\x1b\\", "\r", "\n", "\t", "\b\b\b", "\0", "\x7f", "\x85",
    "\u2028", "\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\ud800", "\udcff", "\ufe0f", "\u0301" * 9, "\u3164", "\xa0",
    "漢字", "한글", "Ａ", "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "❤\ufe0f", "ﷺ", "꧅", "[red]", "[/]", "[link=file:///x]y[/link]",
    ":bomb:", "\\[", "\\", "%s", "{0}", "a" * 90, "漢" * 30, "é", "कि", "a b c ", "-", "",
]  # fmt: skip


def hostile(seed: int) -> list[str]:
    chosen = random.Random(seed)  # the same ones in each run
    return ["".join(chosen.choices(NASTY, k=chosen.randint(1, 4))) for _ in range(AT_ONCE)]


def cells(line: str) -> int:
    """The columns that a line takes, by Unicode's own tables: what is wide takes two, what combines takes none."""
    return sum(
        0 if unicodedata.category(each) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in line
    )


def cases() -> dict[str, tuple[str, int, bool]]:
    found = [(name, width, colour) for name in DRAWINGS for width in WIDTHS for colour in (False, True)]
    return {f"{name}-{width}.{'ansi' if colour else 'txt'}": (name, width, colour) for name, width, colour in found}


@pytest.mark.parametrize("file", cases())
def test_a_table_looks_like_its_picture(file: str) -> None:
    name, width, colour = cases()[file]
    shown = drawn(DRAWINGS[name](()), width, colour=colour)
    if RENEW:
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / file).write_text(shown, encoding="utf-8")
    assert (FOLDER / file).read_text(encoding="utf-8") == shown
    assert max(map(cells, OUR_COLOURS.sub("", shown).split("\n"))) <= width
    assert ("\x1b" in shown) is colour


def test_no_picture_is_left_of_a_table_that_is_gone() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == set(cases())


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_text_from_outside_breaks_a_table(name: str) -> None:
    for seed in range(STRINGS // AT_ONCE):
        width = (80, 120, 50)[seed % 3]
        shown = OUR_COLOURS.sub("", drawn(DRAWINGS[name](hostile(seed)), width, colour=True))
        shown.encode()  # no half characters
        bad = {each for each in shown if not each.isprintable() and each != "\n"}
        assert bad == set(), f"seed {seed}: {bad!r}"
        wide = [line for line in shown.split("\n") if cells(line) > width]
        assert wide == [], f"seed {seed}"


def test_markup_and_emoji_names_stay_as_they_are() -> None:
    shown = drawn(DRAWINGS["holders"](()), 300)
    assert "/opt/[red]x[/] :bomb:" in shown


def test_bars_have_another_shape_where_there_is_no_unicode() -> None:
    import io

    from rich.console import Console

    file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    Console(file=file, width=80, _environ={}).print(DRAWINGS["status"](()))
    file.seek(0)
    assert "#++..." in file.read()
