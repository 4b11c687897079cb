"""Text from outside cannot move a cursor, forge a line, hide a letter or grow without end."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.text import printable, steady


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("python3 -m sglang", "python3 -m sglang"),
        ("two  spaces ", "two  spaces "),
        ("Größe 大", "Größe 大"),
        ("a\nMESSAGE_ID=1", r"a\x0aMESSAGE_ID=1"),
        ("\x1b[2J\t\x00\x7f\x9b", r"\x1b[2J\x09\x00\x7f\x9b"),
        ("evil\u202egnp.exe", r"evil\u202egnp.exe"),
        ("\u2066\u2069\u2028\u2029", r"\u2066\u2069\u2028\u2029"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("soft\u00adhyphen no\u00a0break", r"soft\xadhyphen no\xa0break"),
        ("fill\u3164er \ufe0f", r"fill\u3164er \ufe0f"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("lone \ud800", r"lone \ud800"),
        ("from fsdecode \udcff", r"from fsdecode \xff"),
        (b"bytes \xff\xc3\xa9", r"bytes \xffé"),
        (b"NVRM: \x1b]0;owned\x07", r"NVRM: \x1b]0;owned\x07"),
        (r"C:\x1b stays", r"C:\x1b stays"),
    ],
)
def test_what_does_not_draw_is_spelt_out(text: str | bytes, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("ab\n\n", 6, r"ab…"),
        ("ab\n\n", 7, r"ab\x0a…"),
        ("\n", 3, "…"),
        ("\n", 4, r"\x0a"),
        ("ab", 1, "…"),
        ("ab", 0, ""),
        (b"\xff" * 10, 9, r"\xff\xff…"),
        ("大大大".encode(), 3, "大大大"),
        ("大大大大".encode(), 3, "大大…"),
    ],
)
def test_what_is_too_long_ends_between_characters(text: str | bytes, limit: int, shown: str) -> None:
    assert printable(text, limit) == shown


@given(st.one_of(st.text(), st.text(st.characters()), st.binary()), st.integers(min_value=0, max_value=60))
def test_the_result_is_printable_and_short(text: str | bytes, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert printable(shown, max(limit, 1)) == shown


@given(st.text(string.printable.strip() + " "))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert printable(text, len(text) + 1) == text


@given(st.text(st.sampled_from("\x00\n\u202e\U000e0041"), min_size=1), st.integers(2, 40))
def test_no_escape_is_cut_in_two(text: str, limit: int) -> None:
    assert re.fullmatch(r"(\\x00|\\x0a|\\u202e|\\U000e0041)*…?", printable(text, limit))


def test_a_huge_text_costs_no_more_than_its_beginning() -> None:
    assert len(printable(b"\x00" * 50_000_000, 200)) <= 200


def test_what_has_no_steady_width_is_escaped_in_tables() -> None:
    assert steady("👍🏽 🇩🇪 कि 漢é") == "👍\\U0001f3fd \\U0001f1e9\\U0001f1ea क\\u093f 漢é"
    assert steady("\x1b[2J" + "x" * 9, 8) == printable("\x1b[2J" + "x" * 9, 8)
