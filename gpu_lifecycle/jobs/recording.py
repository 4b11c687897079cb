"""Records what a start looks like, for ``timeline``: what the daemon sees anyhow, until the engine is ready or the run ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules import curve
from gpu_lifecycle.rules import lifecycle as life_rules
from gpu_lifecycle.rules.account import number, whole
from gpu_lifecycle.rules.lifecycle import Life
from gpu_lifecycle.rules.quantity import show_count
from gpu_lifecycle.rules.readiness import Look


class Recording:
    """One run's. After a reload in the middle of a start it begins there."""

    def __init__(self, row: Mapping[str, Any], gpus: object, *, resumed: bool) -> None:
        """``gpus``: what the hook has left of the claimed ones in the state file."""
        began = number(row, "began")
        self.began = time.time() if began is None else began
        self.curve = curve.Curve()
        self.whole = "ready_at" in row  # nothing is recorded of what comes after
        self._indices = _indices(gpus)
        self._uuids: tuple[str, ...] = ()
        self._memory: tuple[int | None, ...] = ()
        if not resumed:
            self._add(0.0, str(Phase.PRE_START))
            self._add(self._now(), str(Phase.PRE_START))
            reaped = whole(row, "reaped")
            if reaped:
                self._mark(f"{show_count(reaped, 'process')} reaped")

    def note(self, life: Life, event: life_rules.LifeEvent) -> None:
        """To be called with each event, and the life after it."""
        if self.whole:
            return
        if isinstance(event, life_rules.Started):
            self._mark("engine started")
        if isinstance(event, life_rules.Looked):
            self._looked(event.look)
        self._add(self._now(), curve.band(life.phase, life.engine_step))
        if life.was_ready:
            self._mark("READY=1")
        elif life.failure:
            self._mark(life.failure)
        self.whole = life.was_ready or life.status is not None

    def row(self) -> dict[str, str]:
        """What goes into the history."""
        if not self.curve.points:
            return {}
        return curve.row(self.curve) | {"curve_gpus": ",".join(str(self._indices.get(uuid, "?")) for uuid in self._uuids)}

    def _looked(self, look: Look) -> None:
        self._uuids = self._uuids or tuple(look.memory)
        self._memory = tuple(look.memory.get(uuid) for uuid in self._uuids)
        if look.socket.listening:
            self._mark("port open" if look.socket.ours else "port taken")
        if look.health.ok:
            self._mark("health 200")

    def _now(self) -> float:
        return max(0.0, time.time() - self.began)

    def _add(self, at: float, band: str) -> None:
        """A clock that was set back does not turn the curve back."""
        last = self.curve.points[-1].at if self.curve.points else 0.0
        self.curve = curve.further(self.curve, curve.Point(max(at, last), band, self._memory))

    def _mark(self, text: str) -> None:
        self.curve = curve.marked(self.curve, self._now(), text)


def _indices(gpus: object) -> dict[str, int]:
    """NVML's index by UUID, from the state file, which the unit's user may write."""
    items = [item for item in gpus if isinstance(item, dict)] if isinstance(gpus, list) else []
    return {str(item.get("uuid")): item["index"] for item in items if type(item.get("index")) is int}
