"""``timeline``: the start of a run as a picture, from the history: on a terminal, as JSON, SVG or PNG."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from gpu_lifecycle.errors import Exit, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.history import read_starts
from gpu_lifecycle.jobs.printed import print_json
from gpu_lifecycle.jobs.why import live_run, named, runs_of
from gpu_lifecycle.rules.account import number, since_began
from gpu_lifecycle.rules.recording import Recording, recording_of
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.rules.timeline import Band, Picture, picture

Row = dict[str, Any]
WIDEST = 160  # columns: a longer line is hard to read


def timeline(unit: UnitName, layout: Layout, run: str, files: Mapping[str, str | None], *, as_json: bool) -> int:
    """Shows the start of ``run`` (its id or the beginning of it), or of the last one that was ready or has ended.

    ``files``: where it is drawn to, by kind. Raises UsageError, also where there is none, or a file cannot be written;
    NotPermittedError; UnavailableError without the library for PNG; LifecycleError.
    """
    if as_json and "-" in files.values():
        raise UsageError("cannot print a picture and JSON both on standard output", hint="draw it into a file: --svg FILE")
    live = live_run(unit, layout)
    found = runs_of(unit, layout, live)
    row = named(found, run, unit) if run else _last(found)
    if row is None:
        raise UsageError(f"no start of {unit.service} is in its history yet", hint=f"gpu-lifecycle runs {unit.name}")
    shown = _picture(unit, layout, row, found, live)
    began = number(row, "began")
    _draw(shown, _when(began), files)
    if as_json:
        print_json(_json(shown, began))
    elif not any(files.values()):
        _print(shown, _when(began))
    return Exit.OK


def _last(found: list[Row]) -> Row | None:
    return next((row for row in found if "code" in row or "ready_at" in row), None) or next(iter(found), None)


def _picture(unit: UnitName, layout: Layout, row: Row, found: list[Row], live: Mapping[str, str] | None) -> Picture:
    starts, now = read_starts(layout, unit), None
    if live and live["run"] == row["run"] and "ready_at" not in row:
        now = since_began(row, time.time(), time.monotonic())
    at = next((place for place, item in enumerate(found) if item["run"] == row["run"]), -1)
    before = [(item, kept) for item in found[at + 1 :] if (kept := _recording(starts.get(item["run"]))) is not None]
    return picture(unit.service, row, _recording(row.get("start") or starts.get(row["run"])), before, now)


def _recording(text: object) -> Recording | None:
    if not isinstance(text, str):
        return None
    try:
        return recording_of(json.loads(text))
    except (ValueError, RecursionError):  # somebody else's: there is no picture of that start
        return None


def _when(began: float | None) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began)) if began is not None else ""
    except (OverflowError, ValueError, OSError):
        return ""


def _draw(shown: Picture, when: str, files: Mapping[str, str | None]) -> None:
    if not any(files.values()):
        return
    from gpu_lifecycle.rules.timeline_svg import svg

    drawn = svg(shown, when)
    if files.get("png"):
        from gpu_lifecycle.system.png import png_of

        _write(str(files["png"]), png_of(drawn))
    if files.get("svg"):
        _write(str(files["svg"]), drawn.encode())


def _write(path: str, content: bytes) -> None:
    if path == "-":
        sys.stdout.buffer.write(content)
        return
    try:
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        hint = f"ls -ld {printable(os.path.dirname(path) or '.')}"
        raise UsageError(f"cannot write {printable(path)}: {error.strerror}", hint=hint) from error


def _print(shown: Picture, when: str) -> None:
    from gpu_lifecycle.rules.timeline_text import chart

    width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
    try:
        "█▁│≤".encode(sys.stdout.encoding or "ascii")
        plain = False
    except (UnicodeEncodeError, LookupError):
        plain = True
    text = "\n".join(chart(shown, when, width, plain=plain))
    print(text.encode("ascii", "replace").decode() if plain else text)


def _json(shown: Picture, began: float | None) -> Row:
    return {
        "schema": 1,
        "unit": shown.unit,
        "run": shown.run,
        "began": began,
        "ready": _rounded(shown.ready),
        "text": shown.ending,
        "note": shown.note or None,
        "seconds": _rounded(shown.seconds),
        "phases": [_span(band) for band in shown.phases],
        "steps": [_span(band) for band in shown.steps],
        "gpus": [{"uuid": line.uuid, "index": int(line.label.partition(":")[0]), "label": line.label} for line in shown.lines],
        "needed": shown.needs or None,
        "samples": _samples(shown),
        "events": [{"at": _rounded(mark.at), "event": mark.word, "text": mark.text} for mark in shown.marks],
        "earlier": [{"run": run.run, "ready": _rounded(run.ready)} for run in shown.earlier],
    }


def _samples(shown: Picture) -> list[Row]:
    uuids = [line.uuid for line in shown.lines]
    columns = zip(*(line.points for line in shown.lines), strict=True)
    amounts = [(points[0][0], [size for _, size in points]) for points in columns]
    return [{"at": _rounded(at), "memory": dict(zip(uuids, sizes, strict=True))} for at, sizes in amounts]


def _span(band: Band) -> Row:
    return {"name": band.name, "began": _rounded(band.began), "ended": _rounded(band.ended)}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
