"""Which GPUs a claim names, and when their memory counts as free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.errors import ConfigError, Exit, LifecycleError, UnavailableError
from gpu_lifecycle.facts import ErrorClass, Gpu, GpuError, GpuView
from gpu_lifecycle.rules.claims import STEADY_BYTES, claimed, full_gpus, judge_release, named, pci_key, trouble

GIB = 2**30
UUIDS = ("GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb1111")
GPUS = tuple(
    Gpu(uuid, index, index, f"0000000{index}:{index}A:00.0", "H200", 80 * GIB, 0, ()) for index, uuid in enumerate(UUIDS)
)
VIEW = GpuView(GPUS)
LOST = GpuError("15", "fallen off the bus", ErrorClass.HOST_ACTION, "reboot")


@pytest.mark.parametrize(
    ("claim", "indices"),
    [
        ("all", [0, 1, 2]),
        ([2, 0], [2, 0]),
        (["1"], [1]),
        ([" 1 "], [1]),
        (["GPU-aaaa2222"], [1]),
        (["gpu-BBBB"], [2]),
        (["GPU-bbbb1"], [2]),
        (["1:1a:00"], None),  # a bus has two digits
        (["0001:1a:00.0"], [1]),
        (["00000002:2A:00.0", "PCI:0000:0a:00"], [2, 0]),
        (["0a:00.0"], [0]),
        (["GPU-bbb"], None),  # too short a beginning to be sure
        (["1a:00.0"], None),  # without a domain it is domain 0
        ([3], None),
        (["GPU-cccc1111"], None),
        ([""], None),
    ],
)
def test_claim(claim: str | list[str | int], indices: list[int] | None) -> None:
    if indices is not None:
        assert [gpu.index for gpu in claimed(VIEW, claim, len(indices))] == indices
        return
    with pytest.raises(UnavailableError, match="is not there") as caught:
        claimed(VIEW, claim, None)
    assert caught.value.status is Exit.UNAVAILABLE


@pytest.mark.parametrize(
    ("view", "claim", "count", "kind", "text"),
    [
        (VIEW, "all", 8, UnavailableError, "3 GPUs found, and the config asks for exactly 8"),
        (VIEW, [0, 1], 1, UnavailableError, "2 GPUs found"),
        (GpuView(()), "all", None, UnavailableError, "no GPU"),
        (VIEW, [], None, UnavailableError, "no GPU"),
        (VIEW, [0, "GPU-aaaa1111"], 2, ConfigError, "one GPU twice"),
        (VIEW, ["GPU-aaaa"], 1, ConfigError, "fits 2 GPUs"),
        (GpuView((GPUS[0], replace(GPUS[1], error=LOST))), "all", None, UnavailableError, "GPU 1 (GPU-aaaa2222): fallen off"),
        (GpuView(GPUS, error=LOST), "all", None, UnavailableError, "cannot look at the GPUs: fallen off"),
    ],
)
def test_claim_refused(
    view: GpuView, claim: str | list[str | int], count: int | None, kind: type[LifecycleError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        claimed(view, claim, count)
    assert text in caught.value.message
    assert caught.value.status.permanent
    assert caught.value.hint


def test_a_broken_gpu_that_is_not_claimed_is_no_matter() -> None:
    assert claimed(GpuView((GPUS[0], replace(GPUS[1], error=LOST))), [0], 1) == (GPUS[0],)


def test_a_lost_gpu_is_claimed_all_the_same() -> None:
    view = GpuView((GPUS[0], replace(GPUS[1], error=LOST)))
    assert named(view, "all") == view.gpus
    assert named(view, [0]) == view.gpus[:1]
    with pytest.raises(UnavailableError, match="cannot look"):
        named(GpuView((), error=LOST), "all")


@pytest.mark.parametrize(
    ("kind", "status"),
    [(ErrorClass.PERMANENT, 69), (ErrorClass.HOST_ACTION, 69), (ErrorClass.RETRY, 75), (ErrorClass.DEGRADED, 75)],
)
def test_what_may_pass_is_tried_again(kind: ErrorClass, status: int) -> None:
    error = trouble("cannot", GpuError("x", "why", kind, "cure"))
    assert (error.status, error.message, error.hint) == (status, "cannot: why", "cure")
    assert UnavailableError("another").status is Exit.UNAVAILABLE  # the class itself is as it was
    with pytest.raises(UnavailableError) as caught:
        claimed(GpuView((), error=GpuError("x", "why", kind)), "all", None)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("00000000:0F:00.0", (0, 15, 0)),
        ("0000:0f:00.0", (0, 15, 0)),
        ("PCI:0000:0f:00", (0, 15, 0)),
        ("0f:1f", (0, 15, 31)),
        (" 000a:81:00.1 ", (10, 0x81, 0)),
        ("0f:00.8", None),
        ("f:00.0", None),
        ("0000:0f:00:0", None),
        ("GPU-aaaa1111", None),
        ("", None),
    ],
)
def test_pci_key(text: str, key: tuple[int, int, int] | None) -> None:
    assert pci_key(text) == key


LIMIT = GIB // 2
BROKEN = GpuView((), error=LOST)


def looks(*used: int | None, error: bool = False) -> GpuView:
    return GpuView(
        tuple(replace(gpu, used=amount, error=LOST if error else None) for gpu, amount in zip(GPUS, used, strict=False))
    )


@pytest.mark.parametrize(
    ("samples", "text", "held"),
    [
        ([looks(0, 0), looks(0, 0)], "free", {}),
        ([looks(LIMIT, 5), looks(LIMIT, 5)], "free", {}),
        ([BROKEN, looks(0, 9 * GIB), looks(0, STEADY_BYTES), looks(0, 0)], "free", {}),
        ([], "not looked at yet", {}),
        ([looks(0, 0)], "not yet steady", {}),
        ([BROKEN, looks(0, 0)], "not yet steady", {}),
        ([GpuView(looks(0, 0).gpus, error=LOST), looks(0, 0)], "not yet steady", {}),
        ([looks(0, 0), GpuView(looks(0, 0).gpus, error=LOST)], "NVML: fallen off", {UUIDS[0]: None, UUIDS[1]: None}),
        ([looks(0, None), looks(0, 0)], "not yet steady", {}),
        ([looks(0), looks(0, 0)], "not yet steady", {}),
        ([looks(0, 0, error=True), looks(0, 0)], "not yet steady", {}),
        ([looks(STEADY_BYTES + 1, 0), looks(0, 0)], "not yet steady", {}),
        ([looks(0, 0), looks(STEADY_BYTES + 1, 0)], "not yet steady", {}),
        ([looks(0, 0), BROKEN], "NVML: fallen off the bus", {UUIDS[0]: None, UUIDS[1]: None}),
        ([looks(0, 0), looks(0, None)], "GPU 1: unknown", {UUIDS[1]: None}),
        ([looks(0, 0), looks(0)], "GPU ?: unknown", {UUIDS[1]: None}),
        ([looks(0, 0), looks(0, 0, error=True)], "GPU 0: unknown, GPU 1: unknown", {UUIDS[0]: None, UUIDS[1]: None}),
        ([looks(0, 0), looks(0, LIMIT + 1)], "GPU 1: 512 MiB", {UUIDS[1]: LIMIT + 1}),
        ([looks(0, 76 * GIB)] * 2, "GPU 1: 76 GiB", {UUIDS[1]: 76 * GIB}),
    ],
)
def test_release(samples: list[GpuView], text: str, held: dict[str, int | None]) -> None:
    release = judge_release(samples, UUIDS[:2], LIMIT)
    assert text in release.text
    assert (release.free, release.held) == (text == "free", held)


AMOUNTS = st.sampled_from([None, 0, 1, LIMIT, LIMIT + 1])
VIEWS = st.one_of(st.just(BROKEN), st.builds(looks, AMOUNTS, AMOUNTS, error=st.booleans()))


@given(st.lists(VIEWS, max_size=4))
def test_only_two_numbers_make_a_gpu_free(samples: Sequence[GpuView]) -> None:
    if judge_release(samples, UUIDS[:2], LIMIT).free:
        for view in samples[-2:]:
            assert view.error is None
            assert [gpu.error for gpu in view.gpus] == [None, None]
            assert all(gpu.used is not None for gpu in view.gpus)
        assert len(samples) > 1
        assert full_gpus(samples[-1], UUIDS[:2], LIMIT) == frozenset()


@pytest.mark.parametrize(
    ("view", "full"),
    [(looks(0, LIMIT), ""), (looks(LIMIT + 1, 0), "0"), (looks(0, None), "1"), (looks(0), "1"), (looks(0, 0, error=True), "01"),
     (BROKEN, "01")],
)  # fmt: skip
def test_full(view: GpuView, full: str) -> None:
    assert full_gpus(view, UUIDS[:2], LIMIT) == {UUIDS[int(at)] for at in full}
