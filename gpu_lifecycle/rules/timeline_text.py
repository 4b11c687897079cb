"""The picture of a start for a terminal: a line for each phase, step and GPU, as wide as there is room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from unicodedata import category, east_asian_width

from gpu_lifecycle.rules.quantity import show_duration, show_size
from gpu_lifecycle.rules.recording import Mark
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.rules.timeline import (
    Band,
    Picture,
    earlier_words,
    gpus_words,
    lasted_words,
    most_words,
    ticks,
    value_at,
)

NARROWEST = 60
NAME, AMOUNT = 25, 11  # columns left and right of the chart
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # more than there can be marks


class Signs:
    """What a chart is drawn with; ``plain`` for a terminal that knows ASCII alone."""

    def __init__(self, *, plain: bool) -> None:
        self.phase, self.step, self.edge, self.unknown = ("#", "=", "|", "?") if plain else ("█", "▒", "│", "?")
        self.levels = " .:-=+*#@" if plain else " ▁▂▃▄▅▆▇█"


def chart(picture: Picture, when: str, width: int, *, plain: bool = False) -> list[str]:
    """The lines of the chart, none longer than ``width`` columns."""
    signs = Signs(plain=plain)
    columns = max(width, NARROWEST) - NAME - AMOUNT - 4
    lines = [_title(picture, when, max(width, NARROWEST))]
    lines += [*_wrapped(picture.ending, width), ""]
    lines += _bands(picture.phases, picture.seconds, columns, signs.phase, signs)
    lines += _bands(picture.steps, picture.seconds, columns, signs.step, signs, "  ")
    lines += _memory(picture, columns, signs)
    lines += _row("", _letters(picture.marks, picture.seconds, columns), "", signs)
    lines += _axis(picture.seconds, columns)
    lettered, room = zip(LETTERS, picture.marks, strict=False), max(width, NARROWEST) - 16
    lines += [f"  {letter}  {_at(mark):>9}  {printable(mark.text, room)}" for letter, mark in lettered]
    lines += ["", *(line for note in _notes(picture) for line in _wrapped(note, width))]
    if plain:
        lines = [line.replace("≤ ", "<=").replace("…", "~") for line in lines]
    return [_cut(line.rstrip(), max(width, NARROWEST)) for line in lines]


def _wrapped(text: str, width: int) -> list[str]:
    """A code such as cuda-oom stays whole."""
    return wrap(text, max(width, NARROWEST), break_on_hyphens=False)


def _title(picture: Picture, when: str, width: int) -> str:
    """A name that is too long is cut, not what comes after it."""
    rest = f", run {picture.run[:8]}{', ' + when if when else ''}"
    return printable(picture.unit, max(16, width - len(rest))) + rest


def _cut(line: str, width: int) -> str:
    """To so many columns: what comes from outside may be twice as wide, or take none (Unicode's tables, as terminals do)."""
    if line.isascii():
        return line[:width]
    for at, character in enumerate(line):
        width -= 0 if category(character) in ("Mn", "Me") else 2 if east_asian_width(character) in "WF" else 1
        if width < 0:
            return line[:at]
    return line


def _row(name: str, cells: str, amount: str, signs: Signs) -> list[str]:
    return [f"{printable(name, NAME):<{NAME}} {signs.edge}{cells}{signs.edge} {printable(amount, AMOUNT)}"]


def _bands(
    bands: Sequence[Band], seconds: float, columns: int, full: str, signs: Signs, indent: str = ""
) -> Iterable[str]:  # fmt: skip
    """One line for each name, in the order in which they began."""
    for name in dict.fromkeys(band.name for band in bands):
        mine = [band for band in bands if band.name == name]
        cells = [" "] * columns
        for band in mine:
            first = min(int(band.began / seconds * columns), columns - 1)
            last = max(first + 1, round(band.ended / seconds * columns))
            cells[first:last] = full * (last - first)
        lasted = "" if name == "ready" else lasted_words(mine).removeprefix(name).strip()
        yield from _row(indent + name, "".join(cells[:columns]), lasted, signs)


def _memory(picture: Picture, columns: int, signs: Signs) -> Iterable[str]:
    """GPUs that look alike share a line."""
    groups: dict[str, list[int]] = {}
    for number, line in enumerate(picture.lines):
        cells = _spark(line.points, picture, columns, signs)
        groups.setdefault(next((other for other in groups if _alike(cells, other, signs.levels)), cells), []).append(number)
    for cells, found in groups.items():
        mine = [picture.lines[number] for number in found]
        yield from _row(gpus_words([line.label for line in mine]), cells, most_words([line.last for line in mine]), signs)
    if picture.spread:
        middle = [(at, None if low is None or high is None else (low + high) / 2) for at, low, high in picture.spread]
        last = next((round(value) for _, value in reversed(middle) if value is not None), None)
        yield from _row("earlier, mean per GPU", _spark(middle, picture, columns, signs), show_size(last), signs)


def _alike(one: str, other: str, levels: str) -> bool:
    """One level apart in a tenth of the cells at most."""
    apart = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    near = all(a in levels and b in levels and abs(levels.index(a) - levels.index(b)) == 1 for a, b in apart)
    return near and len(apart) * 10 <= len(one)


def _spark(points: Sequence[tuple[float, float | None]], picture: Picture, columns: int, signs: Signs) -> str:
    cells = []
    last = points[-1][0] if points else 0.0
    for number in range(columns):
        at = picture.seconds * (number + 0.5) / columns
        amount = value_at(points, at) if at <= last or picture.ready is not None else 0.0
        cells.append(signs.unknown if amount is None else _level(amount / picture.most, signs.levels))
    return "".join(cells)


def _level(part: float, levels: str) -> str:
    """The lowest level is for nothing at all."""
    top = len(levels) - 1
    return levels[min(top, max(1, round(part * top)))] if part > 0 else levels[0]


def _letters(marks: Sequence[Mark], seconds: float, columns: int) -> str:
    """A letter for each mark, in their order; those whose place is taken move on, and back from the right edge."""
    places: list[int] = []
    for mark in marks[:columns]:
        place = min(int(mark.at / seconds * columns), columns - 1)
        places.append(max(place, places[-1] + 1) if places else place)
    edge = columns
    for number in reversed(range(len(places))):
        edge = places[number] = min(places[number], edge - 1)
    cells = [" "] * columns
    for place, letter in zip(places, LETTERS, strict=False):
        cells[place] = letter
    return "".join(cells)


def _at(mark: Mark) -> str:
    return show_duration(round(mark.at, 1))


def _axis(seconds: float, columns: int) -> list[str]:
    room = [" "] * (columns + AMOUNT)
    for at in ticks(seconds, max(3, columns // 10)):
        place = int(at / seconds * columns)
        text = show_duration(at)
        room[place : place + len(text)] = text
    return [" " * (NAME + 2) + "".join(room), ""]


def _notes(picture: Picture) -> list[str]:
    notes = [picture.note] if picture.note else []
    if picture.lines and picture.needs and not picture.note:
        notes.append(f"READY asks for {show_size(picture.needs)} on each GPU.")
    words = earlier_words(picture)
    return [*notes, *([f"{words[0].upper()}{words[1:]}."] if words else [])]
