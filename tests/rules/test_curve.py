"""What is kept of a start, and what comes back of it from a file that anybody may have written."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.curve import BANDS, MARKS, POINTS, UNIT, Curve, Mark, Point, band, further, marked, read, row
from gpu_lifecycle.rules.phases import Step
from gpu_lifecycle.system.history import TEXT, TEXTS

TIMES = st.lists(st.floats(0.001, 100, allow_nan=False), min_size=1, max_size=400)


def drawn(gaps: list[float], names: list[str], memory: tuple[int | None, ...] = (UNIT,)) -> Curve:
    curve, at = Curve(), 0.0
    for gap, name in zip(gaps, names, strict=False):
        curve, at = further(curve, Point(at, name, memory)), at + gap
    return curve


@given(TIMES)
def test_few_points_are_kept_and_the_ends_among_them(gaps: list[float]) -> None:
    curve = drawn(gaps, ["weights"] * len(gaps))
    assert len(curve.points) <= POINTS
    assert curve.points[0].at == 0
    assert curve.points[-1].at == pytest.approx(sum(gaps[:-1]))
    assert [point.at for point in curve.points] == sorted(point.at for point in curve.points)


def test_a_long_start_keeps_its_shape_and_where_its_bands_change() -> None:
    curve = Curve()
    for at in range(7200):  # two hours, a look a second
        curve = further(curve, Point(float(at), "weights" if at < 3601 else "graphs", (at * UNIT,)))
    points = curve.points
    assert POINTS / 4 < len(points) <= POINTS
    assert next(point.at for point in points if point.band == "graphs") == 3601
    assert [point.at for point in points if point.band == "weights"][-1] == 3600
    assert max(after.at - before.at for before, after in pairwise(points)) < 7200 / POINTS * 5


@given(st.lists(st.sampled_from(sorted(BANDS)), min_size=200, max_size=300))
def test_bands_without_end_do_not_grow_it(names: list[str]) -> None:
    curve = drawn([1.0] * len(names), names)
    assert len(curve.points) <= POINTS
    assert curve.points[0] == Point(0.0, names[0], (UNIT,))


def test_it_fits_into_the_history() -> None:
    gpus = (200 << 30,) * 16
    curve = drawn([60.0] * 150, sorted(BANDS) * 20, gpus)
    for number in range(2 * MARKS):
        curve = marked(curve, 1e5, f"{number} {'x' * 200}")
    written = row(curve)
    assert len(curve.points) == POINTS
    assert len(written["curve"]) < TEXTS
    assert len(written["marks"]) < TEXT


@given(TIMES, st.lists(st.none() | st.integers(0, 1 << 40), max_size=16))
def test_it_comes_back(gaps: list[float], memory: list[int | None]) -> None:
    rounded = tuple(None if amount is None else amount // UNIT * UNIT for amount in memory)
    curve = marked(drawn(gaps, ["loading"] * len(gaps), rounded), 1.0, "port open")
    back = read(row(curve))
    assert back.marks == (Mark(1.0, "port open"),)
    assert [(point.band, point.memory) for point in back.points] == [(point.band, point.memory) for point in curve.points]
    assert [point.at for point in back.points] == pytest.approx([point.at for point in curve.points], abs=0.06)


@given(st.text() | st.none() | st.integers(), st.text(alphabet="0123456789.- \nweightsnaif,"))
def test_whatever_stands_there_is_read(one: object, two: str) -> None:
    for text in (one, two, f"1.0 weights {two}"):
        found = read({"curve": text, "marks": text})
        assert len(found.points) <= POINTS
        assert all(point.band in BANDS for point in found.points)


@pytest.mark.parametrize(
    "line",
    ["nan weights 1", "inf weights 1", "-1 weights 1", "1 weights", "1 nowhere 1", "1 weights 1 2", "1 weights x",
     "1 weights -1", "1 weights 1e3", "1 weights 9999999999", "1e99 weights 1", "1 weights ²"],
)  # fmt: skip
def test_a_line_that_is_none_is_left_out(line: str) -> None:
    assert read({"curve": f"0.5 loading 1\n{line}\n2.0 loading 2"}).points == (
        Point(0.5, "loading", (UNIT,)),
        Point(2.0, "loading", (2 * UNIT,)),
    )


def test_time_does_not_go_back() -> None:
    found = read({"curve": "5.0 loading 1\n4.0 loading 2\n6.0 loading 3"})
    assert [point.at for point in found.points] == [5.0, 6.0]


def test_the_finest_name_counts_while_it_loads() -> None:
    assert band(Phase.LOADING, Step.WEIGHTS) == "weights"
    assert band(Phase.LOADING, Step.NONE) == band(Phase.LOADING, 99) == "loading"
    assert band(Phase.WARMING, Step.SERVING) == "warming"
    assert band(Phase.READY, Step.WEIGHTS) == "ready"


def test_a_mark_is_made_once() -> None:
    curve = marked(marked(Curve(), 1, "port open"), 2, "port open")
    assert curve.marks == (Mark(1, "port open"),)
