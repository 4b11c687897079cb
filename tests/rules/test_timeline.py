"""The picture of a start: what is in it, exactly as drawn, and what text from outside may not do to it.

The pictures lie in tests/snapshots/timeline. GPU_LIFECYCLE_SNAPSHOTS=renew writes them anew: look at the difference.
"""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.recording import Mark, Recording, recording_of
from gpu_lifecycle.rules.samples import Sample, Samples
from gpu_lifecycle.rules.timeline import Band, Picture, numbers, picture, size_ticks, ticks, value_at
from gpu_lifecycle.rules.timeline_svg import FILLS, LEFT, OTHER_FILL, WIDTH, svg
from gpu_lifecycle.rules.timeline_text import chart
from tools.pages.start_examples import (
    BEGAN,
    GIB,
    PICTURES,
    UNIT,
    WHEN,
    before,
    failed,
    many,
    refused,
    reloaded,
    row,
    start,
    usual,
)

SNAPSHOTS = Path(__file__).parent.parent / "snapshots" / "timeline"
NAMESPACE = "{http://www.w3.org/2000/svg}"


def same(name: str, text: str) -> None:
    path = SNAPSHOTS / name
    if os.environ.get("GPU_LIFECYCLE_SNAPSHOTS") == "renew":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name}: GPU_LIFECYCLE_SNAPSHOTS=renew, and look"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", PICTURES)
def test_the_chart_as_it_is_drawn(name: str, width: int) -> None:
    lines = chart(PICTURES[name](), WHEN, width)
    assert max(map(len, lines)) <= width
    same(f"{name}-{width}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", PICTURES)
def test_the_svg_as_it_is_drawn(name: str) -> None:
    text = svg(PICTURES[name](), WHEN)
    sound(text)
    same(f"{name}.svg", text)


def sound(text: str) -> ET.Element:
    """XML, one picture of its own, nothing of it outside its frame; no script, no reference."""
    root = ET.fromstring(text)
    left, top, wide, high = map(float, root.attrib["viewBox"].split())
    assert (root.tag, left, top, wide) == (f"{NAMESPACE}svg", 0, 0, WIDTH)
    background = root.find(f"{NAMESPACE}rect")
    assert background is not None
    assert (background.attrib["width"], background.attrib["fill"]) == (str(WIDTH), "#ffffff")
    for part in root.iter():
        assert part.tag.removeprefix(NAMESPACE) in (
            "svg", "title", "desc", "rect", "text", "line", "polyline", "polygon", "path", "circle",
        )  # fmt: skip
        assert not [name for name in part.attrib if "href" in name or name.startswith("on") or name == "style"]
        assert not [value for value in part.attrib.values() if "http" in value or "url(" in value]
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(part.get(name, 0)) <= wide
        for name in ("y", "y1", "y2", "cy"):
            assert 0 <= float(part.get(name, 0)) <= high
        for point in part.get("points", "0,0").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= wide
            assert 0 <= y <= high
    assert text.count("xmlns") == 1 + words(root).count("xmlns")
    return root


def words(root: ET.Element) -> str:
    return "\n".join(text for part in root.iter() for text in part.itertext())


def test_plain_ascii_for_a_terminal_that_knows_no_more() -> None:
    lines = chart(usual(), WHEN, 80, plain=True)
    assert all(line.isascii() for line in lines)
    same("usual-80-ascii.txt", "\n".join(lines) + "\n")


# What is in it


def test_the_phases_fill_the_time_without_a_gap() -> None:
    shown = usual()
    assert [band.name for band in shown.phases] == ["pre-start", "loading", "warming", "ready"]
    assert (shown.phases[0].began, shown.phases[-1].ended) == (0.0, shown.seconds)
    for left, right in zip(shown.phases, shown.phases[1:], strict=False):
        assert left.ended == right.began
    assert shown.ready == 222.0
    assert (shown.marks[0].at, shown.marks[0].text) == (3.5, "1 process reaped")


