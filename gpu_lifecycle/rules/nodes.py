"""Which device nodes an engine needs that are not there, and who has to make them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from gpu_lifecycle.facts import Gpu, Node

CONTROL, UVM, MODESET = "nvidiactl", "nvidia-uvm", "nvidia-modeset"  # CUDA opens the first two before any GPU
CONTROL_MINOR = 255  # nv-chardev-numbers.h
BOOT_SECONDS = 180.0  # so long after boot, drivers may still be on their way
Caps = Mapping[str, str]  # the name of a node below /dev/nvidia-caps, and the driver's file that asks for it
NO_CAPS: Caps = MappingProxyType({})


def capability_files(gpus: Sequence[Gpu]) -> Iterator[str]:
    """What the driver says of the instances (MIG) among these GPUs, below its folder ``capabilities``.

    Of a GPU instance and of the compute instance in it: CUDA opens a node for each (MIG User Guide, "Device Nodes and
    Capabilities"). The number behind ``gpu`` is the driver's own minor.
    """
    for gpu in gpus:
        if gpu.parent and gpu.minor is not None and gpu.instance is not None:
            folder = f"gpu{gpu.minor}/mig/gi{gpu.instance}"
            yield f"{folder}/access"
            if gpu.compute_instance is not None:
                yield f"{folder}/ci{gpu.compute_instance}/access"


def lacking(nodes: Sequence[Node], wrong: Iterable[str], gpus: Sequence[Gpu], caps: Caps = NO_CAPS) -> tuple[str, ...]:
    """Names of the nodes that are missing or are none of the driver's; none where the platform has no such nodes at all.

    Minors are the driver's own: in a container with one GPU it may be nvidia6 alone. ``caps``: what instances need.
    """
    if not nodes and not any(wrong):
        return ()
    there = {node.path.rpartition("/")[2] for node in nodes}
    wanted = dict.fromkeys([CONTROL, UVM, *(f"nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None), *caps])
    return tuple(name for name in wanted if name not in there)


def missing(nodes: Sequence[Node], wrong: Mapping[str, str], gpus: Sequence[Gpu], caps: Caps = NO_CAPS) -> tuple[str, ...]:
    """The same, each in words. ``wrong``: files that only have the name of a node, by path what each is instead."""
    false = {path.rpartition("/")[2]: what for path, what in wrong.items()}
    return tuple(
        f"{_path(name)} is no node of the NVIDIA driver: {false[name]}" if name in false else f"{_path(name)} is not there"
        for name in lacking(nodes, wrong, gpus, caps)
    )


def _path(name: str) -> str:
    return f"/dev/nvidia-caps/{name}" if name.startswith("nvidia-cap") else f"/dev/{name}"


def tools(names: Sequence[str], caps: Caps = NO_CAPS) -> Iterator[tuple[str, ...]]:
    """The commands that make these nodes. With -u it works on uvm instead of the GPUs, and -c counts from uvm's first minor."""
    minors = [str(CONTROL_MINOR) if name == CONTROL else name[6:] for name in names if re.fullmatch(r"nvidia(\d+|ctl)", name)]
    if minors:
        yield ("nvidia-modprobe", *(word for minor in minors for word in ("-c", minor)))
    if UVM in names:
        yield ("nvidia-modprobe", "-u", "-c", "0")
    if MODESET in names:
        yield ("nvidia-modprobe", "-m")
    if files := [caps[name] for name in names if name in caps]:
        yield ("nvidia-modprobe", *(word for file in files for word in ("-f", file)))


def cure(names: Sequence[str], wrong: Iterable[str], caps: Caps = NO_CAPS) -> str:
    """What a person has to do for these nodes; inside the unit nobody can, for it has no privileges."""
    bad = [path for path in wrong if path.rpartition("/")[2] in names]
    commands = [*((f"rm {' '.join(bad)}",) if bad else ()), *(" ".join(words) for words in tools(names, caps))]
    return "; ".join([*commands, "in a container, pass the nodes in from the host"])
