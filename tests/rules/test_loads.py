"""What is kept of loads, and what is learned from it: never from another model's, never from what is unfit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.loads import KEPT, NOTHING_LEARNED, Loaded, fingerprint, learned, rows, unfit, with_load
from gpu_lifecycle.rules.phases import Step

BASE = ("sglang", ("python", "-m", "sglang", "--tp", "8"), ("/models/kimi", ""), 600, ("GPU-a", "GPU-b"))


def loaded(weights: float, *, graphs: float | None = None, read: int | None = 100) -> Loaded:
    steps = {Step.WEIGHTS: weights} | ({} if graphs is None else {Step.GRAPHS: graphs})
    return Loaded(steps, {"GPU-a": round(weights)}, read)


def document(*loads: tuple[str, Loaded]) -> dict[str, Any]:
    found: Any = None
    for at, (key, load) in enumerate(loads):
        found = json.loads(json.dumps(with_load(found, key, at, load)))
    assert isinstance(found, dict)
    return found


def test_medians_of_the_loads_of_this_key_alone() -> None:
    found = document(("a", loaded(10, graphs=5)), ("b", loaded(999)), ("a", loaded(30)), ("a", loaded(20, graphs=9, read=None)))
    usual = learned(found, "a")
    assert (usual.count, usual.steps, usual.memory, usual.read) == (
        3, {Step.WEIGHTS: 20, Step.GRAPHS: 7}, {"GPU-a": 20}, 100,
    )  # fmt: skip
    assert usual.seconds == 27
    assert learned(found, "c") is NOTHING_LEARNED


def test_a_step_that_few_loads_had_is_not_expected() -> None:
    found = document(("a", loaded(10, graphs=500)), ("a", loaded(10)), ("a", loaded(10)))
    assert learned(found, "a").steps == {Step.WEIGHTS: 10}


def test_only_the_last_ones_are_kept() -> None:
    found = document(*(("a", loaded(number)) for number in range(1, 26)))
    assert [row["steps"]["weights"] for row in found["loads"]] == list(range(16, 26))
    assert len(found["loads"]) == KEPT


@pytest.mark.parametrize(
    "other",
    [
        ("vllm", *BASE[1:]),
        (BASE[0], (*BASE[1], "--enable-x"), *BASE[2:]),
        (*BASE[:2], ("/models/other", ""), *BASE[3:]),
        (*BASE[:2], ("/models/kimi", "/models/draft"), *BASE[3:]),
        (*BASE[:3], 601, BASE[4]),
        (*BASE[:4], ("GPU-a", "GPU-c")),
    ],
    ids=["engine", "command", "model", "draft", "its size: the same path, other weights", "GPU: another machine"],
)
def test_another_kind_of_load_has_another_key(other: Any) -> None:
    assert fingerprint(*other) != fingerprint(*BASE)


def test_the_same_kind_has_the_same_key_and_no_secret_is_in_it() -> None:
    assert fingerprint(*BASE[:4], ("GPU-b", "GPU-a")) == fingerprint(*BASE)
    one, other = ((BASE[0], (*BASE[1], "--api-key", key), *BASE[2:]) for key in ("k1", "k2"))
    assert fingerprint(*one) == fingerprint(*other)


GOOD_ROW = {"key": "a", "at": 1, "seconds": 5, "steps": {"weights": 5}, "memory": {"GPU-a": 1}, "read": None}


@pytest.mark.parametrize(
    "change",
    [
        {"key": 1}, {"at": "x"}, {"at": 10**400}, {"seconds": -1}, {"seconds": True}, {"steps": []}, {"steps": {"flying": 1}},
        {"steps": {"weights": -1}}, {"steps": {"weights": 1e300}}, {"steps": {"weights": 10**400}}, {"memory": {"g": 1.5}},
        {"memory": {"g": True}}, {"memory": {"g": -1}}, {"memory": None}, {"read": "x"}, {"read": -5},
    ],
    ids=str,
)  # fmt: skip
def test_a_row_that_is_unfit_counts_for_nothing(change: dict[str, Any]) -> None:
    found = {"schema": 1, "loads": [GOOD_ROW | change, GOOD_ROW, 7]}
    assert rows(found) == [GOOD_ROW]
    assert learned(found, "a").count == 1


def test_what_else_stands_in_a_row_is_not_carried_on() -> None:
    assert rows({"schema": 1, "loads": [GOOD_ROW | {"more": ["x"] * 1000}]}) == [GOOD_ROW]


@pytest.mark.parametrize(
    ("found", "fit"),
    [(None, True), ({"schema": 1, "loads": []}, True), ({"schema": 2, "loads": []}, False), ({}, False), ({"loads": 1}, False)],
)
def test_a_foreign_file_is_said_to_be_one(found: Any, fit: bool) -> None:
    assert (unfit(found) == "") is fit
    assert learned(found, "a") is NOTHING_LEARNED


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*GOOD_ROW, "loads", "x"]), inner, max_size=6),
    max_leaves=20,
)


@given(ANYTHING, st.lists(st.dictionaries(st.sampled_from([*GOOD_ROW]), ANYTHING), max_size=4))
def test_whatever_stands_there_nothing_is_raised_and_the_next_file_is_good(found: Any, loads: list[Any]) -> None:
    for document in (found, {"schema": 1, "loads": loads}):
        learned(document, "a")
        after = with_load(document, "a", 5.0, loaded(10))
        assert learned(json.loads(json.dumps(after)), "a").count >= 1
        assert unfit(after) == ""
