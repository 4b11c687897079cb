"""Text from outside, made safe to show: titles, answers of servers, kernel lines, values of a config file."""

from __future__ import annotations

import re
from unicodedata import category

# Characters that draw nothing although Unicode calls them letters or marks, so that isprintable() lets them
# pass (Unicode's Default_Ignorable_Code_Point, DerivedCoreProperties.txt): two names that look alike must not
# read alike.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_ELLIPSIS = "…"


def printable(text: str | bytes, limit: int = 200) -> str:
    r"""Return ``text`` as at most ``limit`` characters that draw something, on one line.

    Bytes are read as UTF-8. A byte that is not UTF-8 becomes ``\xNN``, so does a byte that ``os.fsdecode``
    has turned into a lone surrogate. Everything that ``str.isprintable`` refuses (control characters, line
    and paragraph separators, bidi controls, zero-width characters, surrogates, every space but the plain one)
    and every invisible letter becomes ``\xNN``, ``\uNNNN`` or ``\UNNNNNNNN``. A backslash stays as it is: the
    result is for reading, not for decoding. What is too long ends in an ellipsis, never inside an escape.
    Never raises.
    """
    if limit < 1:
        return ""
    if isinstance(text, bytes):  # a character takes 4 bytes at most, so the rest cannot be shown anyway
        text = text[: 4 * (limit + 1)].decode("utf-8", "surrogateescape")
    if len(text) <= limit and text.isprintable() and (text.isascii() or not _INVISIBLE.search(text)):
        return text
    pieces = [_escape(character) for character in text[: limit + 1]]
    if len(text) <= limit and sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    return _shorten(pieces, limit - 1) + _ELLIPSIS


# Skin tones, the letters of flags, and the vowels of which Korean syllables are put together: whether one takes columns of
# its own, terminals do not agree. Nor do they on marks that take space (category Mc).
_UNSTEADY = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")


def steady(text: str, limit: int = 200) -> str:
    """``printable``, without what is wider on some terminals than on others: for the cells of tables."""
    shown = printable(text, limit)
    if shown.isascii():
        return shown
    return "".join(_code(each) if _UNSTEADY.match(each) or category(each) == "Mc" else each for each in shown)


def _escape(character: str) -> str:
    code = ord(character)
    if character.isprintable() and not (code > 0x300 and _INVISIBLE.match(character)):
        return character
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: the byte that was there
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else _code(character)


def _code(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _shorten(pieces: list[str], room: int) -> str:
    kept: list[str] = []
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            break
        kept.append(piece)
    return "".join(kept)


_SECRET = re.compile(r"(--?[a-z0-9_-]*(?:key|token|secret|passw(?:or)?d)(?:=|\s+))(?!-)\S+", re.IGNORECASE)


def redact(title: str) -> str:
    """A command line without the values of options that name a key, a token or a password: logs are read by many."""
    return _SECRET.sub(r"\1***", title)
