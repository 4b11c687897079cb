"""The door to what counts as an NVIDIA device here: the nodes, the driver's numbers, and its own count of who holds them.

Numbers: 195 is NVIDIA's static major (``Documentation/admin-guide/devices.txt``); all else is what the driver registered in
``/proc/devices``: uvm, modeset, caps, nvswitch, imex channels.
"""

from __future__ import annotations

import os
import re
import stat as st
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_lifecycle.facts import Node
from gpu_lifecycle.system.procfs import read_bytes

NVIDIA_MAJOR = 195
FOLDERS = ("", "nvidia-caps/", "nvidia-caps-imex-channels/")  # of nodes, below /dev (nvidia-modprobe-utils.h)
_NODE = re.compile(
    r"^nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-nvswitch\d+|-nvswitchctl|-nvlink|-vgpuctl|-vgpu\d+|-cap\d+)$|^channel\d+$"
)


@dataclass(frozen=True, slots=True)
class Devices:
    """What counts as an NVIDIA device on this machine. ``wrong``: nodes whose major the driver never registered."""

    nodes: tuple[Node, ...]
    majors: frozenset[int]
    uvm_majors: frozenset[int] = frozenset()
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
        """Whether it is the node that CUDA opens and monitors do not, whether or not it has a name here."""
        if os.major(rdev) in self.uvm_majors and os.minor(rdev) == 0:
            return True
        return any(node.rdev == rdev and node.path.endswith("nvidia-uvm") for node in self.nodes)


def parse_majors(text: str, named: str = "nvidia") -> frozenset[int]:
    """Majors of character devices in ``/proc/devices`` (proc_devices(5)) whose name begins so."""
    found = set()
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and name.strip().startswith(named):
            found.add(int(number))
    return frozenset(found)


def find_devices(dev: str = "/dev", proc: str = "/proc") -> Devices:
    """The nodes of this machine. A missing ``/proc/devices`` leaves the static major."""
    try:
        text = read_bytes(f"{proc}/devices").decode("utf-8", "replace")
    except OSError:
        text = ""
    majors = parse_majors(text) | {NVIDIA_MAJOR}
    seen = [_node(f"{dev}/{folder}{name}", name, majors) for folder in FOLDERS for name in _names(f"{dev}/{folder}", folder)]
    nodes = tuple(node for node in seen if isinstance(node, Node))
    return Devices(nodes, majors, parse_majors(text, "nvidia-uvm"), tuple(path for path in seen if isinstance(path, str)))


def _names(path: str, folder: str) -> list[str]:
    try:
        return sorted(
            name for name in os.listdir(path) if _NODE.match(name) and name.startswith("channel") == ("imex" in folder)
        )
    except OSError:
        return []


def _node(path: str, name: str, majors: frozenset[int]) -> Node | str | None:
    """Its path alone where it is no node of the driver, None where it is gone."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    if not st.S_ISCHR(info.st_mode) or os.major(info.st_rdev) not in majors:
        return path
    number = name.removeprefix("nvidia")
    return Node(path, info.st_rdev, int(number) if number.isdecimal() else None)


def capability_nodes(files: Iterable[str], proc: str = "/proc") -> dict[str, str]:
    """The node that each of these files of the driver's ``capabilities`` asks for, by its name, and the file's path.

    A file that cannot be read asks for none; nor does any where the driver has not registered such nodes at all.
    """
    found: dict[str, str] = {}
    try:
        registered = re.search(rb"^ *\d+ nvidia-caps$", read_bytes(f"{proc}/devices"), re.MULTILINE)
    except OSError:
        registered = None
    for path in (f"{proc}/driver/nvidia/capabilities/{file}" for file in files if registered):
        try:
            said = re.search(rb"^DeviceFileMinor:\s*(\d{1,7})\s*$", read_bytes(path, 4096), re.MULTILINE)
        except OSError:
            continue
        if said:
            found[f"nvidia-cap{int(said[1])}"] = path
    return found


def what_is(path: str) -> str:
    """What a file is that has the name of a node and is none of the driver's."""
    try:
        info = os.stat(path)
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    if not st.S_ISCHR(info.st_mode):
        return "it is no character device"
    return f"its major is {os.major(info.st_rdev)}, which the driver has not registered"


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


PROC_PID_INIT_INO = 0xEFFFFFFC  # include/linux/proc_ns.h: the inode of the first PID namespace, on every kernel


def inner_namespace(proc: str = "/proc") -> bool:
    """Whether this is a PID namespace below the first one, such as a container's: processes outside are not shown."""
    try:
        return os.stat(f"{proc}/self/ns/pid").st_ino != PROC_PID_INIT_INO
    except OSError:
        return False


def uptime(proc: str = "/proc") -> float | None:
    """Seconds since the machine has booted (proc_uptime(5)); None where that cannot be read."""
    try:
        return float(read_bytes(f"{proc}/uptime", 64).split()[0])
    except (OSError, ValueError, IndexError):
        return None
