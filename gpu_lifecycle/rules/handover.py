"""What one version of the daemon hands to the next, which takes its place in the same process: a run as plain data.

The other side may be older or newer: what it does not know is left out, and what is missing keeps its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpu_lifecycle.facts import Gpu, Identity, Phase
from gpu_lifecycle.rules.budget import Budget
from gpu_lifecycle.rules.life import Life, Limits

SCHEMA = 2  # 2: the engine's output comes through pipes, which a version that knows nothing of them would not read
TAKEN = (1, SCHEMA)
_SEEN = ("memory", "resident", "shrunk", "tight")  # seen anew at the next look
_OWN = ("limits", "phase", "workers", "budget", "status", "mark", *_SEEN)  # not plain, or not to be handed over
_GPU = ("uuid", "index", "minor", "pci", "name", "total", "used")
_INSTANCE = ("parent", "instance", "compute_instance")  # which versions that knew no instances did not write


@dataclass(frozen=True, slots=True)
class Handover:
    """``config`` is the text that the engine was started with, ``latest`` the one that counts for all else by now."""

    run: str
    life: Mapping[str, Any]
    gpus: tuple[Gpu, ...]
    config: str
    latest: str
    version: str
    changes: str = ""
    oom: int = 0
    stop: bool = False  # a stop was asked for meanwhile
    output: Mapping[str, Any] = field(default_factory=dict)  # the pipes' descriptors, and what was read of them
    start: Mapping[str, Any] = field(default_factory=dict)  # what is recorded of it for its picture

    def document(self) -> dict[str, Any]:
        gpus = [{name: getattr(gpu, name) for name in (*_GPU, *_INSTANCE)} for gpu in self.gpus]
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return plain | {"schema": SCHEMA, "life": dict(self.life), "gpus": gpus}


def read(document: Any) -> Handover:
    """The handover in a document. Raises ValueError where it is none that can be taken over."""
    try:
        if document["schema"] not in TAKEN:
            raise ValueError(f"its schema is {document['schema']}, and this version takes over {SCHEMA}")
        texts = {name: _of(str, document[name]) for name in ("run", "config", "latest", "version", "changes")}
        return Handover(
            **texts,
            life=_of(dict, document["life"]),
            gpus=tuple(_gpu(item) for item in document["gpus"]),
            oom=_of(int, document["oom"]),
            stop=_of(bool, document["stop"]),
            output=_of(dict, document.get("output", {})),
            start=_of(dict, document.get("start", {})),
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"it is not as this version would write it: {error!r}") from error


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _gpu(item: Mapping[str, Any]) -> Gpu:
    instance = {name: item[name] for name in _INSTANCE if name in item}
    return Gpu(**{name: item[name] for name in _GPU}, **instance, processes=None)


def pack(life: Life) -> dict[str, Any]:
    """A life as plain data."""
    plain = {item.name: getattr(life, item.name) for item in fields(life) if item.name not in _OWN}
    return {name: value for name, value in plain.items() if _plain(value)} | {
        "phase": str(life.phase),
        "workers": [[item.boot_id, item.pid, item.start_ticks] for item in sorted(life.workers, key=lambda item: item.pid)],
        "budget": [life.budget.failed, life.budget.same, life.budget.like],
    }


def unpack(packed: Mapping[str, Any], limits: Limits) -> Life:
    """The life that was packed, under these limits. Raises ValueError where it does not fit."""
    life = Life(limits)
    known = {item.name: getattr(life, item.name) for item in fields(life) if item.name not in _OWN}
    given = {name: packed[name] for name, default in known.items() if name in packed and _fits(packed[name], default)}
    try:
        failed, same, like = packed["budget"]
        workers = frozenset(Identity(boot, pid, ticks) for boot, pid, ticks in packed["workers"])
        return replace(life, **given, phase=Phase(packed["phase"]), workers=workers, budget=Budget(failed, same, like))
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"its life is not as this version would write it: {error!r}") from error


def _plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _fits(value: object, default: object) -> bool:
    """Of the kind that the field has; a time may be whole, and a deadline may be none."""
    if default is None or isinstance(default, float):
        return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    return type(value) is type(default)


def changes(old: Mapping[str, Any], new: Mapping[str, Any], fixed: Sequence[str]) -> tuple[list[str], list[str]]:
    """The keys that differ between two configs: those that count at once, and those of sections ``fixed`` till the next start.

    Values are not shown: a command or a variable may hold a key.
    """
    now: list[str] = []
    later: list[str] = []
    for section in sorted(old.keys() | new.keys()):
        one, other = old.get(section) or {}, new.get(section) or {}
        differing = [f"{section}.{key}" for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
        (later if section in fixed else now).extend(differing)
    return now, later
