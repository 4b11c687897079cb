"""How many lines of a unit journald takes before it drops the rest (journald.conf(5), systemd.exec(5)). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_lifecycle.rules.quantity import WrongValueError, parse_duration
from gpu_lifecycle.rules.unit_file import UnitText, last, settings

SECONDS, LINES = 30.0, 10_000  # journald's defaults
SHORTEST = 1.0  # seconds; no engine writes thousands of lines within less


def limit_of(files: Sequence[UnitText], properties: Mapping[str, Any]) -> tuple[float, int] | None:
    """Seconds and lines; None where nothing is dropped.

    A unit that says 0 for both has not switched the limit off: systemd passes nothing on then, and journald's own limit holds
    (measured on 252: of 40,000 lines 17,500 were dropped).
    """
    found = settings(files)
    interval, lines = _seconds(_value(found, "RateLimitIntervalSec"), SECONDS), _count(_value(found, "RateLimitBurst"), LINES)
    own = properties.get("LogRateLimitIntervalUSec") or 0
    interval = own / 1e6 if isinstance(own, int) and own else interval
    burst = properties.get("LogRateLimitBurst")
    lines = burst if isinstance(burst, int) and burst else lines
    if interval < SHORTEST or lines == 0 or lines >= 1_000_000:
        return None
    return interval, lines


def _value(found: Any, key: str) -> str:
    said = last(found, key, "Journal")
    return said.value if said else ""


def _seconds(text: str, default: float) -> float:
    """A number without a unit is seconds there. What journald does not understand, it leaves at the default."""
    try:
        return float(text) if text.isdecimal() and len(text) < 12 else parse_duration(text)
    except WrongValueError:
        return default


def _count(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 12 else default
