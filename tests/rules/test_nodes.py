"""Nodes that an engine needs: by the driver's minors, with the majors that it registered."""

from __future__ import annotations

import pytest

from gpu_lifecycle.facts import Gpu, Node
from gpu_lifecycle.rules.nodes import cure, lacking, missing, tools


def gpu(minor: int | None) -> Gpu:
    return Gpu(f"GPU-{minor}", 0, minor, "", "H200", 1, 0, ())


def nodes(*names: str) -> list[Node]:
    return [Node(f"/dev/{name}", 1, None) for name in names]


@pytest.mark.parametrize(
    ("there", "wrong", "minors", "said"),
    [
        (["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"], [], [0, 1], []),
        (["nvidiactl", "nvidia-uvm", "nvidia6"], [], [6], []),
        (["nvidiactl", "nvidia-uvm"], [], [None], []),
        ([], [], [0], []),
        (["nvidiactl", "nvidia-uvm", "nvidia0"], [], [0, 7], ["/dev/nvidia7 is not there"]),
        (["nvidiactl", "nvidia0"], [], [0], ["/dev/nvidia-uvm is not there"]),
        (["nvidia0"], [], [0], ["/dev/nvidiactl is not there", "/dev/nvidia-uvm is not there"]),
        (["nvidiactl", "nvidia0"], ["/dev/nvidia-uvm"], [0], ["/dev/nvidia-uvm is no node of the NVIDIA driver: major 4"]),
        ([], ["/dev/nvidia5"], [], ["/dev/nvidiactl is not there", "/dev/nvidia-uvm is not there"]),
    ],
)
def test_missing(there: list[str], wrong: list[str], minors: list[int | None], said: list[str]) -> None:
    assert list(missing(nodes(*there), dict.fromkeys(wrong, "major 4"), [gpu(minor) for minor in minors])) == said


@pytest.mark.parametrize(
    ("names", "commands"),
    [
        ([], []),
        (["nvidia-uvm"], ["nvidia-modprobe -u -c 0"]),
        (["nvidia7"], ["nvidia-modprobe -c 7"]),
        (["nvidiactl", "nvidia0", "nvidia7"], ["nvidia-modprobe -c 255 -c 0 -c 7"]),
        (["nvidia-uvm", "nvidia3"], ["nvidia-modprobe -c 3", "nvidia-modprobe -u -c 0"]),
    ],
)
def test_each_node_is_made_by_its_own_number(names: list[str], commands: list[str]) -> None:
    """The driver's tool works on uvm or on the GPUs, never on both at once."""
    assert [" ".join(words) for words in tools(names)] == commands


def test_the_cure() -> None:
    assert cure(["nvidia7"], []).startswith("nvidia-modprobe -c 7; in a container")
    assert cure(["nvidia-uvm"], ["/dev/nvidia-uvm", "/dev/nvidia5"]).startswith("rm /dev/nvidia-uvm; nvidia-modprobe -u")


def test_two_instances_of_one_gpu_need_one_node() -> None:
    assert lacking(nodes("nvidiactl", "nvidia-uvm"), (), [gpu(2), gpu(2)]) == ("nvidia2",)
