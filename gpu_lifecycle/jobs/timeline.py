"""``timeline``: the start of a run as a picture, on the terminal, as SVG, as PNG, or as numbers."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Any

from gpu_lifecycle.errors import Exit, UnavailableError, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.history import read
from gpu_lifecycle.jobs.printed import print_json
from gpu_lifecycle.jobs.why import named
from gpu_lifecycle.rules.timeline import Picture, picture
from gpu_lifecycle.rules.timeline_text import chart, legend

LEAST, WIDEST = 60, 160


def timeline(unit: UnitName, layout: Layout, run: str, *, as_json: bool, svg: str = "", png: str = "") -> int:
    """Shows the start of the last run that has come so far as to have one, or of ``run`` (its id or the beginning of it).

    Raises UsageError, also where a file cannot be written; NotPermittedError; UnavailableError without the package for PNG.
    """
    found = read(layout, unit)
    row = named(found, run, unit) if run else next((row for row in found if _has_picture(row)), None)
    if row is None:
        raise UsageError(f"no start of {unit.service} is in its history yet", hint=f"gpu-lifecycle runs {unit.name}")
    shown = picture(unit.service, row, found[found.index(row) + 1 :])
    if svg:
        _write(svg, _svg(shown).encode())
    if png:
        _write(png, _png(_svg(shown)))
    if as_json:
        print_json(_document(unit, shown))
    elif not svg and not png:
        _print(shown)
    return Exit.OK


def _has_picture(row: dict[str, Any]) -> bool:
    return bool(row.get("curve")) or "seconds_loading" in row


def _print(shown: Picture) -> None:
    width = min(max(shutil.get_terminal_size((80, 24)).columns, LEAST), WIDEST)
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(f"{shown.unit}: {shown.summary}; run {shown.run[:8]}, {_when(shown)}")
    for line in (*chart(shown, width, unicode=unicode), *legend(shown), *([shown.note] if shown.note else [])):
        print(line)


def _when(shown: Picture) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(shown.began))


def _svg(shown: Picture) -> str:
    from gpu_lifecycle.rules.timeline_svg import draw

    return draw(shown, _when(shown))


def _png(svg: str) -> bytes:
    try:
        import resvg_py
    except ImportError:
        cure = "pip install 'gpu-lifecycle[png]', or turn the --svg into one: rsvg-convert -o start.png start.svg"
        raise UnavailableError("cannot draw a PNG: the package resvg-py is not installed", hint=cure) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg))


def _write(path: str, data: bytes) -> None:
    """``-`` is standard output."""
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint=f"ls -ld {os.path.dirname(path) or '.'}") from error


def _document(unit: UnitName, shown: Picture) -> dict[str, Any]:
    return {
        "schema": 1,
        "unit": unit.service,
        "run": shown.run,
        "began": shown.began,
        "ready": shown.ready,
        "seconds": round(shown.end, 1),
        "phases": [{"name": band.name, "begin": round(band.begin, 1), "end": round(band.end, 1)} for band in shown.bands],
        "gpus": [{"gpu": line.gpu, "memory": [[round(at, 1), amount] for at, amount in line.points]} for line in shown.lines],
        "events": [{"at": round(mark.at, 1), "text": mark.text} for mark in shown.marks],
        "earlier_seconds": [round(seconds, 1) for seconds in shown.earlier],
    }
