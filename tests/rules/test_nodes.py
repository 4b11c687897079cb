"""Nodes that an engine needs: by the driver's minors, with the majors that it registered."""

from __future__ import annotations

import pytest

from gpu_lifecycle.facts import Gpu, Node
from gpu_lifecycle.rules.nodes import cure, missing


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


def test_the_cure() -> None:
    assert cure([]).startswith("nvidia-modprobe -u -c 0; ")
    assert cure(["/dev/nvidia-uvm"]).startswith("rm /dev/nvidia-uvm; nvidia-modprobe")
