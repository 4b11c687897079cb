"""The text of a unit file and of its drop-ins, as systemd reads it (systemd.syntax(7)). Pure, and never an exception."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class UnitText:
    """One file. ``problem``: why it was not read, in words; "" where it was."""

    path: str
    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One assignment: ``value`` as it stands there, lines that go on put together; ``line`` is its first one."""

    path: str
    line: int
    section: str
    key: str
    value: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


def settings(files: Sequence[UnitText]) -> tuple[Setting, ...]:
    """Every assignment, in the order in which systemd applies them: the unit file first, then its drop-ins."""
    return tuple(item for file in files for item in _settings(file))


def _settings(file: UnitText) -> Iterator[Setting]:
    section = ""
    for number, line in _whole_lines(file.text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, _, value = line.partition("=")
            yield Setting(file.path, number, section, key.strip(), value.strip())


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that say something, with their numbers; one that ends in a backslash goes on, past comments in between."""
    begun, parts = 0, list[str]()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not parts):
            continue
        begun = begun if parts else number
        parts.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            yield begun, " ".join(parts)
            parts = []
    if parts:
        yield begun, " ".join(parts)


def last(found: Sequence[Setting], key: str, section: str = "Service") -> Setting | None:
    """The assignment that has the last word; None: nobody says it, so it is systemd's default."""
    return next((item for item in reversed(found) if item.key == key and item.section == section), None)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line in which a file is another one than it should be; "" for a line that is not there."""

    line: int
    has: str
    wanted: str


def difference(has: str, wanted: str) -> Difference | None:
    """None where both say the same: comments, blank lines and how a long line is broken do not count."""
    mine, theirs = list(_whole_lines(has)), [line for _, line in _whole_lines(wanted)]
    for here, line in zip_longest(mine, theirs):
        number, text = here or (has.count("\n") + 1, "")
        if text != (line or ""):
            return Difference(number, text, line or "")
    return None
