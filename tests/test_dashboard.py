"""The dashboard is of the shape that Grafana shows as it is meant, and the page of metrics has its picture."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.facts import Phase
from tests.grafana import problems

ROOT = Path(__file__).parent.parent
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs/prometheus/dashboard.json").read_text())
PICTURE = ROOT / "docs/prometheus/dashboard.png"
Board = dict[str, Any]


def of(board: Board, title: str) -> Board:
    """A panel by its title."""
    found: Board = next(panel for panel in board["panels"] if panel["title"] == title)
    return found


def look(board: Board, title: str) -> Board:
    found: Board = of(board, title)["fieldConfig"]["defaults"]
    return found


BROKEN: dict[str, tuple[Callable[[Board], object], str]] = {
    "an id that Grafana gives": (lambda b: b.update(id=7), "'id' was unexpected"),
    "a key that nobody knows": (lambda b: of(b, "Phase").update(repeats="unit"), "'repeats' was unexpected"),
    "a kind that there is not": (lambda b: of(b, "Ready").update(type="state"), "'state' is not one of"),
    "an unknown unit": (lambda b: look(b, "Load took").update(unit="seconds"), "'seconds' is not one of"),
    "an unknown colour": (
        lambda b: look(b, "Load took")["thresholds"]["steps"][0].update(color="grey"), "'grey' does not match",
    ),
    "an unknown reducer": (
        lambda b: of(b, "Ready")["options"]["reduceOptions"].update(calcs=["lastNotNul"]), "'lastNotNul' is not one of",
    ),
    "an option of another kind": (lambda b: of(b, "Ready")["options"].update(legend={}), "'legend' was unexpected"),
    "a graph's look on a stat": (lambda b: look(b, "Ready")["custom"].update(drawStyle="bars"), "'drawStyle' was unexpected"),
    "no levels, and so red from 80 s on": (lambda b: look(b, "Load took").pop("thresholds"), "'thresholds' is a required"),
    "no word for nothing": (lambda b: look(b, "Ready").pop("noValue"), "'noValue' is a required"),
    "a mapping as a list of pairs": (
        lambda b: look(b, "Ready").update(mappings=[{"value": 1, "text": "yes"}]), "'value' were unexpected",
    ),
    "levels that fall": (
        lambda b: look(b, "Ready")["thresholds"]["steps"].extend({"value": n, "color": "red"} for n in (2, 1)), "levels begin",
    ),
    "levels without a ground": (lambda b: look(b, "Ready")["thresholds"]["steps"][0].update(value=0), "levels begin with null"),
    "a source of one's own": (lambda b: of(b, "Phase")["datasource"].update(uid="a1"), "'a1' is not one of"),
    "a query without a source": (lambda b: of(b, "Phase")["targets"][0].pop("datasource"), "'datasource' is a required"),
    "a query without an expression": (lambda b: of(b, "Phase")["targets"][0].update(expr=""), "should be non-empty"),
    "two queries of one letter": (lambda b: of(b, "Requests")["targets"][1].update(refId="A"), "two queries have one refId"),
    "an old value as that of now": (
        lambda b: of(b, "Ready")["targets"][0].update(instant=False, range=True), "an old value would pass",
    ),
    "a graph of one moment": (lambda b: of(b, "Requests")["targets"][0].update(instant=True), "a graph of one moment"),
    "two panels of one id": (lambda b: of(b, "Phase").update(id=1), "two panels have the id 1"),
    "two panels of one title": (lambda b: of(b, "Phase").update(title="Ready"), "two panels have the title Ready"),
    "a panel on another": (lambda b: of(b, "Phase")["gridPos"].update(y=2), "lies on another panel"),
    "a panel out of the grid": (lambda b: of(b, "Requests")["gridPos"].update(x=23), "is out of the grid"),
    "a variable that is missing": (lambda b: b["templating"]["list"].pop(1), "there is no variable unit"),
    "no variable for the source": (lambda b: b["templating"]["list"].pop(0), "there is no variable source"),
    "an annotation that newer ones do not ask": (lambda b: b["annotations"]["list"][0].pop("target"), "'target' is a required"),
}  # fmt: skip


def test_the_dashboard_has_no_problem() -> None:
    assert problems(DASHBOARD) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_told_by_what_is_wrong(name: str) -> None:
    damage, words = BROKEN[name]
    board = copy.deepcopy(DASHBOARD)
    damage(board)
    found = problems(board)
    assert found
    assert any(words in problem for problem in found), found


def test_every_phase_has_its_word_and_its_colour() -> None:
    known = look(DASHBOARD, "Phase")["mappings"][0]["options"]
    expression = of(DASHBOARD, "Phase")["targets"][0]["expr"]
    asked = re.findall(r'(\d+) \* \(gpu_lifecycle_phase\{[^}]*phase="([\w-]+)"\} == 1\)', expression)
    assert [phase for _, phase in asked] == list(Phase)
    assert dict(asked) == {number: word["text"] for number, word in known.items()}
    assert len({word["color"] for word in known.values()}) == len(Phase)


def test_an_annotation_asks_the_same_of_old_and_new() -> None:
    for mark in DASHBOARD["annotations"]["list"]:
        assert mark["target"]["expr"] == mark["expr"]


def test_the_picture_is_shown_with_what_it_is() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    assert "](prometheus/dashboard.png)" in text
    assert "not a screenshot of a Grafana server" in " ".join(text.split())
    head = PICTURE.read_bytes()
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(head) < 250_000
    width, height = (int.from_bytes(head[at : at + 4], "big") for at in (16, 20))
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in DASHBOARD["panels"])
    assert (width, height) == (1400, 8 + 38 * rows), "made of another dashboard: tools/dashboard/README.md"
