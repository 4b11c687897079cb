"""The shape of one signature."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Rank(IntEnum):
    """How near to the cause a line is: one rank that fails makes seven others fail, in other words and often sooner."""

    CAUSE = 0
    EFFECT = 1  # only where nothing nearer was said: a time-out while waiting for a dead rank; what is often but a warning
    ECHO = 2  # says only that something has failed


@dataclass(frozen=True, slots=True)
class Signature:
    """``words``: one of them, in small letters, stands in every line that ``pattern`` fits; whose own letters are of any size.

    ``text`` says what happened, ``cure`` what to do, ``source`` where the line is from: program, and file or function.
    """

    code: str
    words: tuple[str, ...]
    pattern: str
    text: str
    cure: str
    source: str
    rank: Rank = Rank.CAUSE


def signature(
    code: str, words: str, pattern: str, text: str, cure: str, source: str, rank: Rank = Rank.CAUSE
) -> Signature:
    """``words`` are parted by bars."""
    return Signature(code, tuple(words.split("|")), pattern, text, cure, source, rank)
