"""The picture of a start as SVG: plain shapes and text, nothing from elsewhere, readable in grey."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from gpu_lifecycle.rules.curve import Mark
from gpu_lifecycle.rules.quantity import show_duration, show_size
from gpu_lifecycle.rules.timeline import Picture, show_tick, ticks

WIDTH, LEFT, RIGHT = 1000, 190, 90
ROW, BAR = 24, 16
PLOT = 200
GREYS = ("#555", "#777", "#999", "#444", "#888", "#666")
DASHES = ("none", "6 3", "2 3", "8 3 2 3")
STYLE = 'font-family="DejaVu Sans, Verdana, sans-serif" font-size="12"'


def draw(picture: Picture, when: str = "") -> str:
    """A whole SVG document; ``when`` is the date that its heading shows."""
    chart = _Chart(picture)
    body = [*chart.heading(when), *chart.earlier(), *chart.axis(), *chart.bands(), *chart.memory(), *chart.marks()]
    size = f'viewBox="0 0 {WIDTH} {chart.height:.0f}" width="{WIDTH}" height="{chart.height:.0f}"'
    title = f"<title>{_safe(f'Start of {picture.unit}, run {picture.run[:8]}: {picture.summary}')}</title>"
    paper = f'<rect width="{WIDTH}" height="{chart.height:.0f}" fill="#fff"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {STYLE}>', title, paper, *body, "</svg>", ""])


def _safe(text: str) -> str:
    """XML 1.0 knows no control characters, not even escaped, and no lone surrogates."""
    kept = "".join(char if char.isprintable() and not "\ud800" <= char <= "\udfff" else "\ufffd" for char in text)
    return escape(kept)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, fill: str = "#000") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"'
    return f"<text {place}>{_safe(text)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, *, stroke: str = "#ddd", dash: str = "none") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-dasharray="{dash}"/>'


class _Chart:
    """Where everything goes, from the top: heading, bands, axis, memory, marks."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.first = 58.0
        self.base = self.first + ROW * max(1, len(picture.bands)) + 4
        self.plot = self.base + 34
        self.plotted = bool(picture.lines) and picture.top > 0
        self.list = self.plot + (PLOT + 34 if self.plotted else 8)
        self.height = self.list + 18 * len(picture.marks) + (20 if picture.note else 0) + 10

    def x(self, seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(seconds, 0.0), self.picture.span) / self.picture.span

    def y(self, amount: int) -> float:
        return self.plot + PLOT - PLOT * amount / self.picture.top

    def heading(self, when: str) -> Iterator[str]:
        picture = self.picture
        yield _text(14, 24, f"{picture.unit}: {picture.summary}", size=16)
        yield _text(14, 42, f"run {picture.run[:8]}{', ' if when else ''}{when}", fill="#555")
        if picture.note:
            yield _text(14, self.height - 12, picture.note, fill="#555")

    def earlier(self) -> Iterator[str]:
        """A faint band behind everything, from the shortest to the longest of the earlier starts."""
        if not self.picture.earlier:
            return
        low, high = self.x(min(self.picture.earlier)), self.x(max(self.picture.earlier))
        place = f'x="{low:.1f}" y="{self.first - 8:.1f}" width="{max(2.0, high - low):.1f}"'
        yield f'<rect {place} height="{self.base - self.first + 8:.1f}" fill="#eee"/>'
        count = len(self.picture.earlier)
        text = "the start before took so long" if count == 1 else f"the {count} starts before took so long"
        yield _text(min(high, WIDTH - 14.0), 46, text, anchor="end", size=11, fill="#777")

    def bands(self) -> Iterator[str]:
        for index, band in enumerate(self.picture.bands):
            top = self.first + ROW * index
            begin, end = self.x(band.begin), self.x(band.end)
            fill = GREYS[index % len(GREYS)]
            yield _text(LEFT - 10, top + 13, band.words, anchor="end")
            yield f'<rect x="{begin:.1f}" y="{top:.1f}" width="{max(1.0, end - begin):.1f}" height="{BAR}" fill="{fill}"/>'
            took = show_duration(round(band.end - band.begin, 1))
            left = end + 80 > WIDTH
            yield _text(begin - 6 if left else end + 6, top + 13, took, anchor="end" if left else "start", fill="#333")

    def axis(self) -> Iterator[str]:
        bottom = self.plot + PLOT if self.plotted else self.base
        for tick in ticks(self.picture.span):
            yield _line(self.x(tick), self.first - 4, self.x(tick), bottom)
            yield _text(self.x(tick), self.base + 16, show_tick(tick), anchor="middle", size=11, fill="#333")

    def memory(self) -> Iterator[str]:
        if not self.plotted:
            return
        for part in range(5):
            amount = self.picture.top * part // 4
            yield _line(LEFT, self.y(amount), WIDTH - RIGHT, self.y(amount))
            yield _text(LEFT - 10, self.y(amount) + 4, show_size(amount) if part else "0", anchor="end", size=11, fill="#333")
        for index, line in enumerate(self.picture.lines):
            points = " ".join(f"{self.x(at):.1f},{self.y(amount):.1f}" for at, amount in line.points)
            grey, dash = ("#000", "#555", "#888")[index % 3], DASHES[index % len(DASHES)]
            yield f'<polyline points="{points}" fill="none" stroke="{grey}" stroke-width="1.5" stroke-dasharray="{dash}"/>'
        yield from self._names()

    def _names(self) -> Iterator[str]:
        """Beside the ends of the lines; those that end together share a place."""
        places: dict[int, list[str]] = {}
        for line in self.picture.lines:
            places.setdefault(round(self.y(line.points[-1][1]) / 14), []).append(line.gpu)
        for place, gpus in places.items():
            name = f"GPU {gpus[0]}" if len(gpus) == 1 else f"{len(gpus)} GPUs"
            yield _text(self.x(self.picture.end) + 8, place * 14 + 4.0, name, size=11)

    def marks(self) -> Iterator[str]:
        bottom = self.plot + PLOT if self.plotted else self.base
        for index, mark in enumerate(self.picture.marks):
            yield from self._mark(index, mark, bottom)

    def _mark(self, index: int, mark: Mark, bottom: float) -> Iterator[str]:
        at, row = self.x(mark.at), self.list + 18 * index
        yield _line(at, self.first - 4, at, bottom, stroke="#333", dash="2 2")
        yield _text(at, bottom + 13 + 10 * (index % 2), str(index + 1), anchor="middle", size=10)
        text = f"{index + 1}  {show_duration(round(mark.at, 1))}  {mark.text}"
        yield _text(LEFT, row + 14, text)