def test_five_earlier_runs_at_most_and_only_those_that_were_ready() -> None:
    never = (row("c", None), replace(start(), marks=()))
    shown = picture(UNIT, row("a", 222.0), start(), [never, *before(200, 201, 202, 203, 204, 205, 206)])
    assert [run.ready for run in shown.earlier] == [200, 201, 202, 203, 204]
    at, low, high = shown.spread[60]
    assert low is not None and high is not None and low < high < 80 * GIB  # noqa: PT018 - for the type checker
    assert 0 < at < shown.seconds


def test_the_clock_on_the_wall_may_be_set_back_meanwhile() -> None:
    mine = row("a", None) | {"ready_at": BEGAN - 3600, "seconds_loading": 88.0}
    assert picture(UNIT, mine, None, []).ready == 100.0


def test_a_run_that_is_going_on() -> None:
    shown = picture(UNIT, row("a", None, seconds_loading=40.0), None, [], now=52.0)
    assert (shown.ready, shown.seconds, shown.ending) == (None, 52.0, "is starting, for 52s by now")
    assert [mark.word for mark in shown.marks] == []


def test_a_refused_start_shows_what_was_reaped_and_no_memory() -> None:
    shown = refused()
    assert [(mark.word, mark.at) for mark in shown.marks] == [("reaped", 9.0), ("end", pytest.approx(31.4, abs=0.01))]
    assert (shown.lines, shown.spread) == ((), ())
    assert "something is in the way" in shown.ending


def test_a_time_that_nobody_saw_is_a_gap() -> None:
    lines = sound(svg(failed())).findall(f"{NAMESPACE}polyline")
    assert len(lines) == 4, "two parts for each of two GPUs"
    assert any("?" in line for line in chart(failed(), "", 80))


def test_no_two_texts_of_marks_lie_upon_each_other() -> None:
    marks = tuple(Mark(200.0 + number / 10, "xid", f"Xid number {number}") for number in range(20))
    root = sound(svg(replace(usual(), marks=marks)))
    heights = [part.get("y") for part in root.iter(f"{NAMESPACE}text") if (part.text or "").startswith("Xid number")]
    assert len(heights) == len(set(heights)) == 20


def test_many_marks_have_a_letter_each_in_their_order() -> None:
    marks = tuple(Mark(222.0, "xid", str(number)) for number in range(35))
    lines = chart(replace(usual(), marks=marks), "", 80)
    row = next(line for line in lines if "a" in line.partition("│")[2] and not line.strip().startswith("a"))
    letters = re.sub(r"[ │]", "", row)
    assert letters == "abcdefghijklmnopqrstuvwxyzABCDEFGHI"


@pytest.mark.parametrize("seconds", [0.5, 1, 7, 59, 61, 222, 3599, 7260, 86400, 1e8])
@pytest.mark.parametrize("most", [3, 9])
def test_times_of_an_axis(seconds: float, most: int) -> None:
    found = ticks(seconds, most)
    assert found[0] == 0
    assert 1 <= len(found) <= most + 1
    assert found[-1] <= seconds


@pytest.mark.parametrize("size", [1, 1 << 20, 600 << 20, GIB, 68 * GIB, 80 * GIB, 1 << 50])
def test_sizes_of_an_axis(size: int) -> None:
    found = size_ticks(size, 5)
    assert found[0] == 0
    assert found[-2] <= size <= found[-1]
    assert len(found) <= 7


def test_words() -> None:
    assert numbers(["5", "0", "1", "2", "7", "8", "1"]) == "0-2, 5, 7-8"
    assert numbers(["0:3", "0:5", "4"]) == "4, 0:3, 0:5"
    assert value_at([(1.0, 10.0), (3.0, None), (4.0, 20.0)], 2.0) is None
    assert [value_at([(1.0, 10.0), (3.0, 20.0)], at) for at in (0.5, 1.0, 2.0, 9.0)] == [0.0, 10.0, 15.0, 20.0]


