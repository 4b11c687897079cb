"""What is kept of a start: from the events of a life, as plain data and back, and out of a file that anybody wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.life import EngineExited, Life, Limits, Looked, Started, StopRequested, Tick
from gpu_lifecycle.rules.lifecycle import step
from gpu_lifecycle.rules.phases import Load, Step
from gpu_lifecycle.rules.readiness import Health, Look, Needs, Socket
from gpu_lifecycle.rules.recording import CHANGES, MARKS, Recording, document, heard, marked, recording_of, written
from gpu_lifecycle.rules.recording import GPUS as GPUS_KEPT
from gpu_lifecycle.rules.samples import Sample, Samples
from gpu_lifecycle.system.history import START as ROOM

GIB = 1 << 30
GPUS = {"GPU-a": "0", "GPU-b": "3:1"}
LIMITS = Limits(Needs(GPUS, 10 * GIB), stall=600, ceiling=3600, interval=5, probe_timeout=2, failures=3, drain=60,
                term_grace=2, exit_deadline=5)  # fmt: skip
UP = Socket(listening=True, ours=True)
TOKEN = Health(200, "200")


def look(*gib: int | None, **more: Any) -> Look:
    memory = {uuid: None if size is None else size * GIB for uuid, size in zip(GPUS, gib, strict=True)}
    return Look(memory, more.pop("socket", Socket()), more.pop("health", Health(None, "nobody listens yet")), **more)


def lived(*events: tuple[float, Any]) -> tuple[Recording, Life]:
    life, recording = Life(LIMITS), Recording()
    for at, event in events:
        life, _ = step(life, event, at)
        recording = heard(recording, life, event, at)
    return recording, life


START = (
    (2.0, Started(4711)),
    (3.0, Looked(look(0, 0))),
    (20.0, Looked(look(5, 4), Load(Step.WEIGHTS, 1, 8))),
    (58.0, Looked(look(20, None), Load(Step.GRAPHS))),
    (70.0, Looked(look(21, 22, socket=UP), Load(Step.WARMUP))),
    (75.0, Looked(look(21, 22, socket=UP, health=TOKEN, generated=Health(None, "not asked yet")))),
    (76.0, Looked(look(21, 22, socket=UP, health=TOKEN, generated=TOKEN))),
    (90.0, Looked(look(21, 22, socket=UP, health=TOKEN, generated=TOKEN))),
)


def test_a_start_as_it_goes() -> None:
    recording, life = lived(*START)
    assert life.phase is Phase.READY
    assert recording.gpus == (("GPU-a", "0"), ("GPU-b", "3:1"))
    assert recording.needs == 10 * GIB
    assert recording.phases == ((2.0, "loading"), (70.0, "warming"), (76.0, "ready"))
    assert [(at, name) for at, name in recording.steps] == [
        (20.0, "loading weights"), (58.0, "capturing CUDA graphs"), (70.0, "warming up"),
    ]  # fmt: skip
    assert [(mark.at, mark.text) for mark in recording.marks] == [
        (2.0, "engine started"), (70.0, "port opened"), (75.0, "health 200"), (76.0, "first token"), (76.0, "READY"),
    ]  # fmt: skip
    assert recording.samples.series[2] == Sample(58.0, (20 * GIB, None))
    assert recording.samples.series[-1].at == 76.0, "what comes after READY is no part of the start"


def test_a_start_that_fails() -> None:
    recording, _ = lived(*START[:3], (30.0, StopRequested()), (31.0, EngineExited(-15)))
    assert [mark.text for mark in recording.marks] == ["engine started", "stop asked for", "engine ended by signal 15"]
    assert recording.phases[-1][1] in (Phase.STOPPING, Phase.DRAINING)
    assert not recording.closed


def test_blind_looks_leave_a_gap_not_a_zero() -> None:
    recording, _ = lived(START[0], (3.0, Looked(replace(look(0, 0), memory={}, nvml_error="no answer"))))
    assert recording.samples.series == (Sample(3.0, (None, None)),)


def test_a_time_without_a_look_is_a_gap_too() -> None:
    """As while the machine was asleep, or the daemon stood still: longer than looks are ever apart."""
    at = START[2][0] + LIMITS.gap
    recording, _ = lived(*START[:3], (at, Looked(look(9, 9))), (at + LIMITS.gap + 2, Looked(look(9, 9))))
    known = [(item.at, item.memory[0]) for item in recording.samples.series]
    assert known == [(3.0, 0), (20.0, 5 * GIB), (at, 9 * GIB), (at + LIMITS.gap / 2 + 1, None), (at + LIMITS.gap + 2, 9 * GIB)]


def test_why_it_fails_is_a_mark_unless_the_engine_s_end_says_it() -> None:
    recording, life = lived(*START[:3], *((20.0 + 30 * n, Looked(look(5, 4), Load(Step.WEIGHTS, 1, 8))) for n in range(1, 25)))
    assert life.failure
    assert [mark.word for mark in recording.marks] == ["engine", "failure"]
    assert life.failure.startswith(recording.marks[1].text[:-1])
    recording, life = lived(*START[:3], (30.0, EngineExited(1)), (31.0, Tick(0)))
    assert life.failure
    assert [mark.text for mark in recording.marks] == ["engine started", "engine exited with 1"]


def test_a_stranger_on_the_port_is_a_mark() -> None:
    taken = Socket(listening=True, ours=False, owner="nginx (pid 5)")
    recording, _ = lived(*START[:2], *((at, Looked(look(0, 0, socket=taken))) for at in (5.0, 6.0)))
    assert [(mark.at, mark.text) for mark in recording.marks][1:] == [(5.0, "port taken by nginx (pid 5)")]


def test_marks_are_capped_but_ready_is_always_told() -> None:
    recording = Recording()
    for number in range(100):
        recording = marked(recording, float(number), "xid", f"Xid {number}")
    assert len(recording.marks) == MARKS
    assert marked(recording, 100.0, "ready", "READY").marks[-1].word == "ready"


def test_it_is_handed_over_and_goes_on() -> None:
    whole, _ = lived(*START)
    life, recording = Life(LIMITS), Recording()
    for at, event in START:
        life, _ = step(life, event, at)
        recording = heard(recording, life, event, at)
        taken = recording_of(json.loads(json.dumps(document(recording))))
        assert taken is not None
        recording = taken
    assert recording == whole


def test_many_gpus_have_fewer_points_rather_than_no_picture() -> None:
    points = tuple(Sample(at * 7.0, tuple((at << 28) + gpu for gpu in range(GPUS_KEPT))) for at in range(300))
    gpus = tuple((f"MIG-{gpu:08x}-0000-0000-0000-000000000000", f"{gpu // 8}:{gpu % 8}") for gpu in range(GPUS_KEPT))
    recording = Recording(gpus, samples=Samples(points, points[-1]))
    assert len(json.dumps(document(recording))) > ROOM
    found = recording_of(json.loads(written(recording, ROOM)))
    assert found is not None
    assert found.gpus == gpus
    assert 40 < len(found.samples.series) < 300
    assert (found.samples.series[0].at, found.samples.series[-1].at) == (0.0, 299 * 7.0)


def test_phases_that_go_to_and_fro_are_bounded() -> None:
    recording = Recording()
    life = Life(LIMITS)
    for number in range(1000):
        phase = Phase.WARMING if number % 2 else Phase.LOADING
        recording = heard(recording, replace(life, phase=phase), Looked(look(0, 0)), float(number))
    assert len(recording.phases) == CHANGES


# What is no recording


@pytest.mark.parametrize("found", [None, 3, [], {}, {"schema": 2}, {"schema": "1"}])
def test_none_of_ours_is_none(found: object) -> None:
    assert recording_of(found) is None


def test_values_of_another_kind_are_left_out_one_by_one() -> None:
    hostile = {
        "schema": 1, "gpus": [["GPU-\x1b[31m", 0], ["b", "0:x"], ["c", True], "x", [5, 5]], "needs": -4, "step": float("nan"),
        "samples": [[1.0, 5], [0.5, 6], [2.0, None], [3.0], [float("nan"), 1], [4.0, "x"], [5.0, True], 7, [1e300, 1]],
        "phases": [[0, "loading"], [1, "<script>"], ["x", "ready"]], "steps": [[1, "a\nb"], [2]],
        "marks": [[1, "w", "\u202egnp"], [1, 2, 3], [-1, "w", "t"]], "closed": "yes",
    }  # fmt: skip
    found = recording_of(hostile)
    assert found is not None
    assert found.gpus == (("GPU-\\x1b[31m", "0"),)
    assert found.samples.series == (Sample(1.0, (5 << 20,)), Sample(2.0, (None,)))
    assert (found.needs, found.phases, found.closed) == (0, ((0.0, "loading"),), False)
    assert found.steps == ((1.0, "a\\x0ab"),)
    assert [mark.text for mark in found.marks] == ["\\u202egnp"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.fixed_dictionaries(dict.fromkeys(("gpus", "needs", "step", "samples", "phases", "steps", "marks", "closed"), JSON)))
def test_nothing_in_a_file_raises(found: dict[str, Any]) -> None:
    assert recording_of(found | {"schema": 1}) is not None
