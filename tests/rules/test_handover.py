"""What one version of the daemon hands to the next: all that counts comes over, and what is unfit is refused, never guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Gpu, Identity, Phase
from gpu_lifecycle.rules.budget import Budget
from gpu_lifecycle.rules.handover import Handover, changes, pack, read, unpack
from gpu_lifecycle.rules.life import Life, Limits
from gpu_lifecycle.rules.lifecycle import EngineExited, StopRequested, Tick, step
from gpu_lifecycle.rules.readiness import Needs

LIMITS = Limits(Needs({"GPU-a": "0"}), 600, 3600, 5, 5, 3, 120, 10, 30)
WORKERS = frozenset({Identity("boot", 11, 1), Identity("boot", 12, 2)})
READY = Life(
    LIMITS, phase=Phase.SUSPECT, began=10.5, since=20.0, text="suspect", engine=10, was_ready=True, ready_at=15.0,
    workers=WORKERS, strikes=2, looked=19.0, budget=Budget(2, 1, "like"), memory={"GPU-a": 5}, mark=(1, 2, "200"),
)  # fmt: skip
GPU = Gpu("GPU-a", 0, 3, "0000:01:00.0", "H200", 80 << 30, None, None)
HANDOVER = Handover("r1", pack(READY), (GPU,), "config", "latest", "0.1.0", "changes", 1, stop=True, output={"fds": [7, 8]},
                    start={"zero": 1.5})  # fmt: skip


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_a_life_comes_over() -> None:
    later = replace(LIMITS, interval=1)
    life = unpack(through_json(pack(READY)), later)
    assert life == replace(READY, limits=later, memory={}, mark=(0, 0, ""))


def test_a_handover_comes_over() -> None:
    assert read(through_json(HANDOVER.document())) == HANDOVER


def test_a_taken_over_life_ends_like_the_first_one() -> None:
    for event in (StopRequested(), EngineExited(1), Tick(3)):
        ours = step(replace(READY, memory={}, mark=(0, 0, "")), event, 30.0)
        assert step(unpack(through_json(pack(READY)), LIMITS), event, 30.0) == ours


def test_fields_of_another_version() -> None:
    packed = pack(READY) | {"of_a_newer_one": [1]}
    del packed["strikes"]
    assert unpack(packed, LIMITS).strikes == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("phase", "flying"), ("phase", None), ("workers", 7), ("workers", [[1]]), ("budget", []), ("budget", None)],
)
def test_an_unfit_life_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match="not as this version would write it"):
        unpack(pack(READY) | {name: value}, LIMITS)


@pytest.mark.parametrize(("name", "value"), [("engine", "10"), ("strikes", True), ("text", 7), ("deadline", "soon")])
def test_a_value_of_another_kind_keeps_its_default(name: str, value: object) -> None:
    assert getattr(unpack(pack(READY) | {name: value}, LIMITS), name) == getattr(Life(LIMITS), name)


@pytest.mark.parametrize("missing", ["run", "life", "gpus", "config", "latest", "version", "oom", "stop", "schema"])
def test_a_torn_handover_is_refused(missing: str) -> None:
    document = HANDOVER.document()
    del document[missing]
    with pytest.raises(ValueError, match="not as this version"):
        read(document)


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="its schema is 3"):
        read(HANDOVER.document() | {"schema": 3})


def test_a_version_that_had_no_pipes_hands_over_none() -> None:
    document = HANDOVER.document() | {"schema": 1}
    del document["output"]
    assert read(document).output == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(HANDOVER.document())), inner, max_size=9),
    max_leaves=12,
)


@given(JSON)
def test_anything_else_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match=r"not as this version|its schema is"):
        read(document)


def test_changes_are_told_without_their_values() -> None:
    old = {"server": {"command": ["a"], "url": None}, "watch": {"interval": 5.0, "failures": 3}, "stop": {"drain": 1}}
    new = {"server": {"command": ["b"], "url": None}, "watch": {"interval": 1.0, "failures": 3}, "stop": {"drain": 1}}
    assert changes(old, new, ("server", "gpus")) == (["watch.interval"], ["server.command"])
    assert changes(old, old, ("server",)) == ([], [])
