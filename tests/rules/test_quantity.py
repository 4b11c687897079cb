"""Durations and sizes: what is read, what is refused with which cure, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.quantity import (
    WrongValueError,
    parse_duration,
    parse_size,
    show_duration,
    show_size,
)
from gpu_lifecycle.rules.text import printable

GIB = 1 << 30


def short(value: object) -> str | None:
    """A test id that fits into the environment, where pytest puts it."""
    return printable(value, 30) if isinstance(value, str) else type(value).__name__


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10), ("2min", 120), ("2m", 120), ("1h 30min", 5400), ("1h30min", 5400), ("500ms", 0.5),
        ("1.5h", 5400), (" 1 day ", 86400), ("3 seconds", 3), ("100us", 0.0001), ("0s", 0), ("365d", 31536000),
    ],
)  # fmt: skip
def test_a_duration_is_read_as_systemd_reads_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("value", "reason", "cure"),
    [
        (10, "needs a unit", 'write "10s"'),
        (2.5, "needs a unit", 'write "2.5s"'),
        ("10", "needs a unit", 'write "10s"'),
        (-1, "needs a unit", '"10s"'),
        (float("nan"), "needs a unit", '"10s"'),
        (float("inf"), "needs a unit", '"10s"'),
        (1 << 40000, "needs a unit", '"10s"'),
        (True, "text in quotes", '"10s"'),
        (None, "text in quotes", '"10s"'),
        ([], "text in quotes", '"10s"'),
        ("-5s", "not negative", '"10s"'),
        ("infinity", "bounded", '"24h"'),
        ("", "is not a duration", '"10s"'),
        ("soon", "is not a duration", '"10s"'),
        ("10s 5", "is not a duration", '"10s"'),
        ("1e3s", '"e" is no unit of time', "min"),
        ("٣s", "is not a duration", '"10s"'),
        ("10 parsecs", '"parsecs" is no unit of time', "ms, s, min, h and d"),
        ("10S", '"S" is no unit of time', "small letters"),
        ("366d", "at most 365d", ""),
        ("9" * 400 + "s", "at most 365d", ""),
        ("10\x1b[2J", "is not a duration", ""),
    ],
    ids=short,
)
def test_a_wrong_duration_names_reason_and_cure(value: object, reason: str, cure: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        parse_duration(value)
    assert reason in caught.value.reason
    assert cure in caught.value.cure
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 << 20), ("76GiB", 76 * GIB), ("76 GiB", 76 * GIB), ("1.5TiB", 3 << 39), ("4096B", 4096),
        ("0KiB", 0), ("1048576TiB", 1 << 60), ("9007199254740993B", 9007199254740993),
    ],
)  # fmt: skip
def test_a_size_is_read_to_the_byte(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("value", "reason", "cure"),
    [
        (512, "needs a unit", 'write "512MiB"'),
        ("512", "needs a unit", 'write "512MiB"'),
        ("76GB", '"GB" is no unit', 'did you mean GiB? write "76GiB"'),
        ("1G", '"G" is no unit', 'did you mean GiB? write "1GiB"'),
        ("1K", '"K" is no unit', "did you mean KiB?"),
        ("1kb", '"kb" is no unit', "did you mean KiB?"),
        ("1.5M", '"M" is no unit', 'write "1.5MiB"'),
        ("1mib", '"mib" is no unit', "did you mean MiB?"),
        ("1b", '"b" is no unit', "did you mean B?"),
        ("1Gigs", '"Gigs" is no unit', "B, KiB, MiB, GiB and TiB"),
        ("-1GiB", "not negative", '"512MiB"'),
        ("GiB", "is not a size", '"512MiB"'),
        ("1GiB 2MiB", "is not a size", '"512MiB"'),
        ("9999999TiB", "at most", '"512MiB"'),
        ("9" * 5000 + "B", "at most", '"512MiB"'),
        (False, "text in quotes", '"512MiB"'),
    ],
    ids=short,
)
def test_a_wrong_size_names_reason_and_cure(value: object, reason: str, cure: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        parse_size(value)
    assert reason in caught.value.reason
    assert cure in caught.value.cure


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (512 << 20, "512 MiB"), (33500000000, "31.2 GiB"),
        (GIB - 1, "1 GiB"), (-GIB, "-1 GiB"), (5 << 50, "5120 TiB"), (None, "unknown"),
    ],
)  # fmt: skip
def test_a_size_is_shown_for_people(size: int | None, shown: str) -> None:
    assert show_size(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"), (0.0001, "0s"), (0.5, "500ms"), (0.9999, "1s"), (1, "1s"), (9.54, "9.5s"), (9.99, "10s"),
        (59.6, "1min"), (92, "1min 32s"), (3600, "1h"), (3605, "1h"), (7500, "2h 5min"), (90061, "1d 1h"),
        (-92, "-1min 32s"), (float("inf"), "for ever"), (float("nan"), "unknown"), (None, "unknown"),
    ],
)  # fmt: skip
def test_a_duration_is_shown_for_people(seconds: float | None, shown: str) -> None:
    assert show_duration(seconds) == shown


@given(st.floats(min_value=0, max_value=300 * 86400))
def test_what_is_shown_can_be_written(seconds: float) -> None:
    assert parse_duration(show_duration(seconds)) == pytest.approx(seconds, rel=0.06, abs=0.06)


@given(st.integers(min_value=0, max_value=1 << 59))
def test_a_shown_size_can_be_written(size: int) -> None:
    assert parse_size(show_size(size)) == pytest.approx(size, rel=0.06)


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.from_regex(r"\d+ ?[A-Za-z]{1,4}")))
def test_nothing_but_the_one_error_comes_out(value: object) -> None:
    for error in (_error(parse_duration, value), _error(parse_size, value)):
        assert error is None or (error.reason.isprintable() and error.cure.isprintable())


def _error(parse: Callable[[object], float], value: object) -> WrongValueError | None:
    try:
        parsed = parse(value)
    except WrongValueError as error:
        return error
    assert parsed >= 0
    return None
