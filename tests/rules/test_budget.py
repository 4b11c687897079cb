"""A chain of failed runs: when it has had enough, and how long it waits between two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.budget import ALL, LONGEST, SAME, Budget, known, signature


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("lost 1 of 8 workers (pid 4711)", "lost 1 of 8 workers (pid 12)", True),
        (
            "the engine exited with status 1, 8min 20s into the load",
            "the engine exited with status 1, 9min into the load",
            True,
        ),
        ("CUDA error at 0x7fff12, 3.5 GiB free", "CUDA error at 0xabc, 12 GiB free", True),
        ("the engine was ended by signal 9, after it was ready", "the engine exited with status 9, after it was ready", False),
        ("lost 1 of 8 workers (pid 4711)", "the health endpoint says: status 503", False),
    ],
)
def test_signature(one: str, other: str, alike: bool) -> None:
    assert (signature(one) == signature(other)) is alike


def chain(*failures: str) -> Budget:
    budget = Budget()
    for failure in failures:
        budget = budget.after(failure, proven=False)
    return budget


def test_the_same_failure_is_enough_sooner_than_different_ones() -> None:
    assert not chain(*["a"] * (SAME - 1)).spent
    assert chain(*["a"] * SAME).spent == "5 runs in a row failed in the same way"
    assert not chain(*["a", "b"] * 4).spent
    assert chain(*["a", "b"] * (ALL // 2)).spent == "10 runs in a row failed"
    assert chain(*["b"] * 4, "a", "b").same == 1


def test_a_run_that_was_good_for_long_begins_a_new_chain() -> None:
    assert chain(*["a"] * 4).after("a", proven=True) == Budget(1, 1, "a")


def test_pauses_double_up_to_a_limit() -> None:
    assert [Budget(failed).pause(15) for failed in (0, 1, 2, 3, 4)] == [0, 0, 15, 45, 105]
    assert Budget(9).pause(15) == LONGEST
    assert Budget(3).pause(0) == 0


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9), st.text(max_size=300))
def test_a_planted_count_is_bounded(failed: int, same: int, like: str) -> None:
    budget = known(failed, same, like)
    assert 0 <= budget.same <= budget.failed <= ALL
    assert 0 <= budget.pause(15) <= LONGEST
    assert budget.after("x", proven=True).failed == 1
