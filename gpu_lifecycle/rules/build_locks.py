"""Locks of just-in-time builds, such as of CUDA extensions: which of them may hold a load up for ever, and the cure.

Two kinds. A baton is there or not (torch.utils.file_baton: a file ``lock``; who finds it waits until it is gone, also when its
maker is dead). A file lock counts only while some process holds it (flock(2): ``*.lock`` of filelock, Triton and FlashInfer).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.rules.text import printable

BATON = "lock"
SHOWN = 3
# Variable that names the place, and else the place below HOME (or below XDG_CACHE_HOME, where it begins with .cache/).
PLACES = (
    ("TORCH_EXTENSIONS_DIR", ".cache/torch_extensions"),
    ("TRITON_CACHE_DIR", ".triton"),
    ("FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer"),
    ("DG_JIT_CACHE_DIR", ".deep_gemm"),
    ("VLLM_CACHE_ROOT", ".cache/vllm"),
    ("TORCHINDUCTOR_CACHE_DIR", ""),
    ("TVM_FFI_CACHE_DIR", ".cache/tvm-ffi"),
)


@dataclass(frozen=True, slots=True)
class BuildLock:
    """One lock file: ``modified`` in seconds since the epoch; ``holders``: who has it open, or locked."""

    path: str
    modified: float
    holders: frozenset[int] = frozenset()


def places(environment: Mapping[str, str]) -> list[str]:
    """Where an engine with this environment builds."""
    home = environment.get("HOME", "")
    cache = environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    found = []
    for variable, below in PLACES:
        place = environment.get(variable, "")
        if not place and below.startswith(".cache/") and cache:
            place = f"{cache}/{below.removeprefix('.cache/')}"
        elif not place and below and home:
            place = f"{home}/{below}"
        if place.startswith("/"):
            found.append(place)
    return list(dict.fromkeys(found))


def suspects(locks: Sequence[BuildLock], began: float, own: Collection[int], now: float) -> str:
    """The locks that a load which began at ``began`` may wait for in vain, each with its cure; "" for none.

    A baton that is older than the run and that nobody has open is nobody's. A lock that a process outside the run holds is
    that one's business, so it is only named.
    """
    said = [text for lock in locks if (text := _suspect(lock, began, own, now))]
    more = f"; and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return "; ".join(said[:SHOWN]) + more


def _suspect(lock: BuildLock, began: float, own: Collection[int], now: float) -> str:
    path = printable(lock.path, 300)
    if lock.path.rpartition("/")[2] == BATON and not lock.holders and lock.modified < began:
        age = show_duration(round(max(0.0, now - lock.modified)))
        return f"{path} was left {age} ago by a build that is dead; to go on: rm {path}"
    others = sorted(lock.holders - set(own))
    if others:
        return f"{path} is held by process {others[0]}, which is not part of this run; look: ps -fp {others[0]}"
    return ""
