"""What a load says of itself: STATUS names the step, and what the engine says keeps a load from being called stalled."""

from __future__ import annotations

import pytest

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.life import Heard, Life, Limits, Looked, Notify, Started
from gpu_lifecycle.rules.lifecycle import step
from gpu_lifecycle.rules.loading import steps_text, took
from gpu_lifecycle.rules.phases import Load, Step
from gpu_lifecycle.rules.readiness import Health, Look, Needs, Socket

GIB = 1 << 30
LIMITS = Limits(Needs({"GPU-a": "0", "GPU-b": "1"}), 60, 3600, 5, 5, 3, 120, 10, 30, weights=80 * GIB)


def look(gib: int) -> Look:
    return Look({"GPU-a": gib * GIB, "GPU-b": gib * GIB}, Socket(), Health(None, "nobody listens yet"))


def walk(*seen: tuple[float, int, Load]) -> tuple[Life, list[str]]:
    life, _ = step(Life(LIMITS), Started(10), 0.0)
    lines: list[str] = []
    for now, gib, load in seen:
        life, effects = step(life, Looked(look(gib), load), now)
        lines += [line for effect in effects if isinstance(effect, Notify) for line in effect.lines]
    return life, lines


def test_the_text_names_step_counter_memory_and_time_left() -> None:
    life, _ = walk((10, 1, Load(Step.WEIGHTS)), (40, 31, Load(Step.WEIGHTS, 16, 64)))
    assert life.text == (
        "loading weights 25% (16 of 64, 31 of 80 GiB on each of 2 GPUs), about 90 s left of it after 40s; "
        "not ready: nobody listens on the engine's port"
    )


@pytest.mark.parametrize(
    ("load", "word"),
    [(Load(), "loading"), (Load(Step.KV_CACHE), "allocating the KV cache"), (Load(Step.GRAPHS), "capturing CUDA")],
)
def test_each_step_has_words(load: Load, word: str) -> None:
    assert walk((10, 90, load))[0].text.startswith(word)


def test_a_step_that_goes_on_is_progress_where_memory_stands() -> None:
    life, lines = walk(*((30.0 * n, 75, Load(Step.GRAPHS, n, 40)) for n in range(1, 40)))
    assert life.phase is Phase.LOADING
    assert not life.failure
    assert sum("EXTEND_TIMEOUT_USEC" in line for line in lines) == 39


def test_what_is_said_again_and_again_is_none() -> None:
    """Nor is what goes back and forth: an engine that babbles is not kept for ever."""
    back_and_forth = [(10.0 * n, 75, Load(Step.GRAPHS, 3 + n % 2, 40)) for n in range(1, 40)]
    life, _ = walk(*back_and_forth)
    assert "no progress for ready.stall, 1min: capturing CUDA graphs 10% (4 of 40)" in life.failure


def test_a_step_between_two_looks_has_its_time_too() -> None:
    life, _ = walk((5, 1, Load(Step.INIT)))
    for now, heard in ((5.3, Step.WEIGHTS), (5.4, Step.KV_CACHE), (5.5, Step.WEIGHTS), (5.68, Step.GRAPHS), (5.7, Step.WARMUP)):
        life, effects = step(life, Heard(Load(heard)), now)
        assert effects == (), "what is shown waits for the next look"
    assert (life.progressed, life.said) == (5.7, True)
    assert steps_text(life, 6.0) == "initialising 300ms, loading weights 100ms, allocating the KV cache 300ms, warming up 300ms"


def test_a_line_that_comes_before_the_engine_is_known_to_run_counts_from_its_start() -> None:
    """A quick engine may speak before its start is an event; nothing had begun then, on a clock that runs since boot."""
    life, _ = step(Life(LIMITS), Heard(Load(Step.INIT)), 9000.0)
    life, _ = step(life, Started(10), 9000.0)
    life, _ = step(life, Looked(look(1), Load(Step.INIT)), 9002.0)
    assert took(life, 9003.0) == "0=2.00 1=1.00"


def test_ready_says_how_long_each_step_took() -> None:
    life, _ = walk(
        (5, 1, Load(Step.INIT)), (10, 1, Load(Step.WEIGHTS)), (100, 75, Load(Step.KV_CACHE)), (104, 90, Load(Step.WARMUP))
    )
    good = Look({"GPU-a": 90 * GIB, "GPU-b": 90 * GIB}, Socket(listening=True, ours=True), Health(200, "200"), model="kimi")
    life, _ = step(life, Looked(good, Load(Step.SERVING)), 106.0)
    assert life.text == (
        "ready: kimi on 2 GPUs, 180 GiB resident, loaded in 1min 46s "
        "(initialising 5s, loading weights 1min 30s, allocating the KV cache 4s, warming up 2s)"
    )
