"""What an EnvironmentFile= says. Whether systemd reads it so, it is asked itself: tests/systemd/test_environment_files.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.env_file import UNESCAPED, merged, read

ANY = st.text(alphabet=st.one_of(st.sampled_from(" \t\n\r\\'\"=#;$`A_9\0"), st.characters()))
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
VALUES = st.text(
    alphabet=st.one_of(st.sampled_from(" \t\n\\'\"=#;$`"), st.characters(codec="utf-8", exclude_categories=("Cc", "Cn")))
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1\nB = two words \n", {"A": "1", "B": "two words"}),
        ("# A=1\n;B=1\n  # C=1\nD=1 # no comment\n", {"D": "1 # no comment"}),
        ("A='a  b '\nB=\"a \\\"b\\\" \\$c \\d\"\n", {"A": "a  b ", "B": 'a "b" $c \\d'}),
        ("A=one \\\n  two\nB=\"one \\\ntwo\"\n", {"A": "one   two", "B": "one two"}),
        ("A='one'\"two\" three\n", {"A": "onetwothree"}),
        ("A=it's\n", {"A": "it's"}),
        ("A=\nB\nC", {"A": ""}),
        ("A=1\nA=2", {"A": "2"}),
        ("export A=1\n9=1\nA-B=1\n=1\nB=1\x01\n", {"B": "1\x01"}),
        ("A='never closed\nB=1\n", {"A": "never closed\nB=1\n"}),
        ("A=\\ \nB=x\\\\\n", {"A": " ", "B": "x\\"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
    ],
)  # fmt: skip
def test_lines(text: str, found: dict[str, str]) -> None:
    assert read(text) == found


def test_a_comment_that_goes_on() -> None:
    text = "# so it was \\\nA=1\nB=2\n"
    assert read(text, 253) == {"B": "2"}
    assert read(text, 254) == read(text) == {"A": "1", "B": "2"}


@pytest.mark.parametrize("text", ["A=1\0", "A=\udcff", "A=\uffff"])
def test_what_is_no_text_is_refused_whole(text: str) -> None:
    assert read(f"B=1\n{text}\n") is None


def test_a_comment_may_hold_what_is_no_text() -> None:
    assert read("# \udcff\nA=1\n") == {"A": "1"}


def test_the_later_wins() -> None:
    assert merged({"A": "0", "B": "0"}, [{"A": "1", "C": "1"}, {"C": "2"}]) == {"A": "1", "B": "0", "C": "2"}


@given(ANY, st.sampled_from([None, 252, 257]))
def test_any_text(text: str, version: int | None) -> None:
    found = read(text, version)
    assert (found is None) or all(name.isidentifier() and "\0" not in value for name, value in found.items())
    assert "\0" not in text or found is None
    assert found is None or read(f"\n  # before\n{text}", version) == found


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_quoted_comes_back(values: dict[str, str]) -> None:
    quoted = ("".join(f"\\{c}" if c in UNESCAPED else c for c in value) for value in values.values())
    text = "".join(f'{name}="{value}"\n' for name, value in zip(values, quoted, strict=True))
    assert read(text) == values


@given(st.dictionaries(NAMES, st.from_regex(r"[!$-&(-\[\]-~]([ -\[\]-~]{0,20}[!-\[\]-~])?", fullmatch=True), max_size=5))
def test_plain_values_come_back(values: dict[str, str]) -> None:
    """Only the first character of a value may be a quote, and a backslash is one anywhere."""
    assert read("".join(f"{name}= {value} \n" for name, value in values.items())) == values
