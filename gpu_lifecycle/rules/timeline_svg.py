"""The picture of a start as SVG: one file without references, for a browser, a ticket, a page of paper in grey.

Its background is drawn, so that it reads the same on a dark page. All text from outside is made safe twice: printable, and
escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from statistics import median
from unicodedata import east_asian_width

from gpu_lifecycle.rules.quantity import show_duration, show_size
from gpu_lifecycle.rules.recording import Mark
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.rules.timeline import (
    Band,
    Line,
    Picture,
    earlier_words,
    gpus_words,
    lasted_words,
    most_words,
    size_ticks,
    ticks,
)

WIDTH, LEFT, RIGHT = 1000, 84, 830
PLOT = 260  # high
LANE = 16  # a line of marks
HEAD = 62
BAND, STEP = 22, 15
CHARACTER = 6.6  # wide at 11 px, on the safe side
IDEOGRAPH = 11.5  # ... of those that are as wide as high
NAME = 60  # characters of a unit's name
APART = 0.08  # of the highest, from most GPUs
SHORT = 48  # characters of a mark's text
FONT = "DejaVu Sans, Liberation Sans, Arial, sans-serif"
INK, FAINT, PAPER = "#1a1a1a", "#595959", "#ffffff"
# Of clearly different lightness beside each other; each bears its name as well.
FILLS = {"pre-start": "#a8a8a8", "loading": "#c3d7ea", "warming": "#d8a650", "ready": "#d8f0d8"}
OTHER_FILL = "#b87868"
STEP_FILL = "#dbe3ec"
STROKES = ("#12457f", "#a03c00", "#1f6b25", "#5b1584", "#000000", "#005a50", "#861717", "#574038")
DASHES = ("", "7 3", "2 2", "9 3 2 3")
HALO = f' stroke="{PAPER}" stroke-width="3" paint-order="stroke"'


class Frame:
    """Where a time and a size lie in the picture."""

    def __init__(self, picture: Picture, lanes: int) -> None:
        self.seconds = picture.seconds
        self.sizes = size_ticks(picture.most, 5)
        self.bands = HEAD + lanes * LANE + 6
        self.steps = self.bands + BAND + 2
        self.rows = list(dict.fromkeys(step.name for step in picture.steps))
        self.top = self.steps + STEP * len(self.rows) + (6 if self.rows else 4)
        self.bottom = self.top + (PLOT if picture.lines or picture.spread else 24)

    def x(self, at: float) -> float:
        return LEFT + (RIGHT - LEFT) * min(max(at / self.seconds, 0.0), 1.0)

    def y(self, size: float) -> float:
        return self.bottom - (self.bottom - self.top - 8) * size / self.sizes[-1]


def svg(picture: Picture, when: str = "") -> str:
    """The whole file. ``when`` is the time of the run's beginning, in words."""
    placed = _lanes(picture.marks, picture.seconds)
    frame = Frame(picture, max((lane for _, lane, _ in placed), default=-1) + 1)
    foot = _foot(picture)
    height = frame.bottom + 30 + 17 * len(foot)
    title = f"{printable(picture.unit, NAME)}: run {picture.run[:8]}{', ' + when if when else ''}"
    body = [
        *_head(picture, title),
        *_tint(picture, frame),
        *_grid(picture, frame),
        *_mark_lines(placed, frame),
        *_bands(picture, frame),
        *_spread(picture, frame),
        *(part for number, line in enumerate(picture.lines) for part in _line(line, number, frame)),
        *_labels(picture.lines, frame),
        *_apart(picture, frame),
        *_mark_words(placed, frame),
        *(_text(LEFT, frame.bottom + 38 + 17 * number, line, fill=FAINT) for number, line in enumerate(foot)),
    ]
    open_tag = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        f' role="img" font-family="{FONT}" font-size="11">'
    )
    said = f"{picture.ending}. {lasted_words(picture.phases)}"
    about = [f"<title>{escape(title)}</title>", f"<desc>{escape(printable(said, 500))}</desc>"]
    paper = f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>'
    return "\n".join([open_tag, *about, paper, *body, "</svg>\n"])


