"""What a look must show before READY=1, and what counts as progress of a load."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.readiness import Health, Look, Needs, Socket, blind, progress_of, unmet

MIB = 2**20
NEEDS = Needs({"GPU-a": "0", "GPU-b": "3"}, min_used=512 * MIB)
OURS = Socket(listening=True, ours=True)
OK = Health(200, "status 200")
FULL: dict[str, int | None] = {"GPU-a": 600 * MIB, "GPU-b": 512 * MIB}


def look(memory: dict[str, int | None] = FULL, socket: Socket = OURS, health: Health = OK, **more: Any) -> Look:
    return Look(memory=memory, socket=socket, health=health, **more)


@pytest.mark.parametrize(
    ("seen", "reasons"),
    [
        (look(), []),
        (look(FULL | {"GPU-b": 512 * MIB - 1}), ["this unit's own memory is below 512 MiB: GPU 3 has 512 MiB"]),
        (look(FULL | {"GPU-a": None}), ["GPU 0 has unknown"]),
        (look({}), ["GPU 0 has unknown, GPU 3 has unknown"]),
        (look(nvml_error="hung"), ["GPU memory cannot be seen: hung"]),
        (look({}, nvml_error="hung"), ["GPU memory cannot be seen: hung"]),
        (look(socket=Socket()), ["nobody listens on the engine's port"]),
        (look(socket=Socket(ours=True)), ["nobody listens on the engine's port"]),
        (look(socket=Socket(True, False, "process 7")), ["the engine's port is not this unit's: process 7 listens there"]),
        (look(socket=Socket(listening=True)), ["somebody that cannot be seen listens there"]),
        (look(health=Health(503, "status 503")), ["the health endpoint says: status 503"]),
        (look(health=Health(204, "status 204")), ["the health endpoint says: status 204"]),
        (look(health=Health(None, "connection refused")), ["the health endpoint says: connection refused"]),
        (look(generated=Health(None, "asked 3s ago")), ["no token was generated: asked 3s ago"]),
        (look(generated=OK), []),
        (look({}, Socket(), Health(None, "x")), ["below 512 MiB", "nobody listens", "the health endpoint says: x"]),
    ],
)
def test_unmet(seen: Look, reasons: list[str]) -> None:
    said = unmet(seen, NEEDS)
    assert len(said) == len(reasons)
    for got, wanted in zip(said, reasons, strict=True):
        assert wanted in got


def test_a_long_list_is_cut() -> None:
    needs = Needs({f"GPU-{at}": str(at) for at in range(8)})
    assert unmet(look({}), needs)[0].endswith("GPU 0 has unknown, GPU 1 has unknown, GPU 2 has unknown and 5 more")


def test_once_ready_silence_of_nvml_alone_proves_nothing() -> None:
    seen = look({}, nvml_error="hung")
    assert blind(seen)
    assert unmet(seen, NEEDS, blind_is_fine=True) == ()
    assert len(unmet(look({}, Socket(), nvml_error="hung"), NEEDS, blind_is_fine=True)) == 1
    assert len(unmet(look({}), NEEDS, blind_is_fine=True)) == 1  # seen, and not there


def test_once_ready_a_gpu_that_cannot_be_read_now_proves_nothing_about_it_alone() -> None:
    seen = look(FULL | {"GPU-b": None}, unseen={"GPU-b": "GPU 3: unknown error of the driver"})
    assert blind(seen) == "GPU 3: unknown error of the driver"
    assert unmet(seen, NEEDS, blind_is_fine=True) == ()
    assert "GPU 3 has unknown" in unmet(seen, NEEDS)[0]
    gone = look({"GPU-a": 0, "GPU-b": None}, unseen=seen.unseen)
    assert ["GPU 0 has 0 B" in reason for reason in unmet(gone, NEEDS, blind_is_fine=True)] == [True]


MARKS = [
    look({}, Socket(), Health(None, "refused")),
    look({"GPU-a": 16 * MIB, "GPU-b": None}, Socket(), Health(None, "refused")),
    look({"GPU-a": 16 * MIB, "GPU-b": 16 * MIB}, Socket(), Health(None, "refused")),
    look(FULL, Socket(True, False), Health(None, "refused")),
    look({}, OURS, Health(None, "refused")),
    look(FULL, OURS, Health(None, "refused")),
    look(FULL, OURS, OK),
]


def test_progress_only_grows() -> None:
    marks = [progress_of(seen) for seen in MARKS]
    assert marks == sorted(set(marks))


@given(st.integers(0, 16 * MIB - 1))
def test_less_than_16_mib_is_no_progress(more: int) -> None:
    assert progress_of(look({"GPU-a": 64 * MIB + more})) == progress_of(look({"GPU-a": 64 * MIB}))
