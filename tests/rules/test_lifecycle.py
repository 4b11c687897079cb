"""The life of one run: what each event does in each phase, exactly; and what no sequence of events may do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_lifecycle.errors import Exit
from gpu_lifecycle.facts import Identity, Phase
from gpu_lifecycle.rules.budget import Budget
from gpu_lifecycle.rules.lifecycle import (
    BeforeEnded,
    Effect,
    EngineExited,
    Finish,
    Gather,
    Life,
    LifeEvent,
    Limits,
    Looked,
    Notify,
    Remember,
    RunBefore,
    SignalAll,
    SignalMain,
    Started,
    StopRequested,
    Tell,
    Tick,
    step,
)
from gpu_lifecycle.rules.metrics import Answer, Counters, Scrape
from gpu_lifecycle.rules.readiness import Health, Look, Needs, Signs, Socket, unmet

GIB = 2**30
LIMITS = Limits(
    Needs({"GPU-a": "0", "GPU-b": "1"}, min_used=GIB), stall=600, ceiling=3600, interval=5, probe_timeout=5, failures=3,
    drain=120, term_grace=10, exit_deadline=30,
)  # fmt: skip
WORKERS = frozenset(Identity("boot", pid, 1) for pid in (11, 12))
HEALTHY = Health(200, "status 200")
REFUSED = Health(None, "connection refused")
OURS = Socket(listening=True, ours=True)


def seen(gib: float | None = 2, socket: Socket = OURS, health: Health = HEALTHY, gone: int = 0, nvml: str = "") -> Looked:
    amount = None if gib is None else int(gib * GIB)
    alive = frozenset(sorted(WORKERS, key=lambda item: item.pid)[gone:])
    memory: dict[str, int | None] = {} if nvml else {"GPU-a": amount, "GPU-b": amount}
    return Looked(Look(memory, socket, health, WORKERS, alive, nvml, "kimi"))


EMPTY = seen(0, Socket(), REFUSED)
GOOD = seen()
SICK = seen(health=Health(503, "status 503"))
STARTED = Started(10)

# What comes of it, one word each: T:word an event, S the status line, M and A and K the signals, L a load kept, F:n the end.
STALL_US = "EXTEND_TIMEOUT_USEC=630000000"
STOP_US = "EXTEND_TIMEOUT_USEC=73000000"
DRAIN_US = "EXTEND_TIMEOUT_USEC=190000000"


ALIKE = "the engine exited with status N, N into the load"


def words(effects: tuple[Effect, ...]) -> list[str]:
    said: list[str] = []
    for effect in effects:
        match effect:
            case Notify(lines, status):
                said += [*lines, *(["S"] if status else [])]
            case Tell(event):
                said.append(f"T:{event.word}")
            case SignalMain():
                said.append("M")
            case SignalAll(kill):
                said.append("K" if kill else "A")
            case RunBefore():
                said.append("B")
            case Gather():
                said.append("G")
            case Remember():
                said.append("L")
            case Finish(status):
                said.append(f"F:{int(status)}")
    return said


def live(*moments: tuple[float, LifeEvent, str], life: Life | None = None) -> Life:
    """Feeds events and asserts the words that each one yields."""
    life = life or Life(LIMITS)
    for now, event, wanted in moments:
        life, effects = step(life, event, now)
        assert " ".join(words(effects)) == wanted, (now, event)
    return life


BEGIN = (1000.0, STARTED, f"{STALL_US} S T:engine-started")
LOADED = (1100.0, GOOD, "READY=1 WATCHDOG=1 S T:ready L")
READY = live(BEGIN, LOADED)
STOP = StopRequested()
DRAINING = live((1200, STOP, f"STOPPING=1 {DRAIN_US} S T:stop-requested M"), life=READY)


@pytest.mark.parametrize(
    ("first", "moments", "phase", "text"),
    [
        pytest.param(None, [BEGIN], "loading", "loading: engine started as process 10", id="begin"),
        pytest.param(
            None,
            [BEGIN, (1001, EMPTY, "S"), (1010, seen(1, Socket(), REFUSED), STALL_US + " S"),
             (1020, seen(2, Socket(), REFUSED), STALL_US + " S"),
             (1030, seen(2, OURS, Health(503, "status 503")), STALL_US + " S T:phase-changed"), LOADED],
            "ready", "ready: kimi on 2 GPUs, 4 GiB resident, loaded in 1min 40s", id="load, warm, ready",
        ),
        pytest.param(
            None,
            [BEGIN, (1010, seen(1, Socket(), REFUSED), STALL_US + " S"), (1012, seen(1.5, Socket(), REFUSED), "S"),
             (1015, seen(1.6, Socket(), REFUSED), STALL_US + " S"), (1025, seen(1.6, Socket(), REFUSED), "S"),
             (1035, seen(1.2, Socket(), REFUSED), "S"), (1035.1, seen(1.2, Socket(), REFUSED), "")],
            "loading", "loading for 35s: 1.2 GiB on each of 2 GPUs; not ready: nobody listens on",
            id="only progress extends, at most every 5 s",
        ),
        pytest.param(
            None,
            [BEGIN, (1010, seen(socket=Socket(True, False, "process 9")), STALL_US + " S T:not-ready"),
             (1020, seen(socket=Socket(True, False, "process 9")), "S"),
             (1030, seen(None), STALL_US + " S T:phase-changed T:not-ready"), (1040, seen(nvml="hung"), "S T:not-ready")],
            "warming", "warming up for 40s: no GPU memory yet; not ready: GPU memory cannot be seen: hung",
            id="health alone is not ready, and each reason is said once",
        ),
        pytest.param(
            None,
            [BEGIN, (1010, seen(1, Socket(), REFUSED), STALL_US + " S"), (1610, Tick(3), ""),
             (1610.1, Tick(3), "S T:engine-failed G M")],
            "stopping", "no progress for ready.stall, 10min", id="stall",
        ),
        pytest.param(
            None, [BEGIN, (1600, EMPTY, "S"), (1600.1, Tick(3), "S T:engine-failed G M")],
            "stopping", "no progress", id="looks without progress do not put a stall off",
        ),
        pytest.param(
            None,
            [BEGIN, *((1000 + 500 * at, seen(at * 0.1, Socket(), REFUSED), STALL_US + " S") for at in range(1, 8)),
             (4600, Tick(3), ""), (4600.1, Tick(3), "S T:engine-failed G M")],
            "stopping", "not ready within ready.ceiling, 1h", id="ceiling in spite of progress",
        ),
        pytest.param(None, [BEGIN, (1600.1, EMPTY, "S S T:engine-failed G M")], "stopping", "no progress", id="late look"),
        pytest.param(None, [BEGIN, (9000, GOOD, "READY=1 WATCHDOG=1 S T:ready L")], "ready", "ready:", id="late, but ready"),
        pytest.param(None, [BEGIN, (1700, seen(1, Socket(), REFUSED), STALL_US + " S")], "loading", "", id="late progress"),
        pytest.param(None, [(9e9, Tick(0), "")], "loading", "starting the engine", id="no stall before there is an engine"),
        pytest.param(READY, [(1e6, Tick(3), "")], "ready", "ready:", id="no stall once ready"),
        pytest.param(READY, [(1105, GOOD, "WATCHDOG=1")], "ready", "ready:", id="healthy"),
        pytest.param(
            READY,
            [(1105, SICK, "S T:suspect"), (1110, SICK, "S T:suspect"), (1115, GOOD, "WATCHDOG=1"),
             (1120, GOOD, "WATCHDOG=1"), (1125, GOOD, "WATCHDOG=1 S T:healthy-again"),
             (1130, SICK, "S T:suspect"), (1135, SICK, "S T:suspect")],
            "suspect", "suspect: check 2 of 3 failed: the health endpoint says: status 503",
            id="strikes start anew after recovery",
        ),
        pytest.param(
            READY,
            [(1105, SICK, "S T:suspect"), (1110, seen(0.5), "S T:suspect"), (1115, SICK, "S T:engine-failed G M")],
            "stopping", "failed: 3 checks failed without a recovery: the health endpoint says: status 503", id="struck out",
        ),
        pytest.param(
            READY,
            [(1105, SICK, "S T:suspect"), (1110, GOOD, "WATCHDOG=1"), (1115, SICK, "S T:suspect"), (1120, GOOD, "WATCHDOG=1"),
             (1125, SICK, "S T:engine-failed G M")],
            "stopping", "failed: 3 checks failed without a recovery", id="every other look is no recovery",
        ),
        pytest.param(
            READY, [(1105, seen(gone=1), "S T:engine-failed G M")], "stopping", "failed: lost 1 of 2 workers (pid 11)",
            id="a lost worker under a green health",
        ),
        pytest.param(READY, [(1400, seen(gone=2), "S T:engine-failed G M")], "stopping", "(pid 11, 12)", id="lost in a gap"),
        pytest.param(
            READY, [(1105, seen(nvml="hung"), "WATCHDOG=1 T:nvml-trouble"), (1110, seen(nvml="hung"), "WATCHDOG=1"),
                    (1115, GOOD, "WATCHDOG=1"), (1120, seen(nvml="hung"), "WATCHDOG=1 T:nvml-trouble")],
            "ready", "ready:", id="NVML's silence is said once and strikes nobody",
        ),
        pytest.param(
            READY, [(1145.1, SICK, ""), (1150, SICK, "S T:suspect"), (1200, GOOD, "WATCHDOG=1"),
                    (1205, GOOD, "WATCHDOG=1"), (1210, GOOD, "WATCHDOG=1 S T:healthy-again")],
            "ready", "healthy again", id="the first look after a gap proves nothing",
        ),
        pytest.param(READY, [(1145, SICK, "S T:suspect")], "suspect", "check 1 of 3", id="a slow look is no gap"),
        pytest.param(
            None, [BEGIN, (1030, EngineExited(1), "S T:engine-failed G A"), (1031, Tick(2), ""), (1039.9, Tick(2), ""),
                   (1040, Tick(2), "S T:engine-killed K"), (1069.9, Tick(1), ""), (1070, Tick(1), "S T:stopped F:75")],
            "failed", "failed: the engine exited with status 1, 30s into the load; 1 process left", id="exit while loading",
        ),
        pytest.param(
            READY, [(1130, EngineExited(-9), "S T:engine-failed G A"), (1131, Tick(0), "S T:stopped F:75")],
            "failed", "failed: the engine was ended by signal 9, after it was ready", id="exit once ready",
        ),
        pytest.param(
            READY, [(1130, EngineExited(0), "S T:engine-failed G A"), (1131, Tick(0), "S T:stopped F:75")],
            "failed", "exited with status 0, after it was ready", id="a clean exit that nobody asked for is a failure",
        ),
        pytest.param(
            None, [BEGIN, (1010, STOP, f"STOPPING=1 {STOP_US} S T:stop-requested M"), (1012.9, Tick(3), ""),
                   (1013, Tick(3), "S T:engine-killed K"), (1014, EngineExited(-9), ""), (1015, Tick(0), "S T:stopped F:0")],
            "stopping", "stopped: all processes of the engine have ended", id="stop while loading",
        ),
        pytest.param(
            live(BEGIN, (1030, seen(0), STALL_US + " S T:phase-changed T:not-ready")),
            [(1040, STOP, f"STOPPING=1 {STOP_US} S T:stop-requested M"), (1041, EngineExited(1), "A"),
             (1042, Tick(0), "S T:stopped F:0")],
            "stopping", "stopped:", id="stop while warming, exit status 1",
        ),
        pytest.param(
            DRAINING,
            [(1210, SICK, ""), (1210, seen(gone=2), ""), (1319, Tick(3), ""), (1320, Tick(3), "A"),
             (1325, EngineExited(-15), ""), (1330, Tick(2), "S T:engine-killed K"), (1360, Tick(2), "S T:stopped F:0")],
            "stopping", "2 processes left for the post-stop hook", id="drain deadline, TERM, KILL, give up",
        ),
        pytest.param(
            DRAINING,
            [(1320, Tick(-1), "A"), (1325, EngineExited(-15), ""), (1330, Tick(-1), "S T:engine-killed K"),
             (1360, Tick(-1), "S T:stopped F:0")],
            "stopping", "an unknown number of processes left for the post-stop hook", id="nobody knows how many are left",
        ),
        pytest.param(
            DRAINING, [(1230, EngineExited(1), "A"), (1231, Tick(1), ""), (1232, Tick(0), "S T:stopped F:0")],
            "stopping", "stopped:", id="main ends while draining",
        ),
        pytest.param(DRAINING, [(1230, Tick(0), ""), (1231, EngineExited(0), "A"), (1231, Tick(0), "S T:stopped F:0")],
                     "stopping", "stopped:", id="not over before the exit is known"),
        pytest.param(
            live((1105, SICK, "S T:suspect"), life=READY), [(1106, STOP, f"STOPPING=1 {DRAIN_US} S T:stop-requested M")],
            "draining", "draining: the engine has 2min to finish its requests", id="stop while suspect drains",
        ),
        pytest.param(
            READY, [(1105, seen(gone=1), "S T:engine-failed G M"), (1106, STOP, "STOPPING=1"),
                    (1108, Tick(1), "S T:engine-killed K"), (1109, EngineExited(-9), ""), (1110, Tick(0), "S T:stopped F:0")],
            "stopping", "stopped:", id="stop while failing",
        ),
        pytest.param(
            None, [BEGIN, (1010, EngineExited(1), "S T:engine-failed G A"), (1011, STOP, "STOPPING=1"),
                   (1011, EngineExited(1), ""), (1012, Tick(0), "S T:stopped F:0")],
            "stopping", "stopped:", id="stop after the exit",
        ),
    ],
)  # fmt: skip
def test_story(first: Life | None, moments: list[tuple[float, LifeEvent, str]], phase: str, text: str) -> None:
    life = live(*moments, life=first)
    assert life.phase == phase
    assert text in life.text


@pytest.mark.parametrize(("before", "status", "kept"), [(0, 75, 1), (3, 75, 4), (4, 69, 5), (9, 69, 10)])
def test_failed_starts_in_a_row_end_the_tries(before: int, status: int, kept: int) -> None:
    life = live(
        BEGIN, (1010, EngineExited(1), "S T:engine-failed G A"), (1011, Tick(0), f"S T:stopped F:{status}"),
        life=Life(LIMITS, budget=Budget(before, before, ALIKE)),
    )  # fmt: skip
    assert life.budget.failed == kept
    assert ("mend the cause" in life.text) is (status == 69)


@pytest.mark.parametrize(("seconds", "status", "kept"), [(10, 69, 5), (599, 69, 5), (600, 75, 1), (90000, 75, 1)])
def test_only_a_long_ready_run_ends_the_row(seconds: int, status: int, kept: int) -> None:
    """A crash right after READY is the same crash again; after ten good minutes it is a new one."""
    alike = "the engine exited with status N, after it was ready"
    ready = live(BEGIN, LOADED, life=Life(LIMITS, budget=Budget(4, 4, alike)))
    end = 1100 + seconds
    life = live((end, EngineExited(1), "S T:engine-failed G A"), (end, Tick(0), f"S T:stopped F:{status}"), life=ready)
    assert life.budget.failed == kept


def test_a_requested_stop_is_no_failed_start() -> None:
    life = live(
        BEGIN, (1010, STOP, f"STOPPING=1 {STOP_US} S T:stop-requested M"), (1011, EngineExited(1), "A"),
        (1012, Tick(0), "S T:stopped F:0"),
        life=Life(LIMITS, budget=Budget(4, 4, ALIKE)),
    )  # fmt: skip
    assert (life.status, life.budget.failed) == (Exit.OK, 4)


def working(done: int, health: Health = HEALTHY) -> Looked:
    """A look that shows two requests in hand, and how far the core is."""
    return Looked(replace(GOOD.look, health=health, signs=Signs(Scrape(Answer.READ), Counters({"done": done}, 2))))


def test_progress_ends_a_suspicion_at_once() -> None:
    """Steps of the core take longer than an interval, and the health endpoint fails all the while: it works."""
    bad = SICK.look.health
    looks: list[tuple[float, LifeEvent, str]] = [(1105.0, working(1, bad), "S T:suspect")]
    for n in range(100):
        at = 1110 + 10 * n
        looks += [(at, working(2 + n, bad), "WATCHDOG=1 S T:healthy-again"), (at + 5, working(2 + n, bad), "S T:suspect")]
    assert live(*looks, life=READY).strikes == 1


@pytest.mark.parametrize(("pause", "grace", "ended"), [(12, 300, True), (44.9, 300, True), (45.1, 300, False), (26, 20, False)])
def test_looks_that_an_answer_of_nvml_delays_are_no_gaps(pause: float, grace: float, ended: bool) -> None:
    """A hang is found beside a slow NVML; a pause that is longer than its deadlines, or than a short grace, is our own."""
    life = live(BEGIN, LOADED, life=Life(replace(LIMITS, busy_grace=grace)))
    now = 1100.0
    while not life.failure and now < 3000:
        now += pause
        life, _ = step(life, working(1), now)
    assert bool(life.failure) is ended


BEFORE = replace(LIMITS, before=20)
KEPT_AWAY = "STOPPING=1 EXTEND_TIMEOUT_USEC=210000000 S T:stop-requested B"


@pytest.mark.parametrize(
    ("moments", "text"),
    [
        ([(1205, BeforeEnded(), "S M"), (1210, BeforeEnded(), ""), (1300, Tick(1), "")], "draining: the engine has 2min"),
        ([(1205, BeforeEnded("exited with status 1"), "S T:stop-requested M"), (1325.1, Tick(1), "A")], "draining: the engine"),
        ([(1219, Tick(3), ""), (1220, Tick(3), "S T:stop-requested M")], "draining: the engine has 2min"),
        ([(1205, EngineExited(0), "A"), (1206, BeforeEnded(), ""), (1207, Tick(0), "S T:stopped F:0")], "stopped: all"),
        ([(1201, STOP, "S T:stop-requested A"), (1202, BeforeEnded(), ""), (1203, STOP, "S T:stop-requested K"),
          (1204, STOP, "")], "stopping: asked again, so all are killed now"),
    ],
    ids=["then the engine", "it fails", "it takes too long", "the engine ends by itself", "asked again"],
)  # fmt: skip
def test_what_keeps_requests_away_comes_first(moments: list[tuple[float, LifeEvent, str]], text: str) -> None:
    ready = live(BEGIN, LOADED, life=Life(BEFORE))
    life = live((1200, STOP, KEPT_AWAY), *moments, life=ready)
    assert text in life.text


def test_asked_again_the_drain_is_cut_short() -> None:
    life = live(
        (1201, STOP, "S T:stop-requested A"), (1202, STOP, "S T:stop-requested K"), (1203, STOP, ""),
        (1204, EngineExited(-9), ""), (1205, Tick(0), "S T:stopped F:0"), life=DRAINING,
    )  # fmt: skip
    assert life.status is Exit.OK


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        (EngineExited(1), "the engine exited with status 1, 10s into the load"),
        (
            EngineExited(-9, oom=2),
            "was ended by signal 9, and the kernel has ended 2 processes of this unit for memory (OOM), 10s",
        ),
        (EngineExited(1, words="RuntimeError: x"), '10s into the load; it said: "RuntimeError: x"'),
    ],
)
def test_an_end_is_told_with_its_evidence(ended: EngineExited, text: str) -> None:
    life = live(BEGIN, (1010, ended, "S T:engine-failed G A"))
    assert text in life.failure


@pytest.mark.parametrize("event", [STARTED, GOOD, EngineExited(1), STOP, Tick(0), Tick(5)])
def test_nothing_is_done_after_the_end(event: LifeEvent) -> None:
    over = live((1230, EngineExited(1), "A"), (1232, Tick(0), "S T:stopped F:0"), life=DRAINING)
    assert step(over, event, 2000) == (over, ())


EVENTS = st.one_of(
    st.sampled_from([STOP, BeforeEnded()]),
    st.sampled_from([Tick(0), Tick(1), Tick(7)]),
    st.sampled_from([EngineExited(0), EngineExited(1), EngineExited(-9)]),
    st.sampled_from([EMPTY, GOOD, SICK]),
    st.builds(
        seen,
        st.sampled_from([None, 0, 0.5, 1, 2]),
        st.sampled_from([Socket(), OURS, Socket(True, False, "x")]),
        st.sampled_from([REFUSED, Health(200, "ok"), Health(503, "busy")]),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from(["", "", "hung"]),
    ),
)
STEPS = st.lists(st.tuples(st.sampled_from([0, 0.1, 1, 5, 29, 700]), EVENTS), max_size=40)
ENDING = {"STOPPING=1", "S", "G", "B", "T:engine-killed", "T:stop-requested", "T:stopped", "A", "K", "M"}


@given(STEPS, st.integers(0, 6))
@settings(max_examples=400)
def test_no_sequence_lies_or_hangs(steps: list[tuple[float, LifeEvent]], before: int) -> None:
    now = 1000.0
    life, _ = step(Life(LIMITS, budget=Budget(before, before, ALIKE)), STARTED, now)
    ready = 0
    for gap, event in steps:
        now += gap
        was = life
        life, effects = step(life, event, now)
        said = words(effects)
        look = event.look if isinstance(event, Looked) else None
        ready += said.count("READY=1")
        if "READY=1" in said:
            assert look
            assert not unmet(look, LIMITS.needs)
        if "WATCHDOG=1" in said:
            assert look
            assert not unmet(look, LIMITS.needs, blind_is_fine=True)
            assert was.stage == 0
        if was.stage:
            assert set(said) <= ENDING | {f"F:{int(life.status)}" if life.status is not None else ""}
            assert life.stage >= was.stage
        if life.status is not None:
            assert (life.status is Exit.OK) is life.stopping
        if was.status is not None:
            assert (life, effects) == (was, ())
    assert ready <= 1
    assert life.phase in set(Phase) - {Phase.DOWN, Phase.PRE_START, Phase.POST_STOP}
    _bounded(life, now)


def _bounded(life: Life, now: float) -> None:
    """Once ending, ticks alone finish it within the sum of the deadlines, even if nothing ever dies."""
    if not life.stage:
        life, _ = step(life, STOP, now)
    asked = life.stopping
    assert life.stage or life.status is not None
    end = now + max(LIMITS.drain, LIMITS.term_grace) + LIMITS.term_grace + LIMITS.exit_deadline + 2
    sent = []
    while life.status is None:
        assert now < end
        now += 0.5
        life, effects = step(life, Tick(7), now)
        sent += [word for word in words(effects) if word in ("A", "K", "M") or word.startswith("F")]
    assert " ".join(word[0] for word in sent) in ("A K F", "K F", "F", ""), sent
    assert (life.status is Exit.OK) is asked


def test_without_an_engine_a_stop_still_ends() -> None:
    life, _ = step(Life(LIMITS), STOP, 0.0)
    _bounded(life, 0.0)
