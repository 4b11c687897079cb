"""What was read of a model's folder, as plain values: every problem is one of them, none is an exception."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

ABSENT, DENIED, EMPTY, FILE, PARTIAL = "absent", "denied", "empty", "file", "partial"


@dataclass(frozen=True, slots=True)
class Shard:
    """One weight file. ``size`` is what it has, ``need`` what its header says; None: not read. Bytes."""

    size: int
    need: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder.

    ``state`` is "" where it was read; ABSENT, DENIED, EMPTY; FILE: no folder, but one file; PARTIAL: more entries than are
    read. ``denied`` are the names that the unit's user may not read. ``names`` are the entries. Of a GGUF file, ``parts`` are
    the names of all files that it is split into, and ``files`` those that are there.
    """

    path: str
    state: str = ""
    names: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    config_problem: str = ""
    config_odd: str = ""
    index: tuple[str, ...] | None = None
    index_problem: str = ""
    shards: dict[str, Shard] = field(default_factory=dict)
    not_files: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    files: dict[str, Shard] = field(default_factory=dict)

    def weights(self) -> int:
        """Bytes of the weights that a load reads: those of the index, else all."""
        return sum(shard.size for name, shard in self.shards.items() if self.index is None or name in self.index)


def plain(folder: ModelFolder) -> dict[str, Any]:
    """As it can go through a pipe."""
    return asdict(folder)


def from_plain(document: dict[str, Any]) -> ModelFolder:
    """What ``plain`` gave, on the other side."""
    read = {key: {name: Shard(**shard) for name, shard in document[key].items()} for key in ("shards", "files")}
    return ModelFolder(**{**document, **read})