def _text(x: float, y: float, text: str, *, fill: str = INK, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{more}>{escape(text)}</text>'


def _head(picture: Picture, title: str) -> Iterable[str]:
    yield _text(16, 26, title, more=' font-size="16" font-weight="bold"')
    lasted = lasted_words([band for band in picture.phases if band.name != "ready"])
    yield _text(16, 46, printable(picture.ending + (f"  ({lasted})" if lasted else ""), 150), more=' font-size="12"')


def _tint(picture: Picture, frame: Frame) -> Iterable[str]:
    """The phases again, faintly, behind the memory."""
    for band in picture.phases:
        x, wide = frame.x(band.began), frame.x(band.ended) - frame.x(band.began)
        fill, high = FILLS.get(band.name, OTHER_FILL), frame.bottom - frame.top
        yield f'<rect x="{x:.1f}" y="{frame.top}" width="{wide:.1f}" height="{high}" fill="{fill}" fill-opacity="0.22"/>'


def _bands(picture: Picture, frame: Frame) -> Iterable[str]:
    for band in picture.phases:
        wide = frame.x(band.ended) - frame.x(band.began)
        yield _bar(band, frame, frame.bands, BAND, FILLS.get(band.name, OTHER_FILL))
        shown = next((text for text in (_lasted(band), band.name) if _wide(text) * 1.08 + 6 < wide), "")
        if shown:
            yield _text(frame.x(band.began) + 5, frame.bands + BAND / 2 + 4, shown, more=' font-weight="bold"')
    for number, name in enumerate(frame.rows):
        mine = [step for step in picture.steps if step.name == name]
        y = frame.steps + STEP * number
        for step in mine:
            yield _bar(step, frame, y, STEP - 2, STEP_FILL)
        yield _step_name(mine, frame, y + STEP - 5)


def _bar(band: Band, frame: Frame, y: float, high: float, fill: str) -> str:
    x, wide = frame.x(band.began), frame.x(band.ended) - frame.x(band.began)
    look = f'fill="{fill}" stroke="#808080" stroke-width="0.5"'
    inside = f"<title>{escape(_lasted(band))}</title>"
    return f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{high}" {look}>{inside}</rect>'


def _lasted(band: Band) -> str:
    """The picture ends, ready goes on."""
    return band.name if band.name == "ready" else f"{band.name}  {show_duration(round(band.ended - band.began, 1))}"


def _step_name(steps: Sequence[Band], frame: Frame, y: float) -> str:
    """In its bar, where there is room; else right of it, or left of it at the right edge."""
    words = printable(lasted_words(steps), SHORT)
    begin, end, wide = frame.x(steps[0].began), frame.x(steps[-1].ended), _wide(words) + 8
    if wide < frame.x(steps[0].ended) - begin:
        return _text(begin + 5, y, words)
    if end + wide < WIDTH - 8:
        return _text(end + 5, y, words, more=HALO)
    return _text(begin - 5, y, words, more=f'{HALO} text-anchor="end"')


def _wide(text: str) -> float:
    """About so many pixels at 11 px, rather too many than too few."""
    return sum(IDEOGRAPH if east_asian_width(character) in "WF" else CHARACTER for character in text)


def _grid(picture: Picture, frame: Frame) -> Iterable[str]:
    for at in ticks(picture.seconds, 9):
        x = frame.x(at)
        yield f'<line x1="{x:.1f}" y1="{frame.top}" x2="{x:.1f}" y2="{frame.bottom + 4}" stroke="#c4c4c4" stroke-width="0.6"/>'
        yield _text(x, frame.bottom + 17, show_duration(at), fill=FAINT, more=' text-anchor="middle"')
    yield f'<line x1="{LEFT}" y1="{frame.bottom}" x2="{RIGHT}" y2="{frame.bottom}" stroke="{INK}"/>'
    if not (picture.lines or picture.spread):
        return
    for size in frame.sizes:
        y = frame.y(size)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#c4c4c4" stroke-width="0.6"/>'
        yield _text(LEFT - 8, y + 4, show_size(size) if size else "0", fill=FAINT, more=' text-anchor="end"')
    if picture.lines and picture.needs:
        y = frame.y(picture.needs)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="{FAINT}" stroke-dasharray="1 3"/>'


def _spread(picture: Picture, frame: Frame) -> Iterable[str]:
    if not picture.spread:
        return
    look = 'fill="#707070" fill-opacity="0.28" stroke="#707070" stroke-opacity="0.4"'
    part: list[tuple[float, float, float]] = []
    for at, low, high in (*picture.spread, (0.0, None, None)):
        if low is not None and high is not None:
            part.append((frame.x(at), frame.y(low), frame.y(high)))
            continue
        there, back = [f"{x:.1f},{top:.1f}" for x, _, top in part], [f"{x:.1f},{base:.1f}" for x, base, _ in reversed(part)]
        if part:
            yield f'<polygon points="{" ".join(there + back)}" {look}/>'
        part = []
    for run in picture.earlier:
        if run.ready <= picture.seconds:
            x, y = frame.x(run.ready), frame.bottom
            yield f'<path d="M{x:.1f} {y - 1}l-4 -7h8z" fill="#707070"><title>READY of an earlier run</title></path>'


def _line(line: Line, number: int, frame: Frame) -> Iterable[str]:
    """Its parts between the times at which nothing is known."""
    stroke, dash = STROKES[number % len(STROKES)], DASHES[(number + number // len(STROKES)) % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    part: list[str] = []
    for at, size in (*line.points, (0.0, None)):
        if size is not None:
            part.append(f"{frame.x(at):.1f},{frame.y(size):.1f}")
            continue
        if len(part) == 1:
            x, y = part[0].split(",")
            yield f'<circle cx="{x}" cy="{y}" r="1.8" fill="{stroke}"/>'
        elif part:
            yield f'<polyline points="{" ".join(part)}" fill="none" stroke="{stroke}" stroke-width="1.7"{dashed}/>'
        part = []


def _labels(lines: Sequence[Line], frame: Frame) -> Iterable[str]:
    """At the right end of the lines; those that end beside each other share one."""
    ends = sorted(((frame.y(line.last), number, line) for number, line in enumerate(lines) if line.last is not None))
    groups: list[list[tuple[float, int, Line]]] = []
    for end in ends:
        if groups and end[0] - groups[-1][0][0] < 13:
            groups[-1].append(end)
        else:
            groups.append([end])
    floor = float(frame.top)
    for group in groups:
        y = max(sum(item[0] for item in group) / len(group) + 4, floor)
        floor = y + 13
        stroke = STROKES[group[0][1] % len(STROKES)] if len(group) == 1 else INK
        words = gpus_words([item[2].label for item in group])
        yield _text(RIGHT + 8, y, f"{printable(words, 14)} {most_words([item[2].last for item in group])}", fill=stroke)


def _apart(picture: Picture, frame: Frame) -> Iterable[str]:
    """The name of a GPU that went another way than most, where it lay farthest from them; not where many did."""
    found = []
    middle = [median(here) for here in _columns(picture)]
    for number, line in enumerate(picture.lines if len(picture.lines) > 2 else ()):
        pairs = zip(line.points, middle, strict=True)
        away = [(abs(size - usual), at, size) for (at, size), usual in pairs if size is not None]
        far = max(away, default=(0.0, 0.0, 0))
        if far[0] > APART * picture.most:
            found.append((number, line, far))
    for number, line, (_, at, size) in found if len(found) <= 3 else ():
        stroke = STROKES[number % len(STROKES)]
        yield _text(frame.x(at) + 6, frame.y(size) + 14, gpus_words([line.label]), fill=stroke, more=HALO)


def _columns(picture: Picture) -> list[list[int]]:
    """What all GPUs held at each of the points, which are at the same times for all; 0 where nobody knows."""
    points = zip(*(line.points for line in picture.lines), strict=True)
    return [[size for _, size in here if size is not None] or [0] for here in points]


def _lanes(marks: Sequence[Mark], seconds: float) -> list[tuple[Mark, int, bool]]:
    """Each mark with the lane that its text goes into, so that no two overlap, and whether the text lies left of its time."""
    ends: list[list[tuple[float, float]]] = []
    placed = []
    for mark in marks:
        x = LEFT + (RIGHT - LEFT) * min(mark.at / seconds, 1.0)
        wide = _wide(_said(mark)) + CHARACTER + 6
        left = x + wide > WIDTH - 8
        begin, end = (x - wide, x) if left else (x, x + wide)
        lane = next((n for n, taken in enumerate(ends) if all(end < a or begin > b for a, b in taken)), len(ends))
        if lane == len(ends):
            ends.append([])
        ends[lane].append((begin, end))
        placed.append((mark, lane, left))
    return placed


def _said(mark: Mark) -> str:
    return f"{printable(mark.text, SHORT)}, {show_duration(round(mark.at, 1))}"


def _mark_lines(placed: Sequence[tuple[Mark, int, bool]], frame: Frame) -> Iterable[str]:
    for mark, lane, _ in placed:
        x, y = frame.x(mark.at), HEAD + lane * LANE
        look = 'stroke-width="2"' if mark.word == "ready" else 'stroke-dasharray="4 2"'
        yield f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{frame.bottom}" stroke="{INK}" stroke-opacity="0.75" {look}/>'


def _mark_words(placed: Sequence[tuple[Mark, int, bool]], frame: Frame) -> Iterable[str]:
    """On paper of their own: a text may lie over the line of another."""
    for mark, lane, left in placed:
        x, y = frame.x(mark.at), HEAD + lane * LANE + 10
        bold = ' font-weight="bold"' if mark.word in ("ready", "end") else ""
        wide = _wide(_said(mark))
        yield f'<rect x="{x - wide - 3 if left else x + 3:.1f}" y="{y - 10}" width="{wide:.1f}" height="13" fill="{PAPER}"/>'
        anchor = "end" if left else "start"
        yield _text(x - 4 if left else x + 4, y, _said(mark), more=f'{bold} text-anchor="{anchor}"')


def _foot(picture: Picture) -> list[str]:
    """What the picture does not say by itself."""
    unsaid = [picture.note] if picture.note else []
    if picture.lines and not picture.note:
        dotted = f"; dotted: the {show_size(picture.needs)} that READY asks for" if picture.needs else ""
        unsaid.append(f"Lines: memory of the unit's own processes on each claimed GPU{dotted}.")
    words = earlier_words(picture)
    if words and not picture.spread:
        unsaid.append(f"{words[0].upper()}{words[1:]}.")
    elif words:
        many = f"Grey band: {words} (triangles); least and most of their mean per GPU."
        unsaid.append(many if len(picture.earlier) > 1 else f"Grey line: {words} (triangle); its mean per GPU.")
    return [printable(line, 160) for line in unsaid]
