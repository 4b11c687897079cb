"""Whom to tell what: which events, which of too many, and what is in the document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.events import ERR, EVENTS, WARNING, Event
from gpu_lifecycle.rules.notice import OURS, alike, document, row_of, wanted, worst, worth_handing_on


def row(word: str, message: str = "it is so", **fields: str) -> dict[str, Any]:
    return row_of(Event(word, message, fields), "kimi.service", "r1", 12.3456)


@pytest.mark.parametrize("word", EVENTS)
def test_by_default_warnings_and_worse(word: str) -> None:
    assert wanted(row(word), None) is (EVENTS[word].priority <= WARNING and word != OURS)
    assert wanted(row(word), (word,)) is (word != OURS)
    assert not wanted(row(word), ("ready" if word != "ready" else "stopped",))
    assert worth_handing_on(word) is (EVENTS[word].priority <= WARNING or word == "run-ended")


@pytest.mark.parametrize("forged", [{}, {"GPU_LIFECYCLE_EVENT": "no-such"}, {"GPU_LIFECYCLE_EVENT": 3}])
def test_a_row_that_names_no_event_is_not_told(forged: dict[str, Any]) -> None:
    assert not wanted(forged, None)
    assert not wanted(forged, ("no-such",))


def test_the_worst_stay_and_then_the_newest_in_their_order() -> None:
    rows = [row("suspect", str(at)) for at in range(3)] + [row("engine-failed")] + [row("suspect", str(at)) for at in (3, 4)]
    kept, left_out = worst(rows, 3)
    assert [item["MESSAGE"] for item in kept] == ["it is so", "3", "4"]
    assert left_out == 3
    assert worst(rows, 9) == (rows, 0)
    assert EVENTS["engine-failed"].priority == ERR


def test_the_document() -> None:
    made = document(row("xid-seen", "Xid 79\n", GPU_LIFECYCLE_GPU="GPU-a", OBJECT_PID="7"), "node1", 2)
    assert made == {
        "schema": 1, "event": "xid-seen", "priority": "warning", "at": 12.346, "host": "node1", "unit": "kimi.service",
        "run": "r1", "subject": EVENTS["xid-seen"].subject, "message": r"Xid 79\x0a",
        "explanation": EVENTS["xid-seen"].text.replace("@GPU_LIFECYCLE_GPU@", "GPU-a"),
        "fields": {"GPU_LIFECYCLE_GPU": "GPU-a", "OBJECT_PID": "7"}, "skipped": 2,
    }  # fmt: skip
    assert "@" not in document(row("start-refused"), "n", 0)["explanation"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"GPU_LIFECYCLE_GPU": "GPU-a"}, {"GPU_LIFECYCLE_GPU": "GPU-a"}, True),
        ({"GPU_LIFECYCLE_GPU": "GPU-a"}, {"GPU_LIFECYCLE_GPU": "GPU-b"}, False),
        ({"GPU_LIFECYCLE_PID": "7"}, {"GPU_LIFECYCLE_PID": "8"}, False),
        ({}, {}, True),
    ],
)
def test_what_is_the_same_event(one: dict[str, str], other: dict[str, str], same: bool) -> None:
    assert (alike(row("xid-seen", "a", **one)) == alike(row("xid-seen", "b", **other))) is same


JUNK = st.one_of(st.text(), st.integers(), st.none(), st.booleans())


@given(st.dictionaries(st.text(max_size=9), JUNK, max_size=6), st.text())
def test_a_forged_row_makes_a_harmless_document(fields: dict[str, Any], host: str) -> None:
    text = json.dumps(document({**fields, "GPU_LIFECYCLE_EVENT": "suspect", "MESSAGE": "\x1b[2J"}, host, 0))
    assert json.loads(text)["message"] == r"\x1b[2J"
