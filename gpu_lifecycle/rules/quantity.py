"""Durations and sizes as people write them in a config file and as messages show them.

The spelling of durations is that of systemd.time(7), so that a value can be carried over from a unit file,
with one difference: a number without a unit is refused. Sizes take powers of 1024 only, under their own
names, because "76GB" on a GPU's data sheet and in its driver's output differ by 7 percent.
"""

from __future__ import annotations

import re

from gpu_lifecycle.rules.text import printable

_SECONDS = {
    "us": 1e-6, "usec": 1e-6, "µs": 1e-6,
    "ms": 1e-3, "msec": 1e-3,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
DURATION_UNITS, SIZE_UNITS = tuple(_SECONDS), tuple(_BYTES)
_MEANT = {"k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB", "b": "B"}

_LONGEST = 365 * 86400.0  # a wait longer than a year is a slip of the hand
_LARGEST = 1 << 60  # an exbibyte: far above any node, far below where floats lose whole MiB

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PLAIN = re.compile(_NUMBER)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*([^\W\d_]+)\s*")
_DURATION = re.compile(rf"(?:{_NUMBER}\s*[^\W\d_]+\s*)+")
_SIZE = re.compile(rf"({_NUMBER})\s*([^\W\d_]+)")

_DURATION_CURE = 'write it like "10s", "2min", "1h 30min" or "500ms"'
_SIZE_CURE = 'write it like "512MiB" or "76GiB"'


class WrongValueError(ValueError):
    """A value that cannot be used: ``reason`` says why, ``cure`` what to write.

    ``at`` is the path inside the value that is wrong (a key of a table), empty for the value itself.
    """

    def __init__(self, reason: str, cure: str = "", at: tuple[str, ...] = ()) -> None:
        super().__init__(f"{reason} ({cure})" if cure else reason)
        self.reason = reason
        self.cure = cure
        self.at = at


def parse_duration(value: object) -> float:
    """The seconds that ``value`` names: ``"10s"``, ``"2min"``, ``"1h 30min"``, ``"1.5h"``, ``"500ms"``.

    Raises WrongValueError for anything else: a number without a unit (in quotes or not), a unit that does not
    exist, a negative or unbounded duration, more than a year. Units: us, ms, s, min, h, d and their long
    forms (systemd.time(7)).
    """
    text = _text(value, "duration", "s", _DURATION_CURE)
    if text.lower() in ("inf", "infinity", "never", "forever"):
        raise WrongValueError("every wait here is bounded", 'write a long one, such as "24h"')
    if not _DURATION.fullmatch(text):
        raise WrongValueError(f'"{printable(text, 40)}" is not a duration', _DURATION_CURE)
    total = sum(float(number) * _seconds_per(unit) for number, unit in _DURATION_PART.findall(text))
    if total > _LONGEST:
        raise WrongValueError("a duration is at most 365d", _DURATION_CURE)
    return total


def _seconds_per(unit: str) -> float:
    if unit not in _SECONDS:
        raise WrongValueError(
            f'"{printable(unit, 20)}" is no unit of time',
            "units are us, ms, s, min, h and d, in small letters",
        )
    return _SECONDS[unit]


def parse_size(value: object) -> int:
    """The bytes that ``value`` names: ``"512MiB"``, ``"76 GiB"``, ``"1.5TiB"``, ``"4096B"``.

    Raises WrongValueError for anything else; for K, KB, M, MB, G, GB and the like with the unit that was
    meant.
    """
    text = _text(value, "size", "MiB", _SIZE_CURE)
    match = _SIZE.fullmatch(text)
    if not match:
        raise WrongValueError(f'"{printable(text, 40)}" is not a size', _SIZE_CURE)
    number, unit = match.groups()
    if unit not in _BYTES:
        raise _no_unit_of_size(number, unit)
    size = int(number) * _BYTES[unit] if number.isdigit() and len(number) < 20 else float(number) * _BYTES[unit]
    if size > _LARGEST:
        raise WrongValueError("a size is at most 1048576TiB", _SIZE_CURE)
    return round(size)


def _no_unit_of_size(number: str, unit: str) -> WrongValueError:
    reason = f'"{printable(unit, 20)}" is no unit of size here'
    meant = _MEANT.get(unit[0].lower()) if unit.lower() in ("b", *_spellings()) else None
    if meant:
        return WrongValueError(reason, f'did you mean {meant}? write "{printable(number, 20)}{meant}"')
    return WrongValueError(reason, "units are B, KiB, MiB, GiB and TiB")


def _spellings() -> list[str]:
    return [prefix + ending for prefix in "kmgt" for ending in ("", "b", "ib")]


def _text(value: object, kind: str, unit: str, cure: str) -> str:
    """The trimmed text of ``value``, or why it cannot be a quantity of this kind."""
    if isinstance(value, str):
        text = value.strip()
        if _PLAIN.fullmatch(text):
            raise WrongValueError(f"a {kind} needs a unit", f'write "{printable(text, 20)}{unit}"')
        if text.startswith("-"):
            raise WrongValueError(f"a {kind} is not negative", cure)
        return text
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # only a number of a sane size is printed: a huge one has no short form, and nan has no meaning
        raise WrongValueError(f"a {kind} needs a unit", f'write "{value}{unit}"' if 0 <= value < 1e9 else cure)
    raise WrongValueError(f"a {kind} is text in quotes", cure)


def show_size(size: int | None) -> str:
    """Bytes for people: ``31.2 GiB``, ``512 MiB``, ``0 B``; ``unknown`` for None."""
    if size is None:
        return "unknown"
    sign, rest, shown = ("-" if size < 0 else ""), abs(size), "B"
    value: float = rest
    for unit, factor in _BYTES.items():
        value, shown = round(rest / factor, 1), unit
        if value < 1024:
            break
    return f"{sign}{value:.1f}".removesuffix(".0") + f" {shown}"


def show_duration(seconds: float | None) -> str:
    """Seconds for people, two units at most: ``1min 32s``, ``2h 5min``, ``9.5s``, ``500ms``.

    ``unknown`` for None.
    """
    if seconds is None or seconds != seconds:  # nan alone differs from itself
        return "unknown"
    if seconds < 0:
        return "-" + show_duration(-seconds)
    if seconds == float("inf"):
        return "for ever"
    if round(seconds, 1) >= 10:
        return _whole_units(round(seconds))
    milliseconds = round(seconds * 1000)
    if milliseconds >= 1000:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    return f"{milliseconds}ms" if milliseconds else "0s"


def _whole_units(seconds: int) -> str:
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count)


def show_count(number: int, word: str) -> str:
    """``1 GPU``, ``8 GPUs``, ``2 processes``."""
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number} {word if number == 1 else plural}"
