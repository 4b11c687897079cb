"""What the kernel log does to the life of a run: nothing, a restart, or an end that is not restarted."""

from __future__ import annotations

import pytest

from gpu_lifecycle.errors import Exit
from gpu_lifecycle.facts import Identity, Phase
from gpu_lifecycle.rules.budget import Budget, signature
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.lifecycle import (
    EngineExited,
    Finish,
    Life,
    LifeEvent,
    Limits,
    Looked,
    SignalMain,
    Started,
    StopRequested,
    Tell,
    Tick,
    step,
)
from gpu_lifecycle.rules.readiness import Health, Look, Needs, Socket
from gpu_lifecycle.rules.xid import KernelSays
from gpu_lifecycle.rules.xid_codes import Act

LIMITS = Limits(
    Needs({"GPU-a": "0"}, min_used=1), stall=600, ceiling=3600, interval=5, probe_timeout=5, failures=3, drain=120,
    term_grace=10, exit_deadline=30,
)  # fmt: skip
WORKER = frozenset((Identity("boot", 11, 1),))
GOOD = Looked(Look({"GPU-a": 2}, Socket(listening=True, ours=True), Health(200, "status 200"), WORKER, WORKER))
LOG, RESTART, REFUSE = (
    KernelSays(act, f"GPU 0: an Xid of class {act}; on the host: reset it", (Event("xid-seen", f"seen {act}"),)) for act in Act
)


def run(*events: LifeEvent, life: Life | None = None) -> tuple[Life, list[str], bool]:
    """The state after these events, a second apart, the words told, and whether the main process was signalled."""
    life = life or Life(LIMITS)
    told, signalled = [], False
    for now, event in enumerate(events, int(life.since) + 1):
        life, effects = step(life, event, now)
        told += [effect.event.word for effect in effects if isinstance(effect, Tell)]
        signalled |= any(isinstance(effect, SignalMain) for effect in effects)
        assert [effect for effect in effects if isinstance(effect, Finish)] == _end(life)
    return life, told, signalled


def _end(life: Life) -> list[Finish]:
    return [] if life.status is None else [Finish(life.status)]


LOADING = run(Started(10))[0]
READY = run(GOOD, life=LOADING)[0]
GONE = (EngineExited(-15), Tick(0))


@pytest.mark.parametrize("before", [LOADING, READY])
def test_what_is_only_told_changes_nothing(before: Life) -> None:
    after, told, signalled = run(LOG, life=before)
    assert (after, told, signalled) == (before, ["xid-seen"], False)


@pytest.mark.parametrize("before", [LOADING, READY])
@pytest.mark.parametrize(("said", "status"), [(RESTART, Exit.TEMPFAIL), (REFUSE, Exit.UNAVAILABLE)])
def test_it_ends_the_run_with_the_evidence_first(before: Life, said: KernelSays, status: Exit) -> None:
    life, told, signalled = run(said, life=before)
    assert told == ["xid-seen", "engine-failed"]
    assert signalled
    assert life.phase is Phase.STOPPING
    assert life.failure == said.text
    life, told, _ = run(*GONE, life=life)
    assert life.status is status
    assert told == ["stopped"]
    assert said.text in life.text


def test_a_gpu_that_breaks_under_an_ending_run_is_remembered() -> None:
    """The engine may die of it before the kernel has said why."""
    for events in ((EngineExited(-6), REFUSE, Tick(0)), (RESTART, EngineExited(-6), REFUSE, Tick(0)), (REFUSE, RESTART, *GONE)):
        life, told, _ = run(*events, life=READY)
        assert life.status is Exit.UNAVAILABLE
        assert REFUSE.text in life.text
        assert "xid-seen" in told
        assert told.count("engine-failed") == 1


def test_it_does_not_turn_a_stop_into_a_failure() -> None:
    life, told, _ = run(StopRequested(), REFUSE, *GONE, life=READY)
    assert life.status is Exit.OK
    assert "xid-seen" in told


def test_a_restart_counts_as_a_failed_start() -> None:
    life, _, _ = run(RESTART, *GONE, life=Life(LIMITS, budget=Budget(4, 4, signature(RESTART.text)), engine=10))
    assert life.status is Exit.UNAVAILABLE
    assert "5 runs in a row failed" in life.text


def test_nothing_is_told_after_the_end() -> None:
    life, _, _ = run(REFUSE, *GONE, life=READY)
    assert step(life, REFUSE, 99.0) == (life, ())
