"""The picture of a start: what is in it, that it is readable anywhere, and that no text from outside breaks it."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_lifecycle.rules.curve import Curve, Point, further, marked, row
from gpu_lifecycle.rules.timeline import EARLIER, Picture, picture, ticks
from gpu_lifecycle.rules.timeline_svg import draw
from gpu_lifecycle.rules.timeline_text import LABEL, LEAST, VALUE, chart, legend
from tools.pages.timeline import story

UNIT = "sglang-kimi.service"
GIB = 1 << 30
SVG = "{http://www.w3.org/2000/svg}"


def run(curve: Curve, **more: object) -> dict[str, object]:
    return {"run": "abc", "began": 0.0, **row(curve), **more}


def shapes(text: str, kind: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(text).iter(f"{SVG}{kind}"))


def test_bands_follow_one_another_and_end_with_the_start() -> None:
    made = story()
    assert [band.name for band in made.bands] == [
        "pre-start", "loading", "init", "distributed", "weights", "kv_cache", "graphs", "warmup",
    ]  # fmt: skip
    assert made.bands[0].begin == 0
    assert all(band.end == after.begin for band, after in pairwise(made.bands))
    assert (made.bands[-1].end, made.end, made.ready) == (196.0, 196.0, True)
    assert [line.gpu for line in made.lines] == list("01234567")
    assert made.earlier == (203.0, 198.0, 231.0, 190.0)


def test_a_run_without_points_shows_the_sums_of_its_phases() -> None:
    sums = {"seconds_pre_start": 2.0, "seconds_loading": 30.0, "seconds_ready": 999.0}
    made = picture(UNIT, {"run": "abc", "began": 5.0, **sums}, [])
    assert [(band.name, band.begin, band.end) for band in made.bands] == [("pre-start", 0, 2), ("loading", 2, 32)]
    assert not made.ready
    assert "not recorded" in made.note
    assert "not recorded" in draw(made)
    assert not shapes(draw(made), "polyline")


def test_a_run_that_failed_in_the_sweep_has_a_picture() -> None:
    curve = marked(further(further(Curve(), Point(0.0, "pre-start")), Point(9.0, "pre-start")), 9.0, "refused")
    made = picture(UNIT, run(curve), [])
    assert made.summary == "not ready: ended after 9s"
    assert any("sweep and proof" in line for line in chart(made, 80))
    assert ElementTree.fromstring(draw(made)) is not None


def test_sixteen_gpus_each_have_a_line_and_more_are_told_of() -> None:
    curve = Curve()
    for at in range(40):
        curve = further(curve, Point(float(at), "weights", tuple((at + gpu) * GIB for gpu in range(20))))
    made = picture(UNIT, run(curve), [])
    assert [line.gpu for line in made.lines[:2]] == ["#1", "#2"]  # their indices are not known
    assert len(shapes(draw(made), "polyline")) == 20
    assert chart(made, 100)[-1] == "and 4 more GPUs: --svg shows them"


def test_a_gpu_that_was_not_seen_for_a_while_is_not_drawn_as_empty() -> None:
    curve = Curve()
    for at, held in enumerate((GIB, None, 3 * GIB)):
        curve = further(curve, Point(float(at), "weights", (held,)))
    assert picture(UNIT, run(curve), []).lines[0].points == ((0.0, GIB), (2.0, 3 * GIB))


def test_earlier_starts_are_those_that_came_to_be_ready() -> None:
    rows = [{"began": 10.0, "ready_at": 10.0 + seconds} for seconds in range(1, 9)]
    wrong: list[dict[str, object]] = [{"began": 10.0}, {"began": 10.0, "ready_at": 5.0}, {"began": "x", "ready_at": 5.0}]
    wrong.append({"began": 1.0, "ready_at": 1e14})
    assert picture(UNIT, run(Curve()), [*wrong, *rows]).earlier == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert EARLIER == 5


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_the_terminal(width: int, unicode: bool) -> None:
    lines = chart(story(), width, unicode=unicode)
    assert max(map(len, lines)) <= width
    assert unicode or all(line.isascii() for line in lines)
    assert len({line.index("GiB") for line in lines if "memory" in line}) == 1


@given(st.floats(0.001, 600000))
def test_ticks_are_few_and_within(span: float) -> None:
    found = ticks(span)
    assert 1 <= len(found) <= 9
    assert found[0] == 0
    assert found[-1] <= span + 1e-9


@settings(max_examples=300)
@given(st.text(max_size=60), st.text(max_size=200), st.text(alphabet="0123456789.- \nweightsloadin,", max_size=300))
def test_hostile_text_stays_text(name: str, mark: str, curve: str) -> None:
    made = picture(name, {"run": name, "began": 0.0, "curve": curve, "marks": f"1.0 {mark}", "curve_gpus": mark}, [])
    root = ElementTree.fromstring(draw(made, name))
    known = ("svg", "title", "rect", "text", "line", "polyline")
    assert {item.tag for item in root.iter()} <= {f"{SVG}{kind}" for kind in known}
    for line in (*chart(made, 80), *legend(made)):
        assert line.isprintable(), line


@pytest.mark.parametrize("span", [0.0, 1e-9, 604799.0])
def test_any_length_can_be_drawn(span: float) -> None:
    curve = further(further(Curve(), Point(0.0, "loading", (GIB,))), Point(span, "loading", (GIB,)))
    made: Picture = picture(UNIT, run(curve), [])
    assert max(map(len, chart(made, 1))) <= LABEL + VALUE + LEAST
    assert ElementTree.fromstring(draw(made)) is not None
