"""What ``timeline`` prints and draws, from real files: a history of today, one of before, one that somebody has planted."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpu_lifecycle.errors import UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.history import keep
from gpu_lifecycle.jobs.recorder import Recorder
from gpu_lifecycle.jobs.timeline import timeline
from gpu_lifecycle.rules.account import since_began
from gpu_lifecycle.rules.life import Life, Limits, Looked, Started
from gpu_lifecycle.rules.readiness import Health, Look, Needs, Socket
from gpu_lifecycle.rules.recording import document
from tools.pages.start_examples import start

UNIT = UnitName("gpu-lifecycle-test-unit")  # which systemd does not know
NOW = 1_700_000_000.0
ROOT = Path(__file__).parents[2]
NO_FILES: dict[str, str | None] = {"svg": None, "png": None}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(str(tmp_path))
    Path(made.var_dir(UNIT)).mkdir(parents=True)
    return made


def write(layout: Layout, run: str, began: float, **more: Any) -> None:
    row = {"run": run, "began": began, "ready_at": began + 222, "seconds_pre_start": 12.0, "seconds_loading": 210.0, **more}
    assert keep(layout, UNIT, row).complaint == ""


def recorded(load: float = 222.0, gpus: int = 8) -> str:
    return json.dumps(document(start(load, gpus)))


def show(layout: Layout, capsys: pytest.CaptureFixture[str], run: str = "", *, as_json: bool = False, **files: str) -> str:
    assert timeline(UNIT, layout, run, NO_FILES | files, as_json=as_json) == 0
    return capsys.readouterr().out


def test_without_a_history(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        with pytest.raises(UsageError, match=r"no start of .* is in its history yet"):
            timeline(UNIT, layout, "", NO_FILES, as_json=as_json)
    assert capsys.readouterr().out == ""


def fits(found: Any) -> None:
    schema = json.loads((ROOT / "docs/schema/timeline.json").read_text())
    assert [error.message for error in Draft202012Validator(schema).iter_errors(found)] == []


def test_the_newest_and_one_by_its_id(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    write(layout, "aaaa", NOW, start=recorded(200))
    write(layout, "bbbb", NOW + 1000, start=recorded())
    text = show(layout, capsys)
    assert "run bbbb" in text
    assert "READY after 3min 42s" in text
    assert "GPU 0-7" in text
    assert "1 earlier run, READY after 3min 20s." in text.replace("Earlier", "earlier")
    older = show(layout, capsys, "aa")
    assert "READY after 3min 20s" in older
    assert "arlier run" not in older
    with pytest.raises(UsageError, match="there is no run"):
        timeline(UNIT, layout, "cc", NO_FILES, as_json=False)


def test_json_has_all_of_it_in_bytes_and_seconds(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    write(layout, "aaaa", NOW, start=recorded(200, 2), reaped=2, reaped_after=4.0)
    write(layout, "bbbb", NOW + 1000, start=recorded(222, 2))
    found = json.loads(show(layout, capsys, as_json=True))
    fits(found)
    assert (found["run"], found["ready"], found["needed"]) == ("bbbb", 222.0, 34 << 30)
    assert [phase["name"] for phase in found["phases"]] == ["pre-start", "loading", "warming", "ready"]
    assert found["samples"][-1]["memory"].keys() == {gpu["uuid"] for gpu in found["gpus"]}
    assert abs(found["samples"][-1]["memory"]["GPU-00000000"] / (68.7 * (1 << 30)) - 1) < 0.01
    assert found["earlier"] == [{"run": "aaaa", "ready": 200.0}]
    first = json.loads(show(layout, capsys, "aaaa", as_json=True))
    assert first["events"][0] == {"at": 4.0, "event": "reaped", "text": "2 processes reaped"}


def test_a_history_of_before_shows_the_phases(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    write(layout, "old", NOW)
    text = show(layout, capsys)
    assert "loading" in text
    assert "No memory was recorded in this run, or it is no longer kept." in text
    fits(json.loads(show(layout, capsys, as_json=True)))


PLANTED = ["", "{", "[" * 100_000, "null", '{"schema": 1}', '{"schema": 1, "samples": [[NaN]]}', "\x00"]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_picture_that_is_none(layout: Layout, capsys: pytest.CaptureFixture[str], planted: str) -> None:
    write(layout, "aaaa", NOW, start="{}")
    db = sqlite3.connect(Path(layout.var_dir(UNIT), "history.db"))
    db.execute("UPDATE starts SET document = ?", (planted[:60000],))
    db.commit()
    db.close()
    assert "READY after" in show(layout, capsys)


def test_svg_into_a_file_and_to_a_pipe(layout: Layout, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    write(layout, "aaaa", NOW, start=recorded())
    file = tmp_path / "start.svg"
    assert timeline(UNIT, layout, "", NO_FILES | {"svg": str(file)}, as_json=False) == 0
    assert capfdbinary.readouterr().out == b""
    ET.parse(file)
    assert timeline(UNIT, layout, "", NO_FILES | {"svg": "-"}, as_json=False) == 0
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == file.read_bytes()


def test_what_cannot_be_drawn_is_said(layout: Layout, tmp_path: Path) -> None:
    write(layout, "aaaa", NOW, start=recorded())
    with pytest.raises(UsageError, match=r"cannot write .*No such file"):
        timeline(UNIT, layout, "", NO_FILES | {"svg": str(tmp_path / "no" / "x.svg")}, as_json=False)
    with pytest.raises(UsageError, match="both on standard output"):
        timeline(UNIT, layout, "", NO_FILES | {"svg": "-"}, as_json=True)


PROGRAM = """
import sys
from gpu_lifecycle import cli
from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Layout
arguments = cli.parser().parse_args(sys.argv[2:])
try:
    sys.exit(arguments.run(arguments, Layout(sys.argv[1])))
