"""The list of a unit's runs: what is no run id in it counts for nothing, and it does not grow without end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.runs import KEPT, past_runs, remember

UNIT = UnitName("sglang-kimi")


def run(number: int) -> str:
    return f"{number:032x}"


def test_runs_are_remembered(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    assert past_runs(layout, UNIT) == frozenset()
    for number in (1, 2, 1):
        remember(layout, UNIT, run(number))
    assert past_runs(layout, UNIT) == {run(1), run(2)}
    assert past_runs(layout, UnitName("other")) == frozenset()


def test_the_list_keeps_the_newest(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    remember(layout, UNIT, run(0))
    path = Path(layout.runs(UNIT))
    path.write_text(json.dumps({"schema": 1, "runs": [run(number) for number in range(KEPT)]}))
    remember(layout, UNIT, run(KEPT))
    assert past_runs(layout, UNIT) == {run(number) for number in range(1, KEPT + 1)}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"runs": 7}', '{"runs": ["", 7, null, "A", {"a": 1}]}'])
def test_a_torn_list_counts_for_nothing(tmp_path: Path, text: str) -> None:
    layout = Layout(str(tmp_path))
    remember(layout, UNIT, run(1))
    Path(layout.runs(UNIT)).write_text(text)
    assert past_runs(layout, UNIT) == frozenset()
    remember(layout, UNIT, run(2))
    assert past_runs(layout, UNIT) == {run(2)}


@pytest.mark.parametrize("bad", ["", "foreground.7.9", "../../etc", "a" * 31, "A" * 32, "a" * 33])
def test_what_is_no_run_id_is_not_remembered(tmp_path: Path, bad: str) -> None:
    remember(Layout(str(tmp_path)), UNIT, bad)
    assert not (tmp_path / "run").exists()
