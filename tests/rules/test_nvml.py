"""NVML's return codes and the helper's answers: what is not understood is an error, never a zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import ErrorClass, GpuProcess
from gpu_lifecycle.rules.nvml import CODES, classify, view_from, with_versions

GOOD: dict[str, Any] = {
    "index": 1, "uuid": "GPU-1", "name": "H200", "pci": "00000000:01:00.0", "minor": 3, "total": 80, "used": 7,
    "processes": [[10, 5], [11, None]],
}  # fmt: skip


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained(code: str) -> None:
    kind, meaning, cure = CODES[code]
    error = classify(code, "said\nso")
    assert (error.code, error.kind, error.cure) == (code, kind, cure)
    assert error.text == f"{meaning} (NVML {code}: said\\x0aso)"
    assert classify(code).text == f"{meaning} (NVML {code})"
    assert meaning
    assert cure or kind is ErrorClass.DEGRADED
    assert code != "0"  # success is no error


@pytest.mark.parametrize(
    ("code", "kind"),
    [("9", "host-action"), ("18", "host-action"), ("15", "host-action"), ("4", "permanent"), ("10", "retry"), ("hung", "retry"),
     ("3", "degraded"), ("0", "retry"), ("4242", "retry"), ("None", "retry"), ("", "retry")],
)  # fmt: skip
def test_class(code: str, kind: str) -> None:
    assert classify(code).kind == kind


def test_the_binding_knows_our_numbers() -> None:
    """Every number of the table is one of nvml.h's, as the vendor's own binding lists them."""
    import pynvml

    known = {str(value) for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert {code for code in CODES if code.isdecimal()} <= known


def test_view() -> None:
    view = view_from({"id": 1, "driver": "580.1\n", "gpus": [GOOD]}, 5.0)
    (gpu,) = view.gpus
    assert (view.driver, view.at, view.error, gpu.error) == ("580.1\\x0a", 5.0, None, None)
    assert (gpu.uuid, gpu.index, gpu.minor, gpu.pci, gpu.name) == ("GPU-1", 1, 3, "00000000:01:00.0", "H200")
    assert (gpu.total, gpu.used, gpu.processes) == (80, 7, (GpuProcess(10, 5), GpuProcess(11, None)))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"total": 0, "used": 0}, "no-total"),
        ({"total": None}, "no-total"),
        ({"total": True}, "no-total"),
        ({"total": -1}, "no-total"),
        ({"total": "80"}, "no-total"),
        ({"error": {"code": 15, "text": "lost"}}, "15"),
        ({"error": {}}, "None"),
        ({"error": "lost"}, "garbled"),
        ({"index": None}, "garbled"),
        ({"index": "0"}, "garbled"),
        ({"processes": [[1]]}, "garbled"),
        ({"processes": [["x", 1]]}, "garbled"),
        ({"processes": [7]}, "garbled"),
        ({"processes": [[1.5, 1]]}, "garbled"),
    ],
)
def test_a_gpu_that_cannot_be_read(change: dict[str, Any], code: str) -> None:
    view = view_from({"gpus": [GOOD | change, GOOD]}, 0.0)
    broken, sound = view.gpus
    assert broken.error
    assert broken.error.code == code
    assert sound.error is None
    if "error" not in change:
        assert (broken.total, broken.used) == (None, None)


@pytest.mark.parametrize("used", [None, -1, "7", 7.0, True, [7]])
def test_used_memory_that_is_no_number_is_unknown(used: Any) -> None:
    assert view_from({"gpus": [GOOD | {"used": used}]}, 0.0).gpus[0].used is None


@pytest.mark.parametrize(
    "answer",
    [{}, {"gpus": None}, {"gpus": {}}, {"gpus": "x"}, {"gpus": [1]}, {"error": "x", "gpus": [GOOD]}, [], 7, None, "x"],
)
def test_an_answer_of_another_shape_is_garbled(answer: Any) -> None:
    view = view_from(answer, 1.0)
    assert view.error
    assert (view.error.code, view.gpus, view.at) == ("garbled", (), 1.0)


def test_an_error_hides_all_gpus() -> None:
    view = view_from({"error": {"code": 9, "text": "Driver Not Loaded"}, "gpus": [GOOD]}, 1.0)
    assert view.error == classify("9", "Driver Not Loaded")
    assert view.gpus == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "gpus", "error"]), inner, max_size=9),
    max_leaves=30,
)


@given(st.one_of(JSON, st.fixed_dictionaries({"gpus": st.lists(JSON)})))
def test_nothing_malformed_becomes_a_figure(answer: Any) -> None:
    """Never raises; and every figure of a GPU without an error is one that was in the answer."""
    view = view_from(answer, 0.0)
    assert not (view.error and view.gpus)
    for gpu, seen in zip(view.gpus, answer["gpus"] if view.gpus else (), strict=True):
        for name in ("total", "used", "minor"):
            figure = getattr(gpu, name)
            assert figure is None or (type(figure) is int and figure == seen[name])
        if gpu.error is None:
            assert gpu.total
            assert gpu.index == seen["index"]
            assert gpu.processes is None or len(gpu.processes) == len(seen["processes"])


@pytest.mark.parametrize(
    ("code", "kernel", "library", "tail"),
    [
        ("18", "570.86\n", "libnvidia-ml.so.575.51", "; the kernel runs 570.86\\x0a, the library is libnvidia-ml.so.575.51"),
        ("18", "", "libnvidia-ml.so.575.51", "; the library is libnvidia-ml.so.575.51"),
        ("18", "", "", ""),
        ("18", "", "libnvidia-ml.so.1", ""),
        ("9", "570.86", "libnvidia-ml.so.575.51", ""),
    ],
)
def test_the_versions_that_do_not_go_together_are_named(code: str, kernel: str, library: str, tail: str) -> None:
    error = classify(code)
    assert with_versions(error, kernel, library) == replace(error, text=error.text + tail)
