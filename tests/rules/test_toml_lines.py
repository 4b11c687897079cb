"""The line of a key, in every spelling TOML has, and in text that is no TOML."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_lifecycle.rules.toml_lines import key_lines, line_of

TRICKY = '''# [no]
top = 1
"quoted key" . 'lit' = 2   # = 3
[ a . "b.c" ]
x = """
[not.a.table]
y = 1
"""
y = [  # a comment with ] and "
  "]", '[',
  { z = 1 },
]
z.w = \'\'\'
[also.not]\'\'\'
e = "\\"" # "
[[list]]
n = 1
[[list]]
n = 2
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("top",), 2), (("quoted key", "lit"), 3), (("quoted key",), 3), (("a",), 4), (("a", "b.c"), 4),
        (("a", "b.c", "x"), 5), (("a", "b.c", "y"), 9), (("a", "b.c", "z", "w"), 13), (("a", "b.c", "e"), 15),
        (("list",), 16), (("list", "n"), 17), (("not",), None), (("also",), None), (("no",), None), ((), None),
        (("a", "b.c", "missing"), 4), (("top", "x", "y"), 2),
    ],
)  # fmt: skip
def test_the_line_of_a_key(key: tuple[str, ...], line: int | None) -> None:
    tomllib.loads(TRICKY)
    assert line_of(key_lines(TRICKY), key) == line
    assert line_of(key_lines(TRICKY.replace("\n", "\r\n")), key) == line


PIECES = st.sampled_from(
    ["[", "]", "[[", "]]", "{", "}", "=", ".", ",", '"', "'", '"""', "'''", "\\", "#", "\n", "\r\n", " ", "a", "b-c",
     "server", "command", "sweep", "1", "é", "\ufeff", "\x00", '"/x"', "\ud800"]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
@settings(max_examples=300)
def test_any_text_has_lines_or_none(text: str) -> None:
    lines = key_lines(text)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
    assert line_of(lines, ("server", "command")) in (None, *lines.values())
