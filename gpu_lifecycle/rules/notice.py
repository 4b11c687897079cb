"""What people are told of an event, by ``notify.command``: which events, and the JSON that the command is given."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpu_lifecycle.rules.events import EVENTS, NOTICE, WARNING, Event, fields_of
from gpu_lifecycle.rules.text import printable

OURS = "notify-failed"  # never told by the command that has failed
WORDS = {3: "error", 4: "warning", 5: "notice", 6: "info"}
HANDED_ON = 20  # rows that one process of a run leaves for the next
_ALIKE = ("GPU_LIFECYCLE_EVENT", "GPU_LIFECYCLE_GPU", "GPU_LIFECYCLE_PID")
_COMMON = {"MESSAGE", "MESSAGE_ID", "PRIORITY", "SYSLOG_IDENTIFIER", "GPU_LIFECYCLE_EVENT", "GPU_LIFECYCLE_UNIT",
           "GPU_LIFECYCLE_RUN", "at"}  # fmt: skip

Row = Mapping[str, Any]


def row_of(event: Event, unit: str, run: str, at: float) -> dict[str, Any]:
    """An event as one flat row: its journal's fields, and when it was (seconds since 1970)."""
    return {**fields_of(event, unit, run), "at": round(at, 3)}


def wanted(row: Row, events: Collection[str] | None) -> bool:
    """Whether it is to be told: it is one of ``events``, or of priority warning and worse where none are named."""
    kind = EVENTS.get(_text(row, "GPU_LIFECYCLE_EVENT"))
    if kind is None or _text(row, "GPU_LIFECYCLE_EVENT") == OURS:
        return False
    return _text(row, "GPU_LIFECYCLE_EVENT") in events if events else kind.priority <= WARNING


def worth_handing_on(word: str) -> bool:
    """Of a hook's events, which the daemon tells: those that may be wanted, and do not come by the dozen."""
    return EVENTS[word].priority <= WARNING or word == "run-ended"


def worst(rows: Sequence[Row], most: int) -> tuple[list[Row], int]:
    """At most so many of them, in their order, the worst and then the newest first to stay; and how many were left out."""
    by_worth = sorted(range(len(rows)), key=lambda at: (_priority(rows[at]), -at))
    kept = sorted(by_worth[:most])
    return [rows[at] for at in kept], len(rows) - len(kept)


def alike(row: Row) -> tuple[str, ...]:
    """What makes another event the same one to a person."""
    return tuple(_text(row, key) for key in _ALIKE)


def document(row: Row, host: str, skipped: int) -> dict[str, Any]:
    """The JSON. ``skipped``: how many like it were not told since the last one."""
    word = _text(row, "GPU_LIFECYCLE_EVENT")
    kind = EVENTS[word]
    return {
        "schema": 1,
        "event": word,
        "priority": WORDS[kind.priority],
        "at": row.get("at") if isinstance(row.get("at"), int | float) else None,
        "host": printable(host, 260),
        "unit": _text(row, "GPU_LIFECYCLE_UNIT"),
        "run": _text(row, "GPU_LIFECYCLE_RUN"),
        "subject": _filled(kind.subject, row),
        "message": _text(row, "MESSAGE"),
        "explanation": _filled(kind.text, row),
        "fields": {key: _text(row, key) for key in row if key not in _COMMON and isinstance(key, str)},
        "skipped": skipped,
    }


def _priority(row: Row) -> int:
    kind = EVENTS.get(_text(row, "GPU_LIFECYCLE_EVENT"))
    return kind.priority if kind else NOTICE


def _text(row: Row, key: str) -> str:
    """A row may come from the state file, which is the unit's user's to write."""
    value = row.get(key)
    return printable(value, 2000) if isinstance(value, str) else ""


def _filled(text: str, row: Row) -> str:
    """As journalctl fills the catalog's variables in."""
    return re.sub(r"@(\w+)@", lambda match: _text(row, match[1]) or "?", text)
