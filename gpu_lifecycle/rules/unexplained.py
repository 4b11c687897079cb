"""GPU memory that no process which can be seen here accounts for: how much, what is known of it, and where to look."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpu_lifecycle.facts import Gpu, GpuProcess, Judged
from gpu_lifecycle.rules.quantity import show_count, show_size

HOST_LOOK = "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv; fuser -v /dev/nvidia*"
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where this program runs. ``inner``: in a PID namespace below the first one, so that others' processes are not shown.

    ``handles`` is the driver's own count of open files, of the whole host; None: it cannot be read.
    """

    inner: bool
    handles: int | None = None


def amount(gpu: Gpu, seen: Sequence[Judged]) -> int | None:
    """Bytes that no visible holder accounts for. None where a figure is unknown: that is not 0."""
    known = [item.memory[gpu.uuid] for item in seen if gpu.uuid in item.memory]
    if gpu.used is None or None in known:
        return None
    return max(0, gpu.used - sum(figure or 0 for figure in known))


def strangers(gpu: Gpu, seen: Collection[int]) -> list[GpuProcess]:
    """Processes that NVML names and that are not among the visible holders: of elsewhere, or dead by now."""
    return [entry for entry in gpu.processes or () if entry.pid not in seen]


def explain(gpus: Sequence[tuple[Gpu, int]], seen: Collection[int], place: Place) -> tuple[str, str]:
    """What is known of all GPUs that hold such memory (``gpus`` with the bytes of each), and what to do."""
    held = ", ".join(f"{show_size(size)} on GPU {gpu.label}" for gpu, size in gpus)
    named = {entry.pid for gpu, _ in gpus for entry in strangers(gpu, seen)}
    known = [f"NVML names process {', '.join(map(str, sorted(named)[:SHOWN]))}, which holds no device here"] if named else []
    if place.handles is not None:
        known.append(f"the driver counts {show_count(place.handles, 'open handle')} on this host")
    return f"{held} held by {_whom(place)}" + (f" ({'; '.join(known)})" if known else ""), _cure(place)


def _whom(place: Place) -> str:
    if place.inner:
        return "nobody that can be seen from here: held outside this container or PID namespace"
    if place.handles == 0:
        return "nobody at all: the driver has not given it back"
    return "nobody that can be seen from here"


def _cure(place: Place) -> str:
    if place.inner:
        return f"on the host: {HOST_LOOK}"
    if place.handles == 0:
        return "see dmesg; if it stays, reset the GPU: nvidia-smi --gpu-reset"
    return f"look for a container, a debugger or a process in teardown: {HOST_LOOK}; if nobody is there, see dmesg"
