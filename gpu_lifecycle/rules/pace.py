"""How often an engine is looked at, and how often time itself is an event. Seconds."""

from __future__ import annotations

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.life import Life
from gpu_lifecycle.rules.readiness import Look

LOADING = 0.5  # between two looks at a load
WARMING = 0.2  # ... once the engine listens: READY=1 is near
SERVING = 0.02  # ... once it says that it serves: vLLM says so some milliseconds before it listens
SLOWER = 4  # ... and a fourth of the time since then, so that one that is not ready for all that is soon looked at as before
ENDING = 0.05  # ... at the processes that are to end
TICK = 1.0  # at least this often time itself is an event while loading


def look_after(life: Life, last: Look | None, serving: float | None) -> float:
    """The pause before the next look. ``serving``: for how long the engine has said that it serves; None: it did not yet."""
    if life.phase in (Phase.READY, Phase.SUSPECT):
        return life.limits.interval
    usual = WARMING if last is not None and last.socket.listening else LOADING
    return usual if serving is None else min(max(SERVING, serving / SLOWER), usual)


def tick_after(life: Life) -> float | None:
    """The longest pause without an event; None: only what is seen moves a ready engine's life on."""
    if life.stage:
        return ENDING
    return None if life.was_ready else TICK
