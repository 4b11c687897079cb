"""How the cost of a scan grows: ``docs/scan-cost.svg``, drawn by hand so that it needs no library and reads well in grey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .bench import Bench
from .scan import Times, install, measure

PLACE = Path(__file__).parent.parent / "docs" / "scan-cost.svg"
FILES, PROCESSES = 100, 1000  # what stays the same while the other grows
BY_PROCESSES = (250, 500, 1000, 1500, 2000)
BY_FILES = (10, 50, 100, 150, 200)
ROUNDS = 5
WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 220, 60, 50, 80
STYLES = {  # line and marker, so that no colour is needed
    "fuser": ("#999", "2 4", "fuser -v, ten nodes, whole"),
    "scan": ("#000", "none", "full scan (Python, two processes)"),
    "readlinks": ("#555", "8 4", "one readlinkat per descriptor (C)"),
}
Curve = list[tuple[int, Times]]


def plot(bench: Bench) -> Path:
    """Measures all sizes, writes the picture, and says where it is."""
    install(bench)
    by_processes = [(count, measure(bench, count, FILES, ROUNDS)) for count in BY_PROCESSES]
    by_files = [(count, measure(bench, PROCESSES, count, ROUNDS)) for count in BY_FILES]
    PLACE.write_text(draw(by_processes, by_files))
    return PLACE


def draw(by_processes: Curve, by_files: Curve) -> str:
    highest = max(max(_values(curve, name)) for curve in (by_processes, by_files) for name in STYLES)
    top = 0.1 * (int(highest / 0.1) + 1)
    width, height = LEFT + 2 * WIDTH + GAP + 20, TOP + HEIGHT + 110
    panels = (
        (by_processes, LEFT, f"processes, {FILES} open files each"),
        (by_files, LEFT + WIDTH + GAP, f"open files of each of {PROCESSES:,} processes"),
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        "<title>Time of one full scan of /proc, by processes and by open files</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="14">Time of one scan of /proc in ms (the fastest of {ROUNDS}; two cores)</text>',
        *(line for curve, left, label in panels for line in _panel(curve, left, label, top)),
        *_legend(TOP + HEIGHT + 56),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _values(curve: Curve, name: str) -> Sequence[float]:
    return [min(getattr(times, name)) for _, times in curve]


def _panel(curve: Curve, left: int, label: str, top: float) -> Iterator[str]:
    bottom, right = TOP + HEIGHT, max(count for count, _ in curve)
    for step in range(5):
        y = bottom - HEIGHT * step / 4
        yield f'<line x1="{left}" y1="{y:.0f}" x2="{left + WIDTH}" y2="{y:.0f}" stroke="#ddd"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{250 * top * step:.0f}</text>'
    for count, _ in curve:
        yield f'<text x="{left + WIDTH * count / right:.0f}" y="{bottom + 16}" text-anchor="middle">{count:,}</text>'
    yield f'<text x="{left + WIDTH / 2:.0f}" y="{bottom + 36}" text-anchor="middle">{label}</text>'
    for name in STYLES:
        points = zip(curve, _values(curve, name), strict=True)
        places = [(left + WIDTH * count / right, bottom - HEIGHT * seconds / top) for (count, _), seconds in points]
        yield from _curve(places, name)


def _curve(places: list[tuple[float, float]], name: str) -> Iterator[str]:
    colour, dash, _ = STYLES[name]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
    for x, y in places:
        yield _marker(x, y, name)


def _marker(x: float, y: float, name: str) -> str:
    colour = STYLES[name][0]
    if name == "scan":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    if name == "fuser":
        return f'<path d="M{x:.1f},{y - 5:.1f} l5,9 h-10 z" fill="{colour}"/>'
    return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="#fff" stroke="{colour}" stroke-width="2"/>'


def _legend(y: int) -> Iterator[str]:
    for place, (name, (_, _, text)) in enumerate(STYLES.items()):
        at = y + 18 * place
        yield from _curve([(LEFT, at), (LEFT + 40, at)], name)
        yield f'<text x="{LEFT + 54}" y="{at + 4}">{text}</text>'
