"""Memory of a ready engine that vanishes, or that fills a GPU: told once, and never a reason to end the run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.drift import TIGHT, notice
from gpu_lifecycle.rules.life import Life, Limits, Tell
from gpu_lifecycle.rules.lifecycle import Looked, step
from gpu_lifecycle.rules.readiness import Health, Look, Needs, Socket

GIB = 2**30
OK = Health(200, "status 200")
LIMITS = Limits(Needs({"GPU-a": "0", "GPU-b": "1"}, GIB), 600, 3600, 5, 25, 3, 10, 10, 10)
READY = Life(LIMITS, phase=Phase.READY, engine=1, was_ready=True)


def look(a: int | None = 70 * GIB, b: int | None = 70 * GIB, room: int = 9 * GIB, **more: object) -> Look:
    seen = Look({"GPU-a": a, "GPU-b": b}, Socket(True, True), OK, room={"GPU-a": 9 * GIB, "GPU-b": room})
    return replace(seen, **more)  # type: ignore[arg-type]


def told(*looks: Look, life: Life = READY) -> list[tuple[str, str, str]]:
    """What is said, with the number of the look at which it is."""
    found: list[tuple[str, str, str]] = []
    for number, seen in enumerate(looks):
        life, effects = notice(life, seen)
        said = [effect.event for effect in effects]
        found += [(f"{number} {event.word}", event.fields["GPU_LIFECYCLE_GPU"], event.message) for event in said]
    return found


def names(*looks: Look, life: Life = READY) -> list[str]:
    return [name for name, _, _ in told(*looks, life=life)]


def test_memory_that_vanishes_is_told_once_with_both_figures() -> None:
    (found,) = told(look(), look(b=40 * GIB), look(b=40 * GIB), look(b=39 * GIB))
    assert found[:2] == ("1 memory-vanished", "GPU-b")
    assert found[2] == "GPU 1: this unit held 70 GiB and holds 40 GiB now, and all its workers live"


def test_it_is_told_again_after_it_was_back() -> None:
    assert names(look(), look(b=40 * GIB), look(), look(b=40 * GIB)) == ["1 memory-vanished", "3 memory-vanished"]
    assert names(look(), look(b=62 * GIB), look(b=64 * GIB), look(b=62 * GIB)) == ["1 memory-vanished"], "it only wavers"


def test_the_most_that_was_resident_counts() -> None:
    assert names(look(10 * GIB), look(70 * GIB), look(50 * GIB)) == ["2 memory-vanished"]
    assert names(look(), look(64 * GIB)) == [], "less than a tenth"
    assert names(look(4 * GIB, 4 * GIB), look(4 * GIB, 4 * GIB - (400 << 20))) == [], "less than what a context takes"


def test_what_is_not_known_has_not_vanished() -> None:
    assert names(look(), look(b=None), look()) == []
    assert names(look(), look(nvml_error="hung", memory={}), look()) == []
    assert names(look(), look(b=1, estimated=True)) == []
    assert names(look(), look(memory={"GPU-a": 70 * GIB})) == [], "its GPU is not shown"
    assert names(look(), look(b=GIB - 1)) == [], "the check that fails tells it"
    assert names(look(), look(b=GIB)) == ["1 memory-vanished"]
    assert names(look(), look(b=2 * GIB), life=replace(READY, was_ready=False)) == []
    assert names(look(), look(b=2 * GIB), life=replace(READY, stage=1)) == [], "it is ending"


def test_a_gpu_that_fills_up_is_told_until_there_is_room_again() -> None:
    shown = told(look(), look(room=TIGHT - 1), look(room=TIGHT + 1), look(room=0), look(), look(room=5))
    assert [item[:2] for item in shown] == [("1 memory-tight", "GPU-b"), ("5 memory-tight", "GPU-b")]
    assert shown[0][2] == "GPU 1: 256 MiB of its memory are left"
    assert names(look(room=TIGHT)) == []


def test_the_run_goes_on() -> None:
    life = replace(READY, workers=frozenset())
    for at, seen in enumerate((look(), look(b=40 * GIB, room=5), look(b=40 * GIB, room=5))):
        life, effects = step(life, Looked(seen), float(at))
        events = [effect.event.word for effect in effects if isinstance(effect, Tell)]
        assert events == (["memory-vanished", "memory-tight"] if at == 1 else [])
    assert (life.phase, life.stage, life.failure) == (Phase.READY, 0, "")


@given(st.lists(st.tuples(st.none() | st.integers(0, 1 << 40), st.integers(0, 1 << 40)), max_size=30))
def test_never_twice_in_a_row(figures: list[tuple[int | None, int]]) -> None:
    said = names(*(look(b=memory, room=room) for memory, room in figures))
    for kind in ("memory-vanished", "memory-tight"):
        numbers = [int(name.split()[0]) for name in said if name.endswith(kind)]
        assert all(later - earlier > 1 for earlier, later in pairwise(numbers))
