"""Which device nodes an engine needs that are not there, and who has to make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_lifecycle.facts import Gpu, Node

CONTROL, UVM = "nvidiactl", "nvidia-uvm"  # CUDA opens both before any GPU
CONTROL_MINOR = 255  # nv-chardev-numbers.h
BOOT_SECONDS = 180.0  # so long after boot, drivers may still be on their way


def lacking(nodes: Sequence[Node], wrong: Iterable[str], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Names of the nodes that are missing or are none of the driver's; none where the platform has no such nodes at all.

    Minors are the driver's own: in a container with one GPU it may be nvidia6 alone.
    """
    if not nodes and not any(wrong):
        return ()
    there = {node.path.rpartition("/")[2] for node in nodes}
    wanted = dict.fromkeys([CONTROL, UVM, *(f"nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None)])
    return tuple(name for name in wanted if name not in there)


def missing(nodes: Sequence[Node], wrong: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The same, each in words. ``wrong``: files that only have the name of a node, by path what each is instead."""
    false = {path.rpartition("/")[2]: what for path, what in wrong.items()}
    return tuple(
        f"/dev/{name} is no node of the NVIDIA driver: {false[name]}" if name in false else f"/dev/{name} is not there"
        for name in lacking(nodes, wrong, gpus)
    )


def tools(names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The commands that make these nodes. With -u it works on uvm instead of the GPUs, and -c counts from uvm's first minor."""
    minors = [str(CONTROL_MINOR) if name == CONTROL else name.removeprefix("nvidia") for name in names if name != UVM]
    gpus = ("nvidia-modprobe", *(word for minor in minors for word in ("-c", minor)))
    return (*((gpus,) if minors else ()), *((("nvidia-modprobe", "-u", "-c", "0"),) if UVM in names else ()))


def cure(names: Sequence[str], wrong: Iterable[str]) -> str:
    """What a person has to do for these nodes; inside the unit nobody can, for it has no privileges."""
    bad = [path for path in wrong if path.rpartition("/")[2] in names]
    commands = [*((f"rm {' '.join(bad)}",) if bad else ()), *(" ".join(words) for words in tools(names))]
    return f"{'; '.join(commands)}; in a container, pass the nodes in from the host"
