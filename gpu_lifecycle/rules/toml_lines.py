"""TOML with line numbers: tomllib keeps no places, and a wrong value without its line is a search."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.text import printable

Key = tuple[str, ...]

_TOML_CURES = {
    "Cannot overwrite": "the key is there twice; keep one",
    "Cannot declare": "the section is there twice; merge the two",
    "Invalid value": 'text stands in quotes, such as policy = "owned"; true and false in small letters',
    "Unescaped": r"write \\ for a backslash, or put the text in single quotes",
    "Invalid statement": "a line is [section], key = value or a # comment",
    "Expected '='": "a line is [section], key = value or a # comment",
    "Unclosed array": "close the list with ]",
    "Unterminated": "close the text with a quote",
    "Illegal character": "text ends on the line it began on: close the quote",
}


def read_toml(text: str, file: str) -> dict[str, Any]:
    """Parse ``text``; ConfigError with file, line and cure where it is not TOML, or has a key twice."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        reason = printable(str(error), 300)
    except (ValueError, RecursionError) as error:  # neither has a place, and their words are about Python
        reason = "lists lie too deep in one another" if isinstance(error, RecursionError) else "a number is too long"
    where = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", reason)
    line = None if not where else int(where[1]) if where[1] else text.count("\n") + 1
    cure = next((cure for start, cure in _TOML_CURES.items() if reason.startswith(start)), "see https://toml.io")
    raise ConfigError(f"cannot read this as TOML: {reason}", hint=cure, file=file, line=line)


_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[A-Za-z0-9_-]+|.',
    re.DOTALL,
)


def key_lines(text: str) -> dict[Key, int]:
    """The line (from 1) on which each table and key of a TOML text is first named; never raises.

    tomllib keeps no places. Keys inside an inline table are not told apart: they have the line of their
    table.
    """
    places: dict[Key, int] = {}
    table: Key = ()
    words: list[str] = []  # of the key or header being read
    where, depth, line = "key", 0, 1
    for piece in (match[0] for match in _TOKEN.finditer(text)):
        if piece == "\n" and depth == 0:
            where, words = "key", []
        elif where == "value":
            depth = max(0, depth + (piece in "[{") - (piece in "]}"))
        elif piece == "[" and not words:
            where = "header"
        elif (piece == "]" and where == "header") or (piece == "=" and where == "key"):
            full = tuple(words) if where == "header" else (*table, *words)
            table = full if where == "header" else table
            for length in range(1, len(full) + 1):
                places.setdefault(full[:length], line)
            where = "value"
        elif piece[0] in "\"'" or piece[0].isalnum() or piece[0] in "_-":
            words.append(_unquoted(piece))
        line += piece.count("\n")
    return places


def _unquoted(piece: str) -> str:
    if piece[0] not in "\"'":
        return piece
    try:
        return str(tomllib.loads(f"k = {piece}")["k"])
    except ValueError:
        return piece


def line_of(lines: Mapping[Key, int], key: Key) -> int | None:
    """The line of ``key``, else of the nearest table around it; None: nothing of it is in the text."""
    return next((lines[key[:end]] for end in range(len(key), 0, -1) if key[:end] in lines), None)