def test_a_step_ends_with_its_engine() -> None:
    assert max(step.ended for step in failed().steps) == 131.0


def test_where_there_is_no_memory_it_says_why() -> None:
    said = {name: make().note for name, make in PICTURES.items()}
    assert "No engine was started" in said["refused"]
    assert "daemon was killed before READY" in said["killed"]
    assert "no longer kept" in said["older"]
    assert {name for name, note in said.items() if not note} == {"usual", "long", "many", "failed", "reloaded"}
    for name, note in said.items():
        assert note in words(sound(svg(PICTURES[name]())))
        assert note in " ".join(chart(PICTURES[name](), "", 80))
    assert "nothing was recorded yet" in picture(UNIT, row("a", None), None, [], now=5.0).note


def test_a_start_that_goes_on_or_was_cut_off_shows_what_is_known_and_says_so() -> None:
    known = start(20.0)
    known = replace(known, phases=known.phases[:1], marks=known.marks[:1], closed=False)
    alive = picture(UNIT, row("a", None), known, [], now=60.0)
    assert "what was known some seconds ago" in alive.note
    assert alive.seconds == known.samples.series[-1].at
    dead = picture(UNIT, row("a", None, lasted=60.0, outcome="failed", code="daemon-killed"), known, [])
    assert "what its last seconds held is not known" in dead.note
    assert len(dead.lines[0].points) == len(known.samples.series)


def test_before_a_recording_that_began_late_nothing_is_said() -> None:
    shown = reloaded()
    assert all(value_at(line.points, at) is None for line in shown.lines for at in (0.0, 50.0, 99.0))
    gpus = next(line for line in chart(shown, "", 80) if line.startswith("GPU 0-1"))
    assert gpus.partition("│")[2].startswith("??????")
    first = sound(svg(shown)).find(f"{NAMESPACE}polyline")
    assert first is not None
    assert float(first.attrib["points"].split(",")[0]) > LEFT + 300


def test_what_nobody_saw_of_earlier_runs_is_a_gap_of_the_band() -> None:
    whole = start()
    blind = tuple(Sample(item.at, (item.memory[0], None)) if 60 < item.at < 90 else item for item in whole.samples.points)
    unseen = replace(whole, samples=Samples(blind, blind[-1]))
    shown = picture(UNIT, row("a", 222.0), start(), [(row("b", 222.0), unseen)])
    missing = [at for at, low, _ in shown.spread if low is None]
    assert missing
    assert 59 < missing[0] < missing[-1] < 91
    assert len(sound(svg(shown)).findall(f"{NAMESPACE}polygon")) == 2
    earlier = next(line for line in chart(shown, "", 80) if line.startswith("earlier"))
    assert "?" in earlier
    never = replace(whole, samples=Samples(tuple(Sample(item.at, (None,) * 8) for item in blind), None))
    assert picture(UNIT, row("a", 222.0), start(), [(row("b", 222.0), never)]).spread == ()


# In grey, and in little room


