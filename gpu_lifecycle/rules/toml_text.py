"""Values written as TOML that reads back as the same value, and that is safe to show on a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpu_lifecycle.rules.text import printable

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_TIME_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "min": 60_000_000, "s": 1_000_000, "ms": 1000, "us": 1}
_SIZE_UNITS = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def toml_text(text: str) -> str:
    """A basic string; what draws nothing, or moves the cursor, is escaped."""
    return '"' + "".join(_character(character) for character in text) + '"'


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if printable(character, 12) == character else f"\\U{ord(character):08x}"


def toml_duration(seconds: float) -> str:
    """A duration to the microsecond, in the units that it is a whole number of: ``"1h 30min"``."""
    rest, parts = round(seconds * 1_000_000), []
    for unit, length in _TIME_UNITS.items():
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count}{unit}")
    return toml_text(" ".join(parts) or "0s")


def toml_size(size: int) -> str:
    """A size in the largest unit that it is a whole number of: ``"512MiB"``."""
    unit, factor = next((unit, factor) for unit, factor in _SIZE_UNITS.items() if size % factor == 0)
    return toml_text(f"{size // factor}{unit}" if size else "0B")


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)


def toml_value(value: Any) -> str:
    """A text, number, truth value, list or table, on one line. Raises TypeError for anything else."""
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(key)} = {toml_value(item)}' for key, item in value.items())} }}"
    raise TypeError(f"no TOML for {value!r}")
