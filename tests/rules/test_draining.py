"""A drain that is followed: what STATUS says, when systemd is asked for time, and that none of it changes how it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.life import Effect, EngineExited, InFlight, Life, LifeEvent, Limits, Notify, SignalAll, Tell, Tick
from gpu_lifecycle.rules.lifecycle import StopRequested, step
from gpu_lifecycle.rules.readiness import Needs

LIMITS = Limits(Needs({"GPU-a": "0"}), 600, 3600, 5, 5, 3, 120, 10, 30)
READY = Life(LIMITS, phase=Phase.READY, engine=10, was_ready=True, text="ready")
DRAINING, _ = step(READY, StopRequested(), 1000.0)
REFUSED = InFlight(None, "connection refused")
HAS = "; the engine has 2min to finish its requests"


def run(*moments: tuple[float, LifeEvent], life: Life = DRAINING) -> tuple[Life, list[Effect]]:
    effects: list[Effect] = []
    for now, event in moments:
        life, more = step(life, event, now)
        effects += more
    return life, effects


def lines(effects: list[Effect]) -> list[str]:
    return [line for effect in effects if isinstance(effect, Notify) for line in effect.lines]


def told(effects: list[Effect]) -> list[str]:
    return [effect.event.word for effect in effects if isinstance(effect, Tell)]


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ([(1001, InFlight(8))], "draining: 8 requests in flight" + HAS),
        ([(1001, InFlight(8)), (1002, InFlight(1))], "draining: 1 request in flight" + HAS),
        ([(1001, InFlight(8)), (1002, InFlight(0))], "draining: no request is in flight" + HAS),
        ([(1001, REFUSED)], "draining: how many requests are in flight cannot be seen: connection refused" + HAS),
        ([(1001, InFlight(8)), (1002, REFUSED)], "draining: how many requests are in flight cannot be seen: connection" + ""),
        ([(1001, InFlight(0)), (1002, REFUSED)], "draining: no request is in flight" + HAS),  # it has closed its port
        (
            [(1001, InFlight(0)), (1021, REFUSED)],
            "draining: no request has been in flight for 20s, and its main process has not ended" + HAS,
        ),
        ([(1001, InFlight(0)), (1015, InFlight(2)), (1022, InFlight(0))], "draining: no request is in flight" + HAS),
    ],
)
def test_what_is_said(seen: list[tuple[float, InFlight]], text: str) -> None:
    life, _ = run(*seen)
    assert life.text.startswith(text)
    assert life.deadline == DRAINING.deadline


def test_time_is_asked_for_while_they_get_fewer_and_only_then() -> None:
    seen = [(1001.0, InFlight(8)), (1002.0, InFlight(8)), (1003.0, InFlight(9)), (1010.0, InFlight(5)), (1011.0, InFlight(8))]
    _, effects = run(*seen, (1030.0, InFlight(0)), (1031.0, InFlight(0)))
    # what is left of the drain, grace and exit deadline, and the margin
    assert lines(effects) == [f"EXTEND_TIMEOUT_USEC={seconds}000000" for seconds in (189, 180, 160)]


def test_the_text_is_sent_when_it_changes_and_not_at_every_look() -> None:
    _, effects = run(*((1001.0 + n / 2, InFlight(3)) for n in range(20)))
    assert sum(1 for effect in effects if isinstance(effect, Notify) and effect.status) == 1


def test_an_engine_that_stays_without_requests_is_told_once() -> None:
    _, effects = run(*((1001.0 + n, InFlight(0)) for n in range(60)))
    assert told(effects) == ["drain-idle"]


def test_the_limit_holds_and_says_who_was_cut_off() -> None:
    life, effects = run((1119.0, InFlight(3)), (1119.9, Tick(9)), (1120.0, Tick(9)))
    assert told(effects) == ["drain-cut"]
    assert isinstance(effects[-1], SignalAll)
    assert "3 requests in flight cut off" in next(e.event.message for e in effects if isinstance(e, Tell))
    assert life.stage == 2


@pytest.mark.parametrize(
    "life",
    [
        READY,
        replace(READY, was_ready=False, phase=Phase.LOADING),
        step(replace(READY, was_ready=False, phase=Phase.LOADING), StopRequested(), 1000.0)[0],
        step(DRAINING, StopRequested(), 1001.0)[0],
        step(DRAINING, EngineExited(0), 1001.0)[0],
        step(replace(READY, limits=replace(LIMITS, before=20)), StopRequested(), 1000.0)[0],
    ],
    ids=["ready", "loading", "stopped while loading", "asked again", "ended", "stop.before runs"],
)
def test_in_no_other_state_it_means_anything(life: Life) -> None:
    assert step(life, InFlight(3), 1002.0) == (life, ())


def test_a_stop_while_loading_waits_for_no_drain() -> None:
    life, _ = step(replace(READY, was_ready=False, phase=Phase.LOADING), StopRequested(), 1000.0)
    assert life.phase is Phase.STOPPING
    assert life.deadline == 1003.0


@given(st.lists(st.tuples(st.floats(0, 50), st.builds(InFlight, st.none() | st.integers(0, 9), st.just("why")))))
def test_whatever_is_seen_the_deadline_stays(seen: list[tuple[float, InFlight]]) -> None:
    now, life = 1000.0, DRAINING
    for gap, event in seen:
        now += gap
        life, _ = step(life, event, now)
        assert (life.deadline, life.stage, life.phase) == (DRAINING.deadline, 1, Phase.DRAINING)
    life, _ = step(life, Tick(1), max(now, 1120.0))
    assert life.stage == 2
