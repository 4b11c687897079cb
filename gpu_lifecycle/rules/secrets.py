"""What must not be shown: the engine's API key and the like, taken out of what the engine prints of itself.

SGLang prints its whole configuration when it starts, keys and all (``server_args=``), and vLLM those arguments that are not the
default. What is known to be secret is replaced wherever it stands; a key that is not known, where it stands under its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

HIDDEN = "***"
LEAST = 4  # characters of a key; a shorter one is part of too many innocent words
LEAST_NAMED = 8  # ... of what only its name calls a secret: ``--pad-token 0`` is none

_NAME = re.compile(r"(?:key|token|secret|passw(?:or)?d)$", re.IGNORECASE)
_API_KEY = re.compile(r"api[_-]?key$", re.IGNORECASE)
_UNDER_ITS_NAME = re.compile(
    rb"((?:api_?key|API_?KEY)['\"]?\s{0,3}[=:]\s{0,3})(?!None\b|null\b|\*\*\*)"
    rb"(?:\[[^\]\n]*\]|'[^'\n]*'|\"[^\"\n]*\"|[^\s,;)\]}]+)"
)


class Secrets:
    """Those that are known by now. A key may be renewed while an engine runs, so that more may come."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._known: list[bytes] = []
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        """Knows it from now on, also as Python and JSON write it."""
        if len(text) < LEAST or text == HIDDEN:
            return
        forms = {form.encode("utf-8", "surrogateescape") for form in (text, repr(text)[1:-1], json.dumps(text)[1:-1])}
        self._known = sorted({*self._known, *forms}, key=len, reverse=True)  # the longest first: one may hold another

    def hide(self, data: bytes) -> bytes:
        """The same without them."""
        for secret in self._known:
            data = data.replace(secret, HIDDEN.encode())
        return data

    def beginning(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of one."""
        longest = len(self._known[0]) - 1 if self._known else 0
        return next(
            (size for size in range(min(longest, len(data)), 0, -1) if any(s.startswith(data[-size:]) for s in self._known)), 0
        )


class Veil:
    """Takes secrets out of a stream that comes in pieces, wherever it is cut."""

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.held = b""  # what may be the beginning of one

    def through(self, data: bytes) -> bytes:
        """What can be shown by now."""
        data = self.secrets.hide(self.held + data)
        shown = len(data) - self.secrets.beginning(data)
        self.held = data[shown:]
        return data[:shown]

    def rest(self) -> bytes:
        """The stream has ended: what is held was no secret."""
        held, self.held = self.held, b""
        return held


def hide_named(data: bytes) -> bytes:
    """A line without the values that stand in it as somebody's API key."""
    return _UNDER_ITS_NAME.sub(rb"\1***", data)


def given(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """The secrets in a command line and in variables, by the names that they bear.

    An API key's option may have several values, one after the other (vLLM) or with commas between them (llama.cpp).
    """
    option = ""
    for word in command:
        value = word
        if word.startswith("-"):
            option, _, value = word.partition("=")
        yield from _values(option, value)
        if value and not _API_KEY.search(option):
            option = ""  # it has had its value
    for name, value in environment.items():
        yield from _values(name, value)


def _values(name: str, value: str) -> Iterator[str]:
    if _API_KEY.search(name):
        yield from (value, *value.split(","))
    elif _NAME.search(name) and len(value) >= LEAST_NAMED:
        yield value
