"""Busy, idle, or stalled: hours of simulated looks, with every hang found in time and no innocent one taken for a hang."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Identity, Phase
from gpu_lifecycle.rules.life import Life, Limits
from gpu_lifecycle.rules.lifecycle import Looked, Notify, Started, step
from gpu_lifecycle.rules.liveness import Beat, Pulse, feel, in_hand
from gpu_lifecycle.rules.metrics import Counters
from gpu_lifecycle.rules.readiness import Health, Look, Needs, Socket

GRACE, INTERVAL = 300.0, 5.0
LIMITS = Limits(Needs({"GPU-a": 0}, 1), 600, 3600, INTERVAL, 25, 3, 120, 10, 30, busy_grace=GRACE)
WORKER = frozenset({Identity("boot", 11, 1)})
OK, SLOW = Health(200, "status 200"), Health(None, "no answer within 25 s")


def counters(tokens: float, running: int | None = 0, queued: int | None = 0) -> Counters:
    return Counters({"tokens": tokens}, running, queued)


def feels(*looks: tuple[float, Counters | None], gap: bool = False, within: bool = True) -> list[Beat]:
    pulse, beats = Pulse(), []
    for now, seen in looks:
        pulse, beat = feel(pulse, seen, now, GRACE, gap=gap, within=within)
        beats.append(beat)
    return beats


@pytest.mark.parametrize(
    ("looks", "last"),
    [
        ([(0, None)], Beat.UNKNOWN),
        ([(0, counters(5))], Beat.IDLE),
        ([(0, counters(5, 1))], Beat.QUIET),
        ([(0, counters(5, 1)), (5, counters(6, 1))], Beat.MOVING),
        ([(0, counters(5, 1)), (300, counters(5, 1))], Beat.QUIET),
        ([(0, counters(5, 1)), (301, counters(5, 1))], Beat.STALLED),
        ([(0, counters(5, 0, 3)), (301, counters(5, 0, 3))], Beat.STALLED),
        ([(0, counters(5)), (90000, counters(5))], Beat.IDLE),
        ([(0, counters(5)), (90000, counters(5)), (90005, counters(5, 1))], Beat.QUIET),
        ([(0, counters(5, 1)), (200, None), (400, counters(5, 1))], Beat.QUIET),
        ([(0, counters(5, 1)), (301, counters(0, 1))], Beat.QUIET),
        ([(0, counters(5, None, None)), (90000, counters(5, None, None))], Beat.IDLE),
    ],
    ids=["no counters", "idle", "work", "moves", "within the grace", "stalled", "queued and stalled", "idle for a day",
         "the clock starts with the work", "not seen in between", "the core began anew", "says nothing of its work"],
)  # fmt: skip
def test_a_beat(looks: list[tuple[float, Counters | None]], last: Beat) -> None:
    assert feels(*looks)[-1] is last


def test_silence_proves_nothing_where_counters_move_at_the_end_or_after_a_gap() -> None:
    looks = ((0.0, counters(5, 1)), (9000.0, counters(5, 1)))
    assert feels(*looks, within=False)[-1] is Beat.UNKNOWN, "then the health endpoint decides"
    assert feels(*looks, gap=True)[-1] is Beat.QUIET


def test_work_in_words() -> None:
    assert in_hand(counters(1, 3, 2)) == "3 running, 2 waiting"
    assert in_hand(counters(1, None, 2)) == "0 running, 2 waiting"
    assert in_hand(counters(1, None, None)) == in_hand(None) == ""


# A run, looked at for two hours


def look(health: Health, seen: Counters | None) -> Looked:
    return Looked(Look({"GPU-a": 2}, Socket(listening=True, ours=True), health, WORKER, WORKER, "", "kimi", None, seen))


def ready() -> Life:
    life, _ = step(Life(LIMITS), Started(10), 0.0)
    life, _ = step(life, look(OK, counters(0)), 1.0)
    assert life.was_ready
    return life


def live(story: list[tuple[float, Health, Counters | None]]) -> tuple[Life, float, int]:
    """Returns the last state, when the run was given up (-1: never), and how often the watchdog was fed."""
    life, fed = ready(), 0
    for now, health, seen in story:
        life, effects = step(life, look(health, seen), now)
        fed += sum("WATCHDOG=1" in effect.lines for effect in effects if isinstance(effect, Notify))
        if life.failure:
            return life, now, fed
    return life, -1.0, fed


def times(hours: float = 2.0) -> list[float]:
    return [5.0 + INTERVAL * n for n in range(int(hours * 3600 / INTERVAL))]


def idle() -> list[tuple[float, Health, Counters | None]]:
    return [(now, OK, counters(7)) for now in times()]


def steady() -> list[tuple[float, Health, Counters | None]]:
    return [(now, SLOW if int(now) % 20 else OK, counters(now * 100, 8, 3)) for now in times()]


def bursts() -> list[tuple[float, Health, Counters | None]]:
    rand, tokens = random.Random(7), 0.0
    story: list[tuple[float, Health, Counters | None]] = []
    for now in times():
        busy = int(now / 240) % 2 == 0
        tokens += rand.choice([0, 0, 50]) if busy else 0
        story.append((now, OK, counters(tokens, rand.randint(1, 5) if busy else 0)))
    return story


def prefills() -> list[tuple[float, Health, Counters | None]]:
    """A prefill of 180 s after each 60 s of rest: health times out, and nothing moves until its end."""
    return [(now, SLOW if now % 240 < 180 else OK, counters(now // 240, int(now % 240 < 180))) for now in times()]


@pytest.mark.parametrize(
    "story", [idle(), steady(), bursts(), prefills()], ids=["idle", "steady load", "bursts", "long prefill"]
)
def test_two_innocent_hours(story: list[tuple[float, Health, Counters | None]]) -> None:
    life, given_up, fed = live(story)
    assert given_up == -1.0, life.failure
    assert fed == len(story), "fed at every look"
    assert life.phase is Phase.READY


@pytest.mark.parametrize("health", [OK, SLOW], ids=["health is green", "health is silent"])
@pytest.mark.parametrize("at", [10.0, 1000.0, 5000.0])
def test_a_planted_hang_is_found_in_time(health: Health, at: float) -> None:
    story = [(now, OK if now < at else health, counters(min(now, at), 4, 9)) for now in times()]
    life, given_up, _ = live([*story])
    assert at + GRACE < given_up <= at + GRACE + 3 * INTERVAL
    assert "stalled: 4 running, 9 waiting, and no token for 5min" in life.failure


def test_an_engine_whose_core_is_dead_is_no_busy_one() -> None:
    """It answers 503 to all for ever, so nothing is in hand: the health endpoint decides, as without counters."""
    story = [(now, OK if now < 100 else Health(503, "status 503"), counters(5)) for now in times()]
    _, given_up, _ = live([*story])
    assert 100 < given_up <= 100 + 4 * INTERVAL


def test_busy_is_said_once_and_its_end_too() -> None:
    said = []
    life = ready()
    for now, health, seen in ((5.0, SLOW, counters(1, 2, 1)), (10.0, SLOW, counters(2, 2, 1)), (15.0, OK, counters(3, 2, 1))):
        life, effects = step(life, look(health, seen), now)
        said += [effect.status for effect in effects if isinstance(effect, Notify) and effect.status]
    assert said == [
        "ready, busy: 2 running, 1 waiting; the health endpoint says: no answer within 25 s",
        "ready: answers again after 10s of work",
    ]


def test_a_lost_worker_is_lost_however_busy_the_others_are() -> None:
    life = ready()
    gone = replace(look(OK, counters(9, 4)).look, alive=frozenset())
    life, _ = step(life, Looked(gone), 5.0)
    assert "lost 1 of 1 workers" in life.failure


SEEN = st.none() | st.builds(counters, st.sampled_from([0, 1, 2]), st.sampled_from([None, 0, 1]), st.sampled_from([None, 0, 1]))


@given(st.lists(st.tuples(st.sampled_from([1, 5, 299, 4000]), SEEN, st.booleans(), st.booleans()), max_size=30))
def test_nothing_is_stalled_without_work_and_a_counter_that_stood_still(
    steps: list[tuple[int, Counters | None, bool, bool]],
) -> None:
    pulse, now, last = Pulse(), 0.0, None
    for pause, seen, gap, within in steps:
        now += pause
        pulse, beat = feel(pulse, seen, now, GRACE, gap=gap, within=within)
        if beat is Beat.STALLED:
            assert seen
            assert last
            assert within
            assert not gap
            assert (seen.running or 0) + (seen.queued or 0) > 0
            assert seen.progress == last.progress
        last = seen or last
