"""What makes a GPU unfit, what makes it doubtful, and what is none of either."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.errors import Exit
from gpu_lifecycle.facts import ErrorClass, GpuError, GpuHealth, Level
from gpu_lifecycle.rules.fitness import CHECKS, absent, fabric_starting, judge, state, unread
from gpu_lifecycle.rules.nvml import classify, health_from

UUID = "GPU-5a0c"
ERROR = GpuError("999", "unknown error", ErrorClass.RETRY)


def gpu(**values: int | None) -> GpuHealth:
    return GpuHealth(UUID, 3, values)


@pytest.mark.parametrize(
    ("values", "level", "status", "text", "cure"),
    [
        ({"recovery": 1}, "error", 69, "GPU 3: the driver asks for a reset of the GPU", f"--gpu-reset -i {UUID}"),
        ({"recovery": 2}, "error", 69, "asks for a reboot", "reboot the machine"),
        ({"recovery": 3}, "warn", 69, "drain its peer-to-peer", "nvidia-smi -q"),
        ({"recovery": 4}, "error", 69, "drain and reset", UUID),
        ({"recovery": 5}, "warn", 69, "IMEX", "nvidia-imex"),
        ({"recovery": 7}, "error", 69, "reboot of the system", "reboot"),
        ({"remap_failed": 1}, "error", 69, "could not be replaced", "have the GPU replaced"),
        ({"remap_pending": 1}, "warn", 69, "is replaced at its next reset", "at the next chance"),
        ({"retired_pending": 1}, "warn", 69, "is retired at its next reset", "at the next chance"),
        ({"ecc": 7}, "warn", 69, "7 uncorrected memory errors", "-d ECC"),
        ({"fabric_state": 2}, "error", 69, "fabric is not up yet", "nvidia-fabricmanager"),
        ({"fabric_state": 3, "fabric_status": 999}, "error", 69, "could not join its NVSwitch fabric (NVML 999)", "dmesg"),
        ({"links_down": 2}, "warn", 69, "2 of its NVLinks are down", "nvlink --status"),
        ({"margin": 0}, "error", 75, "as hot as it may be", "cooling"),
        ({"clocks": 0x48}, "warn", 69, "hardware slowdown, hardware thermal slowdown", "PERFORMANCE"),
        ({"width": 8, "max_width": 16}, "warn", 69, "8 of 16 lanes", "reseat"),
        ({"compute": 2}, "error", 69, "prohibits CUDA", f"-i {UUID} -c DEFAULT"),
        ({"compute": 3}, "warn", 69, "exclusive to one process", "-c DEFAULT"),
        ({"recovery": 8}, "warn", 69, "its recovery action is 8, which is not known here", "nvidia-smi -q"),
        ({"fabric_state": 4}, "warn", 69, "its fabric state is 4", "nvidia-smi -q"),
        ({"compute": 9}, "warn", 69, "its compute mode is 9", "nvidia-smi -q"),
        ({"persistence": 0}, "warn", 69, "persistence mode is off", "nvidia-persistenced"),
    ],
)
def test_a_finding(values: dict[str, int], level: str, status: int, text: str, cure: str) -> None:
    (item,) = judge(gpu(**values))
    assert (item.finding.level, int(item.status), item.uuid) == (level, status, UUID)
    assert text in item.finding.message
    assert cure in item.finding.hint


@pytest.mark.parametrize(
    "values",
    [
        {}, dict.fromkeys(("recovery", "ecc", "margin", "fabric_state", "persistence", "width", "compute")), {"recovery": 0},
        {"fabric_state": 0}, {"fabric_state": 3, "fabric_status": 0}, {"margin": 1}, {"clocks": 0x1 | 0x4},
        {"width": 16, "max_width": 16}, {"width": 8}, {"max_width": 16}, {"width": 0, "max_width": 16}, {"persistence": 1},
    ],
)  # fmt: skip
def test_no_finding(values: dict[str, int | None]) -> None:
    assert judge(gpu(**values)) == ()
    assert state(gpu(**values)) == ("ok", [])


def test_errors_come_first() -> None:
    found = judge(gpu(persistence=0, remap_failed=1, ecc=1))
    assert [item.finding.level for item in found] == [Level.ERROR, Level.WARN, Level.WARN]


def test_states() -> None:
    assert state(None) == ("unknown", [])
    assert state(GpuHealth(UUID, 3, error=ERROR)) == ("unknown", ["unknown error"])
    assert state(gpu(ecc=1))[0] == "warn"
    assert state(gpu(ecc=1, remap_failed=1))[0] == "bad"
    assert state(GpuHealth(UUID, 3, {"ecc": 0}, {"margin": ERROR})) == ("warn", ["cannot read margin: unknown error"])


@pytest.mark.parametrize(("code", "status"), [("15", 69), ("16", 69)])
def test_a_gpu_that_is_lost_says_so_to_every_question(code: str, status: int) -> None:
    error = classify(code)
    for health in (GpuHealth(UUID, 3, {}, {"margin": ERROR, "ecc": error}), GpuHealth(UUID, 3, error=error)):
        (item,) = judge(health)
        assert (item.finding.level, int(item.status)) == ("error", status)
        assert item.finding.message == f"GPU 3: {error.text}"


def test_a_gpu_that_cannot_be_asked_is_not_fit() -> None:
    (item,) = judge(GpuHealth(UUID, 3, error=ERROR))
    assert (item.finding.level, int(item.status)) == ("error", 75)
    assert judge(GpuHealth(UUID, 3, {}, {"margin": ERROR})) == (), "one item that cannot be read is told, and no reason"


def test_a_gpu_that_is_gone_is_named() -> None:
    assert (absent(UUID).finding.message.startswith(f"GPU {UUID} "), int(absent(UUID).status)) == (True, 75)


def test_what_could_not_be_read() -> None:
    assert unread(gpu(ecc=0)) == ""
    both = GpuHealth(UUID, 3, {}, {"margin": ERROR, "ecc": ERROR})
    assert unread(both) == "GPU 3: cannot read ecc and 1 more item: unknown error"


def test_fabrics_that_are_coming_up() -> None:
    up, down = gpu(fabric_state=3), gpu(fabric_state=1)
    assert fabric_starting([up, down, gpu()]) == (3,)


def test_every_check_has_a_code_and_a_status() -> None:
    assert all(check.code and check.status in (Exit.UNAVAILABLE, Exit.TEMPFAIL) for check in CHECKS)


@pytest.mark.parametrize(
    "answer",
    [None, [], {"gpus": None}, {"gpus": [1]}, {"gpus": {}}, {"error": {"code": "15"}}, {"error": 7}],
)
def test_an_answer_that_cannot_be_read_is_an_error(answer: object) -> None:
    assert isinstance(health_from(answer), GpuError)


@pytest.mark.parametrize(
    "seen", [{}, {"index": 0}, {"index": 0, "values": [], "errors": {}}, {"index": "x", "values": {}, "errors": {}}]
)
def test_a_gpu_that_cannot_be_read_is_one_with_an_error(seen: dict[str, object]) -> None:
    found = health_from({"gpus": [seen]})
    assert isinstance(found, tuple)
    assert found[0].error
    assert state(found[0])[0] == "unknown"


NAMES = st.sampled_from(["gpus", "values", "errors", "index", "uuid", "ecc", "margin", "error", "code"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_no_answer_is_taken_for_a_number_that_it_is_not(answer: object) -> None:
    found = health_from(answer)
    for health in found if isinstance(found, tuple) else ():
        assert all(value is None or type(value) is int for value in health.values.values())
        judge(health)
        state(health)
