"""The door to what counts as an NVIDIA device here: the nodes, the driver's numbers, and its own count of who holds them.

Numbers: 195 is NVIDIA's static major (``Documentation/admin-guide/devices.txt``); all else is what the driver registered in
``/proc/devices``: uvm, modeset, caps, nvswitch, imex channels.
"""

from __future__ import annotations

import os
import re
import stat as st
from dataclasses import dataclass

from gpu_lifecycle.facts import Node
from gpu_lifecycle.system.procfs import read_bytes

NVIDIA_MAJOR = 195
_NODE = re.compile(r"^nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-nvswitch\d+|-nvswitchctl|-nvlink|-vgpuctl|-vgpu\d+)$")


@dataclass(frozen=True, slots=True)
class Devices:
    """What counts as an NVIDIA device on this machine. ``wrong``: nodes whose major the driver never registered."""

    nodes: tuple[Node, ...]
    majors: frozenset[int]
    wrong: tuple[str, ...] = ()

    def has(self, rdev: int) -> bool:
        return os.major(rdev) in self.majors

    def minor_of(self, rdev: int) -> int | None:
        """The GPU minor behind a device number; None for nodes that belong to no particular GPU."""
        for node in self.nodes:
            if node.rdev == rdev:
                return node.minor
        if os.major(rdev) == NVIDIA_MAJOR and os.minor(rdev) < 248:
            return os.minor(rdev)  # nv-chardev-numbers.h: 0..247 are GPUs
        return None

    def is_uvm(self, rdev: int) -> bool:
        return any(node.rdev == rdev and node.path.endswith("nvidia-uvm") for node in self.nodes)


def parse_majors(text: str) -> frozenset[int]:
    """Majors of NVIDIA's character devices in ``/proc/devices`` (proc_devices(5)), and the static one."""
    characters = text.partition("Block devices:")[0]
    found = {NVIDIA_MAJOR}
    for line in characters.splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and name.strip().startswith("nvidia"):
            found.add(int(number))
    return frozenset(found)


def find_devices(dev: str = "/dev", proc: str = "/proc") -> Devices:
    """The nodes of this machine. A missing ``/proc/devices`` leaves the static major."""
    try:
        majors = parse_majors(read_bytes(f"{proc}/devices").decode("utf-8", "replace"))
    except OSError:
        majors = frozenset({NVIDIA_MAJOR})
    nodes: list[Node] = []
    wrong: list[str] = []
    for name in sorted(os.listdir(dev)) if os.path.isdir(dev) else []:
        match = _NODE.match(name)
        if not match:
            continue
        path = f"{dev}/{name}"
        try:
            info = os.stat(path)
        except OSError:
            continue
        if not st.S_ISCHR(info.st_mode) or os.major(info.st_rdev) not in majors:
            wrong.append(path)
            continue
        minor = int(match[1]) if match[1].isdecimal() else None
        nodes.append(Node(path, info.st_rdev, minor))
    return Devices(tuple(nodes), majors, tuple(wrong))


def open_handles(sys: str = "/sys") -> int | None:
    """How many open files the driver counts on its GPU nodes, host-wide, in any namespace and in any state.

    Each open file of the driver holds a reference to its module (``.owner = THIS_MODULE``), as does each module that
    depends on it; what is left are the open files. None: no such module here, or its count cannot be read.
    """
    module = f"{sys}/module/nvidia"
    try:
        count = int(read_bytes(f"{module}/refcnt", 32))
        dependents = len(os.listdir(f"{module}/holders"))
    except (OSError, ValueError):
        return None
    return max(0, count - dependents)
