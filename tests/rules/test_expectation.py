"""Progress and time left of a load, with and without earlier loads; and what no sequence of looks may make of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_lifecycle.rules.life import Life, Limits, Looked, Notify, Remember, Started, Tick
from gpu_lifecycle.rules.lifecycle import step
from gpu_lifecycle.rules.loading import MOST, Guess, durations, expect, further, has_read_on
from gpu_lifecycle.rules.loads import Learned, Loaded
from gpu_lifecycle.rules.phases import Load, Step
from gpu_lifecycle.rules.readiness import Health, Look, Needs, Socket

GIB = 1 << 30
LIMITS = Limits(Needs({"GPU-a": "0", "GPU-b": "1"}), 60, 3600, 5, 5, 3, 120, 10, 30, weights=80 * GIB)
USUAL = Learned(3, {Step.NONE: 10, Step.WEIGHTS: 100, Step.GRAPHS: 50}, {"GPU-a": 100 * GIB, "GPU-b": 100 * GIB}, 160 * GIB)
LEARNED = replace(LIMITS, learned=USUAL)
REFUSED = Health(None, "nobody listens yet")


def look(gib: float, *, ready: bool = False) -> Look:
    amount = int(gib * GIB)
    memory: dict[str, int | None] = {"GPU-a": amount, "GPU-b": amount}
    if ready:
        return Look(memory, Socket(listening=True, ours=True), Health(200, "status 200"), model="kimi")
    return Look(memory, Socket(), REFUSED)


def walk(limits: Limits, *seen: tuple[float, Looked]) -> Life:
    life, _ = step(Life(limits), Started(10), 0.0)
    for now, event in seen:
        life, _ = step(life, event, now)
    return life


@pytest.mark.parametrize(
    ("at", "spent", "part", "wanted"),
    [
        (Step.NONE, 0, None, Guess(None, 0.0, 160)),
        (Step.NONE, 5, None, Guess(None, 5 / 160, 155)),
        (Step.NONE, 12, None, Guess(None, 10 / 160, 150)),  # a bit late: nothing follows
        (Step.NONE, 101, None, Guess(None, 10 / 160, None, slow=True)),
        (Step.WEIGHTS, 0, 0.0, Guess(0.0, 10 / 160, 150)),
        (Step.WEIGHTS, 50, 0.5, Guess(0.5, 60 / 160, 100)),  # as fast as ever
        (Step.WEIGHTS, 150, 0.5, Guess(0.5, 60 / 160, 150)),  # a third as fast: in between, for the rest may be cached
        (Step.WEIGHTS, 300, 0.99, Guess(0.99, 109 / 160, 53)),
        (Step.KV_CACHE, 3, None, Guess(None, 110 / 160, 50)),  # a step that was not there before
        (Step.GRAPHS, 50, 1.0, Guess(1.0, 1.0, 0)),
    ],
)
def test_of_a_load_like_earlier_ones(at: Step, spent: float, part: float | None, wanted: Guess) -> None:
    seen = expect(USUAL, at, spent, part)
    assert (seen.part, seen.progress, seen.slow) == (wanted.part, wanted.progress, wanted.slow)
    assert seen.left == pytest.approx(wanted.left, abs=0.1)


def test_nothing_usual_gives_no_number_and_no_error() -> None:
    assert expect(Learned(2), Step.WEIGHTS, 5, None) == Guess(None, None, 0.0)


@given(
    st.dictionaries(st.sampled_from(list(Step)), st.floats(0, 1e7)),
    st.sampled_from(list(Step)),
    st.floats(0, 1e9),
    st.none() | st.floats(-1, 2),
)
def test_an_expectation_is_within_its_bounds(steps: dict[Step, float], at: Step, spent: float, part: float | None) -> None:
    seen = expect(Learned(1, steps), at, spent, part)
    assert seen.progress is None or 0 <= seen.progress <= 1.0000001
    assert seen.left is None or seen.left >= 0
    shown = further(None, seen.progress)
    assert shown is None or 0 <= shown <= MOST


def test_status_of_a_second_load() -> None:
    life = walk(LEARNED, (10, Looked(look(1), Load(Step.WEIGHTS))), (53, Looked(look(34.5), Load(Step.WEIGHTS))))
    assert life.text == (
        "loading weights 43% (34.5 of 80 GiB on each of 2 GPUs), about 107 s left after 53s; "
        "not ready: nobody listens on the engine's port"
    )
    assert life.progress == pytest.approx((10 + 43.125) / 160)
    assert life.eta == pytest.approx(106.8, abs=0.1)


def test_a_first_load_is_guessed_from_the_weights() -> None:
    life = walk(LIMITS, (10, Looked(look(0), Load(Step.WEIGHTS))), (50, Looked(look(40), Load(Step.WEIGHTS))))
    assert "loading weights 50% (40 of 80 GiB on each of 2 GPUs), about 40 s left of it after 50s" in life.text
    assert (life.progress, life.eta) == (0.45, 40)
    later, _ = step(life, Looked(look(90), Load(Step.GRAPHS)), 100.0)
    assert (later.progress, later.eta) == (0.9, None)


def test_nothing_known_is_null_and_not_zero() -> None:
    life = walk(replace(LIMITS, weights=0), (10, Looked(look(5))))
    assert (life.progress, life.eta) == (None, None)
    assert life.text.startswith("loading for 10s: 5 GiB on each of 2 GPUs;")


def test_an_engine_without_phases_is_measured_by_what_it_held_when_it_was_ready() -> None:
    usual = Learned(1, {Step.NONE: 100}, {"GPU-a": 100 * GIB, "GPU-b": 100 * GIB})
    life = walk(replace(LIMITS, learned=usual), (50, Looked(look(25))))
    assert life.progress == 0.25
    assert "loading 25% (25 of 80 GiB on each of 2 GPUs), about " in life.text


def test_memory_that_was_taken_at_once_shows_nothing_and_the_reads_do() -> None:
    life = walk(LIMITS, (10, Looked(look(80), Load(Step.WEIGHTS), 0)), (20, Looked(look(80), Load(Step.WEIGHTS), 40 * GIB)))
    assert "loading weights 25% (" in life.text


def test_late_is_said_and_no_time_is_made_up() -> None:
    graphs = Load(Step.GRAPHS)
    life = walk(LEARNED, (5, Looked(look(0))), (110, Looked(look(0), graphs)), (245, Looked(look(1), graphs)))
    assert life.text.startswith("capturing CUDA graphs, slower than the last 3 starts, for 4min 5s")
    assert life.eta is None
    assert life.progress == MOST


READS = [(10, 0), (40, 2 * GIB), (70, 3 * GIB), (100, 5 * GIB)]


def test_reads_put_a_stall_off_while_the_weights_are_loaded() -> None:
    life = walk(LIMITS, *((now, Looked(look(0), read=read)) for now, read in READS))
    assert (life.stage, life.last_progress) == (0, "5 GiB read by its processes")


@pytest.mark.parametrize("load", [Load(Step.KV_CACHE), Load(Step.GRAPHS)])
def test_they_do_not_once_the_weights_are_there(load: Load) -> None:
    life = walk(LIMITS, *((now, Looked(look(0), load, read)) for now, read in READS))
    assert "no progress for ready.stall" in life.failure


def test_what_an_idle_process_reads_is_no_progress() -> None:
    """A monitor's thread reads a few hundred KiB a second for ever: of 160 GiB that is nothing."""
    life = walk(LIMITS, *((float(now), Looked(look(0), read=now * 300_000)) for now in range(1, 62)))
    assert "no progress for ready.stall, 1min" in life.failure


