"""The how-to pages as programs: what a page tells to write and to type, and whether what it shows is what comes.

A ``console`` block is typed: each line that begins with ``# `` is one command, what follows is what it prints, stderr too. In
what is shown, ``...`` stands for any text within a line, alone on a line for any lines, and a run of spaces for any other. A
command must succeed, unless the next one is ``echo $?``, or systemctl's word of a failed job is shown. A ``toml``, ``ini`` or
``perl`` block after a line that begins with a path in backquotes is written to that path. A comment ``picture: NAME`` sets
something up that a page speaks of. All other blocks are not run, and the line before them says so and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "how-to"
NOT_RUN = "Not run by the tests"
FILES = ("toml", "ini", "perl")
ANY = "..."
_PART = re.compile(r"^<!-- picture: ([a-z0-9-]+) -->$|^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"^`(/[^`]+)`")


@dataclass(frozen=True, slots=True)
class Picture:
    """Something that the page takes for given."""

    name: str


@dataclass(frozen=True, slots=True)
class File:
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """``shown``: the lines that the page shows below it."""

    line: str
    shown: tuple[str, ...]


Step = Picture | File | Command


def pages() -> list[Path]:
    return sorted(FOLDER.glob("*.md"))


def steps(text: str) -> Iterator[Step]:
    """All that a page does, in order. Raises ValueError for a block that says neither what it is nor that it is not run."""
    for part in _PART.finditer(text):
        picture, language, body = part.groups()
        if picture:
            yield Picture(picture)
        elif language == "console":
            yield from commands(body)
        else:
            yield from _other(text[: part.start()], language, body)


def _other(before: str, language: str, body: str) -> Iterator[Step]:
    above = before.rstrip().splitlines()[-1] if before.strip() else ""
    path = _PATH.match(above)
    if language in FILES and path:
        yield File(path[1], body)
    elif NOT_RUN not in above:
        raise ValueError(f'the {language} block that begins with "{body.splitlines()[0]}" is neither run nor marked as not run')


def commands(body: str) -> Iterator[Command]:
    lines = body.splitlines()
    if lines and not lines[0].startswith("# "):
        raise ValueError(f'a console block begins with a command, and not with "{lines[0]}"')
    at = 0
    while at < len(lines):
        line = lines[at].removeprefix("# ")
        at += 1
        while line.endswith("\\"):
            line = f"{line[:-1].rstrip()} {lines[at].strip()}"
            at += 1
        end = next((number for number in range(at, len(lines)) if lines[number].startswith("# ")), len(lines))
        yield Command(line, tuple(lines[at:end]))
        at = end


def fits(shown: tuple[str, ...], real: str) -> bool:
    """Whether a command has printed what the page shows."""
    pattern = "".join("(?:.*\n)*" if line.strip() == ANY else f"{_line(line)}\n" for line in shown)
    text = "".join(f"{_plain(line)}\n" for line in real.splitlines())
    return re.fullmatch(pattern, text) is not None


def _plain(line: str) -> str:
    return re.sub(" +", " ", line).strip()


def _line(line: str) -> str:
    return ".*".join(re.escape(part) for part in _plain(line).split(ANY))