except LifecycleError as error:
    sys.exit(f"{error.status.value}: {error}")
"""


def command(layout: Layout, *words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Our own command line in a process of its own, on this tree."""
    known = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | environment
    line = [sys.executable, "-c", PROGRAM, layout.root, "timeline", UNIT.name, *words]
    return subprocess.run(line, capture_output=True, env=known)


def test_png_without_its_library_names_the_extra(layout: Layout, tmp_path: Path) -> None:
    """A folder with a module that cannot be imported, before the library's own."""
    write(layout, "aaaa", NOW, start=recorded())
    (tmp_path / "resvg_py.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = command(layout, "--png", str(tmp_path / "x.png"), PYTHONPATH=path)
    assert done.stderr.decode().startswith("69: cannot make a PNG: the library resvg-py is not installed")
    assert "pip install 'gpu-lifecycle[png]'" in done.stderr.decode()
    assert not (tmp_path / "x.png").exists()


@pytest.mark.skipif(not importlib.util.find_spec("resvg_py"), reason="the extra png is not installed")
def test_png(layout: Layout, tmp_path: Path) -> None:
    write(layout, "aaaa", NOW, start=recorded())
    done = command(layout, "--png", str(tmp_path / "x.png"))
    assert done.returncode == 0, done.stderr
    png = (tmp_path / "x.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20]) == 2000


@pytest.mark.parametrize("columns", [80, 120])
def test_as_wide_as_the_terminal_and_ascii_where_it_knows_no_more(layout: Layout, columns: int) -> None:
    write(layout, "aaaa", NOW, start=recorded())
    done = command(layout, COLUMNS=str(columns), PYTHONUTF8="1")
    lines = done.stdout.decode().splitlines()
    assert columns - 12 < max(map(len, lines)) <= columns
    done = command(layout, COLUMNS=str(columns), PYTHONIOENCODING="ascii")
    assert done.stdout.isascii()
    assert b"GPU 0-7" in done.stdout


# The recorder


LIMITS = Limits(Needs({"GPU-a": "0"}), 600, 3600, 5, 5, 3, 120, 10, 30)


def test_a_reload_goes_on_where_it_was_and_one_without_begins_anew() -> None:
    began = time.monotonic() - 20
    first = Recorder(began, None, over=False)
    first.note(Life(LIMITS), Started(7))
    handed = json.loads(json.dumps(first.pack()))
    second = Recorder(began + 5, handed, over=False)  # as where the state file was lost meanwhile
    assert second.zero == first.zero == began
    second.note(Life(LIMITS), Looked(Look({"GPU-a": 5 << 30}, Socket(), Health(None, "nobody listens yet"))))
    assert [mark.text for mark in second.recording.marks] == ["engine started", "daemon reloaded"]
    assert 20 < second.recording.samples.series[0].at < 60
    anew = Recorder(began, {}, over=False)
    assert [mark.text for mark in anew.recording.marks] == ["recorded from here"]
    assert 20 < anew.recording.marks[0].at < 60


def test_a_run_that_was_ready_before_is_not_recorded_again() -> None:
    over = Recorder(0.0, {}, over=True)
    over.note(Life(LIMITS, was_ready=True), Started(7))
    assert over.row() == {}


UNFIT: list[dict[str, Any]] = [{"zero": "x"}, {"zero": 1e300}, {"recording": 5}, {"zero": None, "recording": {"schema": 9}}]


@pytest.mark.parametrize("handed", UNFIT)
def test_what_is_handed_over_unfit_is_begun_anew(handed: dict[str, Any]) -> None:
    began = time.monotonic()
    recorder = Recorder(began, handed, over=False)
    assert recorder.zero == began
    assert recorder.recording.marks[0].word == "reload"


def test_the_clock_on_the_wall_bends_nothing() -> None:
    """It is set by a year in the middle of the sweep; a row of a version that knew only that clock has to do with it."""
    row = {"began": NOW, "zero": 100.0}
    assert since_began(row, NOW + 3e7, 112.5) == since_began(row, NOW - 3e7, 112.5) == 12.5
    assert since_began({"began": NOW}, NOW + 3, 112.5) == 3
    assert since_began({"began": NOW}, NOW - 3, 112.5) == since_began({}, NOW, 112.5) == 0
    assert since_began({"began": NOW, "zero": 200.0}, NOW + 3, 112.5) == 3, "of another boot"