@given(st.lists(st.integers(0, 1 << 45), max_size=30))
def test_reads_that_go_back_and_forth_come_to_an_end(reads: list[int]) -> None:
    life, moved = Life(LIMITS), 0
    for read in reads:
        if has_read_on(life, read):
            moved += 1
        life = replace(life, read=max(life.read, read))
    assert moved <= max(reads, default=0) // (160 * GIB // 100) + 1


def test_a_stall_names_phase_last_progress_and_doing() -> None:
    life = walk(
        LEARNED, (10, Looked(look(1), Load(Step.WEIGHTS))), (20, Looked(look(34.5), Load(Step.WEIGHTS, 28, 64))),
        (55, Looked(look(34.5), Load(Step.WEIGHTS, 28, 64), doing="8 sglang::scheduler_TP* waiting in nfs_wait")),
    )  # fmt: skip
    assert "no progress for 35s (8 sglang::scheduler_TP* waiting in nfs_wait)" in life.text
    assert "left" not in life.text
    life, _ = step(life, Tick(9), 81.0)
    assert life.failure == (
        "no progress for ready.stall, 1min: loading weights 43% (28 of 64, 34.5 of 80 GiB on each of 2 GPUs) for 55s, "
        "no progress for 35s (8 sglang::scheduler_TP* waiting in nfs_wait); not ready: nobody listens on the engine's port; "
        "the last was 69 GiB of GPU memory in all, 1min 1s ago"
    )
    assert life.alike == "no progress for ready.stall, 1min while loading weights"


