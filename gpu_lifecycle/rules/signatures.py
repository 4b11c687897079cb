"""What engines say when they fail: one entry for each known cause, and which of them was first.

``match`` gives one line at most one code: the first entry of the table that fits, so of two that could, the more exact one
stands first. ``hear`` keeps what a run has said, ``first_cause`` picks the cause from it: never an echo while a cause is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_lifecycle.rules.signatures_gpu import GPU
from gpu_lifecycle.rules.signatures_setup import SETUP
from gpu_lifecycle.rules.signatures_shape import Rank, Signature
from gpu_lifecycle.rules.signatures_world import ECHOES, WORLD

# Between these, order decides on lines that speak of two things: what is more exact comes first.
SIGNATURES: tuple[Signature, ...] = (*GPU, *SETUP, *WORLD, *ECHOES)
BY_CODE: Mapping[str, Signature] = {item.code: item for item in SIGNATURES}
WORDS = tuple({word for item in SIGNATURES for word in item.words})
APART = 120.0  # seconds of silence after which what was said before is not why the run ends now
BURST = 20.0  # ... after which a new trouble begins: a warning of the import phase is not why a load fails minutes later
OLD = 300.0  # an engine ends this long after its cause at most: SGLang takes 65 s, 120 s with a port that is taken


@dataclass(frozen=True, slots=True)
class Sign:
    """One signature as a run has said it: ``line`` is the first one, times are seconds on the monotonic clock."""

    code: str
    line: str
    first: float
    last: float
    count: int = 1


Signs = tuple[Sign, ...]


def match(line: str) -> Signature | None:
    """The signature that this line bears. Cheap where it bears none: engines write thousands of lines in a second."""
    low = line.lower()
    if not any(map(low.__contains__, WORDS)):
        return None
    for item in SIGNATURES:
        if any(word in low for word in item.words) and re.search(item.pattern, line, re.IGNORECASE):
            return item
    return None


def hear(signs: Signs, code: str, line: str, now: float) -> Signs:
    """With one more line, which bears this code. What is too old to be a cause any more is dropped."""
    signs = tuple(sign for sign in signs if now - sign.last <= OLD)
    known = next((sign for sign in signs if sign.code == code), None)
    if known is None:
        return (*signs, Sign(code, line, now, now))
    again = replace(known, last=now, count=known.count + 1)
    return tuple(again if sign is known else sign for sign in signs)


def current(signs: Signs, now: float) -> Signs:
    """Those that may tell of an end which comes now, the likeliest cause first.

    That is the first of the nearest rank in the newest burst that says more than that something has failed.
    """
    newest = max((sign.last for sign in signs), default=-APART)
    if now - newest > APART:
        return ()
    known = [sign for sign in signs if sign.code in BY_CODE and newest - sign.last <= OLD]
    bursts = _bursts(known)
    told = next((burst for burst in bursts if any(BY_CODE[sign.code].rank is not Rank.ECHO for sign in burst)), [])
    rest = [sign for burst in bursts if burst is not told for sign in burst]
    return (*sorted(told, key=_nearness), *sorted(rest, key=_nearness))


def _nearness(sign: Sign) -> tuple[Rank, float]:
    return BY_CODE[sign.code].rank, sign.first


def _bursts(signs: list[Sign]) -> list[list[Sign]]:
    """Newest first."""
    found: list[list[Sign]] = []
    for sign in sorted(signs, key=lambda item: -item.last):
        if not found or found[-1][-1].last - sign.last > BURST:
            found.append([])
        found[-1].append(sign)
    return found


def first_cause(signs: Signs) -> Sign | None:
    """The cause among signs in the order of ``current``; None where only echoes, or nothing, was said."""
    return signs[0] if signs and BY_CODE[signs[0].code].rank is not Rank.ECHO else None
