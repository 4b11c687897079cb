"""The engine sees its claim and nothing else; what the config says itself must mean the same."""

from __future__ import annotations

import pytest

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.facts import Gpu
from gpu_lifecycle.rules.visible import visible

# In NVML's order; minors run the other way round.
THERE = tuple(Gpu(f"GPU-{c}111", n, 7 - n, f"00000000:0{n + 1}:00.0", "H200", 1, 0, ()) for n, c in enumerate("abcd"))
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("claimed", "said", "given"),
    [
        ((0, 1, 2, 3), {}, PCI),
        ((2, 0), {}, PCI | {"CUDA_VISIBLE_DEVICES": "GPU-c111,GPU-a111"}),
        ((1,), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {"CUDA_VISIBLE_DEVICES": "GPU-b111"}),
        ((1, 2), {"CUDA_VISIBLE_DEVICES": "2,1"}, PCI),
        ((1, 2), {"CUDA_VISIBLE_DEVICES": "GPU-b1, gpu-c111"}, PCI),
        ((1, 2), {"CUDA_VISIBLE_DEVICES": "GPU-b1,GPU-c1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {}),
    ],
)
def test_what_the_engine_is_given(claimed: tuple[int, ...], said: dict[str, str], given: dict[str, str]) -> None:
    assert visible([THERE[n] for n in claimed], THERE, said) == given


@pytest.mark.parametrize(
    ("devices", "order", "words"),
    [
        ("0,1", "PCI_BUS_ID", 'is "0,1", which is not what gpus.claim says'),
        ("1", "PCI_BUS_ID", "not what gpus.claim says"),
        ("1,2,3", "PCI_BUS_ID", "not what gpus.claim says"),
        ("1,1,2", "PCI_BUS_ID", "not what gpus.claim says"),
        ("1,9", "PCI_BUS_ID", "not what gpus.claim says"),
        ("", "PCI_BUS_ID", "not what gpus.claim says"),
        ("-1", "PCI_BUS_ID", "not what gpus.claim says"),
        ("GPU-", "PCI_BUS_ID", "not what gpus.claim says"),
        ("MIG-1\n", "PCI_BUS_ID", "MIG-1"),
        ("1,2", "FASTEST_FIRST", "cannot tell which GPUs CUDA_VISIBLE_DEVICES means"),
    ],
)
def test_a_contradiction_is_refused(devices: str, order: str, words: str) -> None:
    said = {"CUDA_VISIBLE_DEVICES": devices, "CUDA_DEVICE_ORDER": order}
    with pytest.raises(ConfigError) as caught:
        visible(THERE[1:3], THERE, said)
    assert words in str(caught.value)
    assert caught.value.key == "server.environment.CUDA_VISIBLE_DEVICES"
    assert str(caught.value).isprintable()
