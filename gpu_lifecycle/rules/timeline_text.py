"""The picture of a start in plain characters, for a terminal of any kind."""

from __future__ import annotations

from gpu_lifecycle.rules.quantity import show_duration, show_size
from gpu_lifecycle.rules.timeline import Band, Line, Picture, show_tick, ticks

LABEL, VALUE, LEAST = 24, 12, 20  # columns of a row's name, of its value, and of the smallest chart between them
BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*%#"  # from nothing to all, for a terminal that can, and for one that cannot
MOST_LINES = 16


def chart(picture: Picture, width: int, *, unicode: bool = True) -> list[str]:
    """Lines of at most ``width`` columns (60 at least), without the marks: see ``legend``."""
    columns = max(LEAST, width - LABEL - VALUE)
    lines = [_bar(band, picture.span, columns) for band in picture.bands]
    if picture.earlier:
        lines.append(_earlier(picture, columns))
    lines.append(_axis(picture.span, columns))
    lines += [_level(line, picture, columns, BLOCKS if unicode else PLAIN) for line in picture.lines[:MOST_LINES]]
    if len(picture.lines) > MOST_LINES:
        lines.append(f"and {len(picture.lines) - MOST_LINES} more GPUs: --svg shows them")
    return [line.rstrip() for line in lines]


def legend(picture: Picture) -> list[str]:
    """The marks, in their order, and how long earlier starts took."""
    lines = [f"{show_duration(round(mark.at, 1)):>{VALUE}}  {mark.text}" for mark in picture.marks]
    if picture.earlier:
        lines.append(f"earlier starts took {', '.join(show_duration(round(seconds, 1)) for seconds in picture.earlier)}")
    return lines


def _row(label: str, cells: str, value: str) -> str:
    return f"{label[: LABEL - 1]:<{LABEL}}{cells}{value:>{VALUE}}"


def _bar(band: Band, span: float, columns: int) -> str:
    begin = min(int(band.begin / span * columns), columns - 1)
    end = max(begin + 1, round(band.end / span * columns))
    cells = "." * begin + "#" * (end - begin)
    return _row(band.words, f"{cells:<{columns}}"[:columns], show_duration(round(band.end - band.begin, 1)))


def _earlier(picture: Picture, columns: int) -> str:
    """From the shortest to the longest of the earlier starts."""
    low, high = (round(edge(picture.earlier) / picture.span * columns) for edge in (min, max))
    cells = " " * max(0, low - 1) + "~" * max(1, high - low + 1)
    return _row("earlier starts ended", f"{cells:<{columns}}"[:columns], show_duration(round(max(picture.earlier), 1)))


def _axis(span: float, columns: int) -> str:
    cells = [" "] * (columns + VALUE)
    for tick in ticks(span, max(2, columns // 10)):
        text, at = show_tick(tick), round(tick / span * columns)
        if at + len(text) + 1 < len(cells):
            cells[at : at + len(text) + 1] = list(f"|{text}")
    return " " * LABEL + "".join(cells)


def _level(line: Line, picture: Picture, columns: int, blocks: str) -> str:
    """Memory of one GPU, as high as it was at the end of each column's time."""
    most, points, held = picture.top or 1, list(line.points), 0
    cells = []
    for column in range(columns):
        until = (column + 1) / columns * picture.span
        while points and points[0][0] <= until:
            held = points.pop(0)[1]
        cells.append(blocks[-(-held * (len(blocks) - 1) // most)] if until <= picture.end + picture.span / columns else " ")
    return _row(f"memory, GPU {line.gpu}", "".join(cells), show_size(line.points[-1][1]))
