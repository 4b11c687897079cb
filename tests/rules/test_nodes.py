"""Nodes that an engine needs: by the driver's minors, with the majors that it registered."""

from __future__ import annotations

import pytest

from gpu_lifecycle.facts import Gpu, Node
from gpu_lifecycle.rules.nodes import capability_files, cure, lacking, missing, tools


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
        (["nvidia-modeset"], ["nvidia-modprobe -m"]),
        (["nvidia-uvm", "nvidia3"], ["nvidia-modprobe -c 3", "nvidia-modprobe -u -c 0"]),
    ],
)
def test_each_node_is_made_by_its_own_number(names: list[str], commands: list[str]) -> None:
    """The driver's tool works on uvm or on the GPUs, never on both at once."""
    assert [" ".join(words) for words in tools(names)] == commands


def test_the_cure() -> None:
    assert cure(["nvidia7"], []).startswith("nvidia-modprobe -c 7; in a container")
    assert cure(["nvidia-uvm"], ["/dev/nvidia-uvm", "/dev/nvidia5"]).startswith("rm /dev/nvidia-uvm; nvidia-modprobe -u")


def instance(minor: int | None, number: int | None, compute: int | None = 0, parent: str = "GPU-a") -> Gpu:
    return Gpu("MIG-x", 0, minor, "", "H200", 1, 0, (), parent=parent, instance=number, compute_instance=compute)


def test_the_drivers_files_of_an_instance() -> None:
    """A GPU that is not divided has none, and where a number is not known, it is not guessed."""
    claim = [instance(2, 1), instance(2, 5, None), instance(None, 1), instance(2, None), gpu(3)]
    assert list(capability_files(claim)) == ["gpu2/mig/gi1/access", "gpu2/mig/gi1/ci0/access", "gpu2/mig/gi5/access"]


def test_an_instance_needs_nodes_of_its_own() -> None:
    caps = {"nvidia-cap30": "/proc/gi1/access", "nvidia-cap31": "/proc/gi1/ci0/access"}
    there = nodes("nvidiactl", "nvidia-uvm", "nvidia2", "nvidia-caps/nvidia-cap30")
    claim = [instance(2, 1)]
    assert missing(there, {}, claim, caps) == ("/dev/nvidia-caps/nvidia-cap31 is not there",)
    assert cure(["nvidia-cap31"], [], caps).startswith("nvidia-modprobe -f /proc/gi1/ci0/access; in a container")
    both = " ".join(next(tools(list(caps), caps)))
    assert both == "nvidia-modprobe -f /proc/gi1/access -f /proc/gi1/ci0/access"
    wrong = {"/dev/nvidia-caps/nvidia-cap31": "it is no character device"}
    said = "/dev/nvidia-caps/nvidia-cap31 is no node of the NVIDIA driver: it is no character device"
    assert missing(there, wrong, claim, caps) == (said,)
    assert cure(["nvidia-cap31"], wrong, caps).startswith("rm /dev/nvidia-caps/nvidia-cap31; nvidia-modprobe -f /proc")


@pytest.mark.parametrize("name", ["nvidia-cap7", "nvidia-nvlink", "channel0"])
def test_no_command_is_made_up_for_a_node_that_none_makes(name: str) -> None:
    assert cure([name], [f"/dev/{name}"]) == f"rm /dev/{name}; in a container, pass the nodes in from the host"


def test_two_instances_of_one_gpu_need_one_node() -> None:
    assert lacking(nodes("nvidiactl", "nvidia-uvm"), (), [gpu(2), gpu(2)]) == ("nvidia2",)
