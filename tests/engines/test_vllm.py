"""vLLM itself as the managed engine: a start, what it serves, each of its processes killed, a hang, and how it stops."""

from __future__ import annotations

import pytest

from tests.engines.acts import Start, cut_stop, fault, serves, shows_its_load, stalls, stops_clean, streams_end
from tests.engines.unit import Unit

pytestmark = [pytest.mark.engines, pytest.mark.machine]


@pytest.fixture(scope="module")
def started(units: dict[str, Unit]) -> Start:
    return Start.of(units["vllm"])


@pytest.fixture
def unit(started: Start) -> Unit:
    """Ready, by whatever came before."""
    started.unit.ensure_ready()
    started.unit.begin()
    return started.unit


def test_the_start_passes_through_its_phases(started: Start) -> None:
    shows_its_load(started, ["init", "weights", "kv_cache", "warmup"])


def test_it_serves_and_shows_what_the_preset_says(unit: Unit) -> None:
    serves(unit)
    assert unit.http("/v1/models")[0] == 200


def test_the_workers_death_is_one_restart(unit: Unit) -> None:
    fault(unit, unit.titled("VLLM::Worker"))


def test_the_engine_cores_death_is_one_restart(unit: Unit) -> None:
    fault(unit, unit.titled("VLLM::EngineCore"))


def test_the_main_process_death_is_one_restart(unit: Unit) -> None:
    fault(unit, [unit.main()])


def test_a_frozen_worker_with_work_in_hand_is_found(unit: Unit) -> None:
    stalls(unit, unit.titled("VLLM::Worker"))


def test_streams_end_before_it_stops(unit: Unit) -> None:
    streams_end(unit)
    stops_clean(unit)


def test_a_stop_while_it_loads(started: Start) -> None:
    cut_stop(started.unit)
