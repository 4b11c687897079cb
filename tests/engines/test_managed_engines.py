"""Each engine itself as the managed one: a start, what it serves, its processes killed, a hang, a long prompt, how it stops."""

from __future__ import annotations

import pytest

from tests.engines.acts import Start, cut_stop, fault, long_prefill, serves, shows_its_load, stalls, stops_clean, streams_end
from tests.engines.unit import Unit

pytestmark = [pytest.mark.engines, pytest.mark.machine]


@pytest.fixture(scope="module", params=["llama.cpp", "sglang", "vllm"])
def started(request: pytest.FixtureRequest, units: dict[str, Unit]) -> Start:
    return Start.of(units[request.param])


@pytest.fixture
def unit(started: Start) -> Unit:
    """Ready, by whatever came before."""
    started.unit.ensure_ready()
    started.unit.begin()
    return started.unit


def test_the_start_passes_through_its_phases(started: Start) -> None:
    shows_its_load(started)


def test_it_serves_and_shows_what_the_preset_says(unit: Unit) -> None:
    serves(unit)


def test_the_death_of_any_of_its_processes_is_one_restart(unit: Unit) -> None:
    for title in unit.preset.victims:
        fault(unit, unit.titled(title))
    fault(unit, [unit.main()])


def test_a_frozen_worker_with_work_in_hand_is_found(unit: Unit) -> None:
    stalls(unit, unit.titled(unit.preset.worker))


def test_streams_end_before_it_stops(unit: Unit) -> None:
    streams_end(unit)
    stops_clean(unit)


def test_a_long_prompt_is_left_alone(started: Start) -> None:
    long_prefill(started.unit)


def test_a_stop_while_it_loads(started: Start) -> None:
    cut_stop(started.unit)
