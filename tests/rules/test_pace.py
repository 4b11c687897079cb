"""How soon the next look comes: what is near is looked at often, and nothing is looked at often for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.life import Life, Limits
from gpu_lifecycle.rules.pace import LOADING, SERVING, WARMING, look_after
from gpu_lifecycle.rules.readiness import Health, Look, Needs, Socket

LOADS = Life(Limits(Needs({"GPU-a": "0"}), 60, 3600, 5, 5, 3, 120, 10, 30))
DEAF = Look({}, Socket(), Health(None, "nobody listens yet"))
LISTENS = replace(DEAF, socket=Socket(listening=True, ours=True))


@pytest.mark.parametrize(("last", "pause"), [(None, LOADING), (DEAF, LOADING), (LISTENS, WARMING)])
def test_a_load(last: Look | None, pause: float) -> None:
    assert look_after(LOADS, last, None) == pause


@pytest.mark.parametrize("last", [None, DEAF, LISTENS])
def test_one_that_says_that_it_serves_is_looked_at_at_once_and_less_often_then(last: Look | None) -> None:
    """It may say so before it listens; and one that is not ready for all that costs no more than before."""
    now, looks = 0.0, []
    while now < 60:
        looks.append(pause := look_after(LOADS, last, now))
        now += pause
    assert looks[0] == SERVING
    assert looks == sorted(looks)
    assert looks[-1] == look_after(LOADS, last, None)
    assert sum(1 for pause in looks if pause < looks[-1]) < 20


@pytest.mark.parametrize("phase", [Phase.READY, Phase.SUSPECT])
def test_a_ready_one(phase: Phase) -> None:
    assert look_after(replace(LOADS, phase=phase), LISTENS, 0.0) == LOADS.limits.interval
