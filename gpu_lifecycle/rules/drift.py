"""What a ready engine's memory does over time: a part that vanishes, and room that is used up. Told, and no verdict.

Whether the engine works is for its workers, its socket and its answers to show; below the least amount that READY=1 asks for,
the checks fail anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.life import Life, Tell
from gpu_lifecycle.rules.quantity import show_size
from gpu_lifecycle.rules.readiness import Look, blind

VANISHED = 0.1  # of what was resident: caches that an engine gives back on its own are less
LEAST = 512 << 20  # bytes; what a bare CUDA context takes
TIGHT = 256 << 20  # bytes left: the next large request, or a library's own buffers, may not find room
ROOM_AGAIN = 2 * TIGHT


def notice(life: Life, look: Look) -> tuple[Life, tuple[Tell, ...]]:
    """Says once for each GPU that memory has vanished or is used up, and again only after it was otherwise.

    What is left of too little is told by the check that fails for it.
    """
    if not life.was_ready or life.stage or blind(look) or look.estimated:
        return life, ()
    resident = {uuid: max(amount or 0, life.resident.get(uuid, 0)) for uuid, amount in look.memory.items()}
    gone = frozenset(uuid for uuid, most in resident.items() if _vanished(look.memory[uuid], most, uuid in life.shrunk))
    tight = frozenset(uuid for uuid, room in look.room.items() if room < (ROOM_AGAIN if uuid in life.tight else TIGHT))
    labels = life.limits.needs.gpus
    short = frozenset(uuid for uuid, amount in look.memory.items() if (amount or 0) < life.limits.needs.min_used)
    told = [*_gone(gone - life.shrunk - short, look.memory, resident, labels), *_tight(tight - life.tight, look.room, labels)]
    return replace(life, resident=resident, shrunk=gone, tight=tight), tuple(told)


def _vanished(amount: int | None, most: int, before: bool) -> bool:
    """What was so ``before`` stays so until half of it is back: a figure that wavers is told once."""
    limit = max(LEAST, VANISHED * most)
    return amount is not None and most - amount > (limit / 2 if before else limit)


def _gone(
    uuids: frozenset[str], memory: Mapping[str, int | None], most: Mapping[str, int], labels: Mapping[str, str]
) -> Iterator[Tell]:
    for uuid in (uuid for uuid in labels if uuid in uuids):
        had, has = show_size(most[uuid]), show_size(memory[uuid])
        text = f"GPU {labels[uuid]}: this unit held {had} and holds {has} now, and all its workers live"
        yield Tell(Event("memory-vanished", text, {"GPU_LIFECYCLE_GPU": uuid}))


def _tight(uuids: frozenset[str], room: Mapping[str, int], labels: Mapping[str, str]) -> Iterator[Tell]:
    for uuid in (uuid for uuid in labels if uuid in uuids):
        text = f"GPU {labels[uuid]}: {show_size(room[uuid])} of its memory are left"
        yield Tell(Event("memory-tight", text, {"GPU_LIFECYCLE_GPU": uuid}))
