"""What systemd reads of an ``EnvironmentFile=`` (systemd.exec(5)). Pure, and never an exception.

It is no shell's syntax: a backslash outside of quotes keeps the next character, a quote counts only where a value, or what
follows a quoted part of it, begins, and a comment is a whole line. Held equal to systemd itself by a test in the test machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

WHITE, NEWLINE, COMMENT = " \t\n\r", "\n\r", "#;"
UNESCAPED = '"\\`$'  # what a backslash is taken from, within double quotes
COMMENTS_END = 254  # the version from which a backslash at the end of a comment does not make the next line one
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_CHARACTER = re.compile("[\ufdd0-\ufdef" + "".join(f"{chr(plane | 0xFFFE)}{chr(plane | 0xFFFF)}" for plane in
                           range(0, 0x110000, 0x10000)) + "\ud800-\udfff]")  # fmt: skip
_State = Callable[["_Reader", str], None]


def read(text: str, version: int | None = None) -> dict[str, str] | None:
    """The variables of one file. None: systemd refuses the file as a whole, for it holds what is no text.

    ``version`` is systemd's, None the newest.
    """
    if "\0" in text:
        return None
    reader = _Reader(long_comments=version is not None and version < COMMENTS_END)
    for character in text:
        reader.state(reader, character)
    pairs = reader.end()
    if any(_NO_CHARACTER.search(part) for pair in pairs for part in pair):
        return None
    return {name: value for name, value in pairs if _NAME.fullmatch(name)}


def merged(base: Mapping[str, str], files: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """A file wins over ``Environment=``, a later file over an earlier one."""
    found = dict(base)
    for values in files:
        found |= values
    return found


class _Reader:
    """One pass over the characters; ``state`` takes the next one."""

    def __init__(self, *, long_comments: bool) -> None:
        self.state: _State = _Reader.before_name
        self.long_comments = long_comments
        self.pairs: list[tuple[str, str]] = []
        self._begin()

    def _begin(self) -> None:
        self.state = _Reader.before_name
        self.name = self.value = ""
        self.kept = 0  # characters of the value that were escaped, or stand before such: white space there stays

    def _push(self) -> None:
        self.pairs.append((self.name.rstrip(WHITE), self.value))
        self._begin()

    def _push_stripped(self) -> None:
        self.value = self.value[: self.kept] + self.value[self.kept :].rstrip(WHITE)
        self._push()

    def end(self) -> list[tuple[str, str]]:
        """What has begun counts, a quote that is not closed too; a name without a value does not."""
        if self.state is _Reader.plain:
            self._push_stripped()
        elif self.state not in (_Reader.before_name, _Reader.in_name, _Reader.comment, _Reader.escaped_in_comment):
            self._push()
        return self.pairs

    def before_name(self, character: str) -> None:
        if character in COMMENT:
            self.state = _Reader.comment
        elif character not in WHITE:
            self.name, self.state = character, _Reader.in_name

    def in_name(self, character: str) -> None:
        if character in NEWLINE:
            self._begin()
        elif character == "=":
            self.state = _Reader.before_value
        else:
            self.name += character

    def before_value(self, character: str) -> None:
        if character in NEWLINE:
            self._push()
        elif character in "'\"\\":
            self.state = {"'": _Reader.single, '"': _Reader.double, "\\": _Reader.escaped}[character]
        elif character not in WHITE:
            self.value += character
            self.state = _Reader.plain

    def plain(self, character: str) -> None:
        if character in NEWLINE:
            self._push_stripped()
        elif character == "\\":
            self.state = _Reader.escaped
        else:
            self.value += character

    def escaped(self, character: str) -> None:
        self.value += "" if character in NEWLINE else character
        self.kept = len(self.value)
        self.state = _Reader.plain

    def single(self, character: str) -> None:
        if character == "'":
            self.state = _Reader.before_value
        else:
            self.value += character

    def double(self, character: str) -> None:
        if character == '"':
            self.state = _Reader.before_value
        elif character == "\\":
            self.state = _Reader.escaped_in_double
        else:
            self.value += character

    def escaped_in_double(self, character: str) -> None:
        if character in UNESCAPED:
            self.value += character
        elif character != "\n":
            self.value += "\\" + character
        self.state = _Reader.double

    def comment(self, character: str) -> None:
        if character == "\\":
            self.state = _Reader.escaped_in_comment
        elif character in NEWLINE:
            self._begin()

    def escaped_in_comment(self, character: str) -> None:
        self.state = _Reader.comment
        if character in NEWLINE and not self.long_comments:
            self._begin()

