"""Memory over time in a bounded number of points: first, last and shape stay, however long it takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.samples import KEPT, STEP, Sample, Samples, add, thinned

GIB = 1 << 30


def taken(amounts: list[tuple[int | None, ...]], every: float) -> Samples:
    samples = Samples()
    for number, memory in enumerate(amounts):
        samples = add(samples, Sample(number * every, memory))
    return samples


def at(samples: Samples, seconds: float) -> float:
    """What the line through the points says at a time."""
    series = samples.series
    after = next(number for number, item in enumerate(series) if item.at >= seconds)
    left, right = series[max(0, after - 1)], series[after]
    part = (seconds - left.at) / (right.at - left.at) if right.at > left.at else 0.0
    return (left.memory[0] or 0) + part * ((right.memory[0] or 0) - (left.memory[0] or 0))


def test_a_short_start_loses_nothing() -> None:
    samples = taken([(n, 2 * n) for n in range(KEPT - 1)], 0.5)
    assert [item.memory for item in samples.series] == [(n, 2 * n) for n in range(KEPT - 1)]
    assert samples.step == STEP


def test_looks_that_come_faster_than_the_step_are_left_out_but_the_newest() -> None:
    samples = taken([(n,) for n in range(10)], 0.1)
    assert [item.at for item in samples.points] == [0.0, 0.30000000000000004, 0.6000000000000001, 0.9]
    samples = add(samples, Sample(1.0, (99,)))
    assert samples.series[-1] == Sample(1.0, (99,))
    assert samples.points[-1].at == 0.9


def test_two_hours_fit_and_a_step_stays_where_it_was() -> None:
    """Nothing for an hour, then at once 70 GiB, and a peak at the end of it."""
    amounts = [0] * 7200 + [70 * GIB] * 7200
    samples = taken([(amount,) for amount in amounts], 0.5)
    assert KEPT / 2 - 2 <= len(samples.points) <= KEPT
    assert (samples.series[0].at, samples.series[-1].at) == (0.0, 7199.5)
    assert at(samples, 3540) == 0
    assert at(samples, 3660) == 70 * GIB
    assert samples.step * KEPT >= 7200


def test_thinning_keeps_a_peak_of_any_gpu() -> None:
    points = [Sample(n, (n * GIB, 0)) for n in range(20)]
    points[7] = Sample(7, (7 * GIB, 50 * GIB))
    points[12] = Sample(12, (None, 0))
    kept = thinned(points)
    assert len(kept) == 11
    assert (points[0], points[7], points[12], points[19]) == tuple(item for item in kept if item.at in (0, 7, 12, 19))


def test_thinning_closes_no_gap() -> None:
    """Between points of nothing at all, too, and beside a peak that is farther from the line."""
    amounts: list[int | None] = [0] * 40
    for at in (9, 10, 11, 12, 13, 25):
        amounts[at] = None
    amounts[26] = 90 * GIB
    points: tuple[Sample, ...] = tuple(Sample(float(at), (amount,)) for at, amount in enumerate(amounts))
    for _ in range(3):
        points = thinned(points)
        unknown = [item.at for item in points if item.memory[0] is None]
        assert any(9 <= at <= 13 for at in unknown), unknown
        assert 25.0 in unknown


def test_time_that_goes_back_is_left_out() -> None:
    samples = add(add(Samples(), Sample(5.0, (1,))), Sample(4.0, (2,)))
    assert samples.series == (Sample(5.0, (1,)),)


@given(st.lists(st.tuples(st.floats(0, 1000), st.one_of(st.none(), st.integers(0, 80 * GIB))), max_size=900))
def test_whatever_comes_it_stays_bounded_and_in_order(steps: list[tuple[float, int | None]]) -> None:
    samples, now = Samples(), 0.0
    for pause, amount in steps:
        now += pause
        samples = add(samples, Sample(now, (amount,)))
    times = [item.at for item in samples.series]
    assert len(times) <= KEPT + 1
    assert times == sorted(times)
    if steps:
        assert (times[0], times[-1]) == (steps[0][0], now)
