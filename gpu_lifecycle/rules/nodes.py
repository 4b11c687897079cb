"""Which device nodes an engine needs that are not there, and who has to make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_lifecycle.facts import Gpu, Node

BASE = ("nvidiactl", "nvidia-uvm")  # CUDA opens both before any GPU
BOOT_SECONDS = 180.0  # so long after boot, drivers may still be on their way
MODPROBE = "nvidia-modprobe -u -c 0"


def missing(nodes: Sequence[Node], wrong: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """What is missing or is no node of the driver, each in words; nothing where the platform has no such nodes at all.

    ``wrong``: files that only have the name of a node, by path what each is instead.
    Minors are the driver's own: in a container with one GPU it may be nvidia6 alone.
    """
    if not nodes and not wrong:
        return ()
    there = {node.path.rpartition("/")[2] for node in nodes}
    false = {path.rpartition("/")[2]: what for path, what in wrong.items()}
    wanted = [*BASE, *(f"nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None)]
    return tuple(
        f"/dev/{name} is no node of the NVIDIA driver: {false[name]}" if name in false else f"/dev/{name} is not there"
        for name in wanted
        if name not in there
    )


def cure(wrong: Iterable[str]) -> str:
    """What a person has to do; inside the unit nobody can, for it has no privileges."""
    remove = f"rm {' '.join(wrong)}; " if wrong else ""
    return f"{remove}{MODPROBE}; in a container, pass the nodes in from the host"
