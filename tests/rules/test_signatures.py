"""Lines of engines and the one signature that each bears; which of many is the cause; and what bears none."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.signatures import BY_CODE, OLD, SIGNATURES, Signs, current, first_cause, hear, match
from gpu_lifecycle.rules.signatures_shape import Rank

SAMPLES = Path(__file__).with_name("engine_lines.tsv").read_text(encoding="utf-8").splitlines()
PAIRS = [(code, line) for code, tab, line in (sample.partition("\t") for sample in SAMPLES) if tab]
LINES = [pair for pair in PAIRS if pair[0] != "-"]
HARMLESS = [line for code, line in PAIRS if code == "-"]


@pytest.mark.parametrize(("code", "line"), LINES)
def test_a_line_bears_this_signature_and_no_other(code: str, line: str) -> None:
    found = match(line)
    assert found, line
    assert found.code == code


@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_said_on_a_good_day_bears_none(line: str) -> None:
    assert match(line) is None


@pytest.mark.parametrize("item", SIGNATURES, ids=lambda item: str(item.code))
def test_every_entry_is_whole_and_shown_by_a_line(item: object) -> None:
    assert item in SIGNATURES
    found = BY_CODE[getattr(item, "code")]  # noqa: B009
    assert found.code in {code for code, _ in LINES}, "no line of an engine in this test"
    assert re.fullmatch("[a-z]+(-[a-z]+)*", found.code)
    assert all(word == word.lower() and len(word) >= 3 for word in found.words)
    assert min(map(len, (found.text, found.cure, found.source))) > 10


def test_codes_are_unique() -> None:
    assert len(BY_CODE) == len(SIGNATURES)


def told(*lines: tuple[float, str]) -> Signs:
    signs: Signs = ()
    for at, line in lines:
        if found := match(line):
            signs = hear(signs, found.code, line, at)
    return signs


def cause(end: float, *lines: tuple[float, str]) -> str:
    sign = first_cause(current(told(*lines), end))
    return sign.code if sign else ""


def line_of(code: str) -> str:
    return next(line for known, line in LINES if known == code)


def test_the_first_cause_stands_before_its_echoes_in_eight_workers() -> None:
    """Rank 3 runs out of memory; seven others see it go, some of them before its own words are out."""
    said = [(rank, code) for rank in range(8) for code in ("peer-lost", "nccl", "child-died")]
    echoes = [(10.0 + rank / 100, f"[TP{rank}] {line_of(code)}") for rank, code in said]
    assert cause(75.0, *echoes, (10.2, line_of("cuda-oom")), (70.0, line_of("child-died"))) == "cuda-oom"
    signs = current(told(*echoes, (10.2, line_of("cuda-oom"))), 20.0)
    assert [sign.count for sign in signs if sign.code == "nccl"] == [8]
    assert BY_CODE[signs[0].code].rank is Rank.CAUSE


@pytest.mark.parametrize("code", [item.code for item in SIGNATURES if item.rank is Rank.CAUSE])
@pytest.mark.parametrize("echo", [item.code for item in SIGNATURES if item.rank is not Rank.CAUSE])
def test_no_echo_outranks_a_cause(code: str, echo: str) -> None:
    for lines in ([(1.0, line_of(code)), (2.0, line_of(echo))], [(1.0, line_of(echo)), (2.0, line_of(code))]):
        assert cause(3.0, *lines) == code


def test_of_two_time_outs_the_first_counts() -> None:
    assert cause(20.0, (1.0, line_of("engine-watchdog")), (9.0, line_of("nccl-timeout"))) == "engine-watchdog"
    assert cause(20.0, (1.0, line_of("nccl-timeout")), (9.0, line_of("engine-watchdog"))) == "nccl-timeout"


def test_a_warning_of_the_import_phase_is_not_why_a_load_fails_minutes_later() -> None:
    assert cause(190.0, (5.0, line_of("shm-full")), (180.0, line_of("cuda-oom"))) == "cuda-oom"


def test_a_port_that_is_taken_is_the_cause_of_an_end_two_minutes_later() -> None:
    """SGLang asks the stranger on its port for 120 s, and only then ends."""
    last = (160.0, "Initialization failed. warmup error: Traceback")
    assert cause(161.0, (40.0, line_of("port-in-use")), last) == "port-in-use"


def test_what_was_said_long_ago_is_no_cause() -> None:
    assert cause(10.0 + OLD, (10.0, line_of("cuda-oom"))) == ""
    assert cause(500.0, (10.0, line_of("cuda-oom")), (499.0, line_of("child-died"))) == ""


def test_echoes_alone_are_no_cause() -> None:
    assert cause(2.0, (1.0, line_of("child-died")), (1.5, line_of("peer-lost"))) == ""


@given(st.text(max_size=300), st.lists(st.tuples(st.sampled_from(sorted(BY_CODE)), st.floats(0, 1000)), max_size=30))
def test_any_line_and_any_order_is_answered(line: str, said: list[tuple[str, float]]) -> None:
    match(line)
    signs: Signs = ()
    for code, at in sorted(said, key=lambda item: item[1]):
        signs = hear(signs, code, line, at)
    shown = current(signs, 1000.0)
    assert {sign.code for sign in shown} <= {code for code, _ in said}
    assert len(signs) <= len(SIGNATURES)


def test_no_pattern_takes_long_on_a_hostile_line() -> None:
    """Each has to read a line in time that grows with its length, not faster."""
    begun = time.process_time()
    words = [word for item in SIGNATURES for word in item.words]
    for word in words:
        match((word + " " * 50) * (2000 // (len(word) + 50)))
        match(word * (2000 // len(word)))
    assert time.process_time() - begun < 0.05 * len(words)