def test_what_was_learned_when_ready() -> None:
    life, _ = step(Life(LIMITS), Started(10), 100.0)
    for now, load in ((105.0, Load(Step.INIT)), (110.0, Load(Step.WEIGHTS)), (200.0, Load(Step.GRAPHS))):
        life, _ = step(life, Looked(look(75), load, 7 * GIB), now)
    life, effects = step(life, Looked(look(90, ready=True), Load(Step.SERVING), 8 * GIB), 230.0)
    kept = [effect.loaded for effect in effects if isinstance(effect, Remember)]
    steps = {Step.NONE: 5.0, Step.INIT: 5.0, Step.WEIGHTS: 90.0, Step.GRAPHS: 30.0, Step.SERVING: 0.0}
    assert kept == [Loaded(steps, {"GPU-a": 90 * GIB, "GPU-b": 90 * GIB}, 8 * GIB)]
    assert kept[0].seconds == 130.0
    assert isinstance(effects[0], Notify)
    assert "READY=1" in effects[0].lines  # first: nothing that is kept is in its way


def test_text_of_another_version_is_read_as_far_as_it_fits() -> None:
    assert durations("initialising 5s, loading 0=3.5 99=1 3=x 3=-4 3=nan") == {Step.NONE: 3.5, Step.WEIGHTS: 0.0}


EVENTS = st.builds(
    Looked,
    st.builds(look, st.floats(0, 200)),
    st.builds(Load, st.sampled_from(list(Step)), st.integers(0, 64), st.sampled_from([0, 64])),
    st.none() | st.integers(0, 1 << 50),
)


@given(
    st.lists(st.tuples(st.sampled_from([0, 0.5, 5, 29, 300]), EVENTS), max_size=30),
    st.sampled_from([LIMITS, LEARNED, replace(LIMITS, weights=0), replace(LEARNED, learned=Learned(1, {Step.NONE: 1e-300}))]),
)
@settings(max_examples=300)
def test_progress_never_goes_back_nor_beyond(events: list[tuple[float, Looked]], limits: Limits) -> None:
    now, before = 0.0, -1.0
    life, _ = step(Life(limits), Started(10), now)
    for gap, event in events:
        now += gap
        life, _ = step(life, event, now)
        seen = -1.0 if life.progress is None else life.progress
        assert before <= seen <= MOST
        assert life.eta is None or 0 <= life.eta < 86400
        before = seen