def lightness(colour: str) -> float:
    """CIE L*, from 0 (black) to 100: what is left of a colour on paper in grey."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return float(116 * light ** (1 / 3) - 16)


def test_phases_beside_each_other_differ_in_lightness() -> None:
    order = [FILLS[name] for name in ("pre-start", "loading", "warming", "ready")]
    pairs = [*itertools.pairwise(order), (FILLS["loading"], OTHER_FILL), (FILLS["warming"], OTHER_FILL)]
    assert min(abs(lightness(one) - lightness(other)) for one, other in pairs) > 10
    assert all(lightness(fill) > 60 for fill in FILLS.values()), "black words are read on them"


def test_sixteen_lines_differ_without_colour_from_their_neighbours_and_with_it_from_all() -> None:
    lines = sound(svg(many())).findall(f"{NAMESPACE}polyline")
    assert len(lines) == len({(line.get("stroke"), line.get("stroke-dasharray")) for line in lines}) == 16
    dashes = [line.get("stroke-dasharray") for line in lines]
    assert all(one != other for one, other in itertools.pairwise(dashes))


def test_a_long_name_costs_neither_the_run_nor_the_time() -> None:
    title = chart(reloaded(), WHEN, 80)[0]
    assert len(title) == 80
    assert title.endswith(f"…, run 77777777, {WHEN}")
    assert f"…: run 77777777, {WHEN}" in svg(reloaded(), WHEN)


def test_letters_that_are_twice_as_wide_take_twice_the_room() -> None:
    shown = replace(usual(), marks=(Mark(200.0, "xid", "漢字" * 40), Mark(210.0, "xid", "漢" * 30)))
    for line in chart(shown, "", 80):
        assert sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in line) <= 80
    for text in sound(svg(shown)).iter(f"{NAMESPACE}text"):
        if "漢" in (text.text or ""):
            assert text.get("text-anchor") == "end"
            assert float(text.attrib["x"]) - 11 * (text.text or "").count("漢") > 0


# Text from outside

HOSTILE = [
    "</text><script>alert(1)</script>", '" onload="x', "&lt;&#0;", "\x1b[2J\x00\x07", "\u202egnp.exe", "a\nb\r\nc", "\ud800",
    "]]>", "<!ENTITY x SYSTEM 'file:///etc/passwd'>", "ſ" * 500, "\ufffe\uffff", "🙂" * 90,
]  # fmt: skip


def planted(text: str) -> Picture:
    """As somebody who may write the history would have it."""
    found = recording_of({
        "schema": 1, "gpus": [[text, 0], [text, 1]], "needs": 5, "samples": [[1, 5, 6], [9, 7, 8]],
        "phases": [[1, "loading"]], "steps": [[2, text], [3, "other"]], "marks": [[4, text, text], [5, "ready", text]],
    })  # fmt: skip
    mine = {"run": text, "began": 1.0, "ready_at": 6.0, "code": "cuda-oom", "outcome": "failed", "evidence": text}
    return picture(UNIT, mine, found, [({"run": text, "began": 0.0}, found or Recording())])


def harmless(shown: Picture) -> None:
    root = sound(svg(shown, WHEN))
    assert not {unicodedata.category(character) for character in words(root).replace("\n", "")} & {"Cc", "Cf", "Cs"}
    for width in (20, 80, 120):
        for line in chart(shown, WHEN, width):
            assert line == "" or line.isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_drawn_as_text(text: str) -> None:
    harmless(planted(text))


@given(st.text(max_size=200))
def test_any_text_is_drawn_as_text(text: str) -> None:
    harmless(planted(text))


NUMBER = st.one_of(st.floats(), st.integers(-5, 1 << 60), st.none(), st.text(max_size=3))


KEYS = ("began", "ended", "ready_at", "reaped", "reaped_after", "lasted", "stop", "seconds_pre_start", "seconds_loading",
        "seconds_warming", "seconds_ready", "code", "outcome", "times")  # fmt: skip
SAMPLES = st.lists(st.lists(st.integers(0, 10**9), min_size=2, max_size=3), max_size=6)


@given(st.dictionaries(st.sampled_from(KEYS), NUMBER), SAMPLES, st.one_of(st.none(), st.floats(0, 1e9)))
def test_no_row_of_a_history_breaks_it(values: dict[str, object], samples: list[list[int]], now: float | None) -> None:
    found = recording_of({"schema": 1, "gpus": [["a", 0]], "samples": samples, "phases": [[2, "loading"]]})
    harmless(picture(UNIT, {"run": "x", **values}, found, [], now))


def test_a_band_shorter_than_a_column_is_still_seen() -> None:
    shown = replace(usual(), phases=(Band("loading", 0.0, 235.0), Band("warming", 235.0, 235.001)))
    warming = next(line for line in chart(shown, "", 80) if line.startswith("warming"))
    assert warming.count("█") == 1
