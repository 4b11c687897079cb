"""Which GPUs a unit claims, found in what NVML shows; and whether their memory is free."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_lifecycle.errors import ConfigError, Exit, UnavailableError
from gpu_lifecycle.facts import ErrorClass, Gpu, GpuError, GpuView
from gpu_lifecycle.rules.quantity import show_count, show_size

_PCI = re.compile(r"^(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?$", re.IGNORECASE)
STEADY_BYTES = 16 * 1024 * 1024


def pci_key(text: str) -> tuple[int, int, int] | None:
    """Domain, bus and device, whatever the spelling: NVML writes 8 digits of domain, sysfs 4, Xid lines no function."""
    match = _PCI.match(text.strip())
    if not match:
        return None
    return int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16)


def claimed(view: GpuView, claim: str | Sequence[str | int], count: int | None) -> tuple[Gpu, ...]:
    """The claimed GPUs, all readable and exactly as many as ``count`` says.

    Raises UnavailableError where a GPU is missing or broken, ConfigError where the claim can never fit.
    """
    found = named(view, claim)
    if not found:
        raise UnavailableError("there is no GPU that NVML shows", hint="compare with lspci -d 10de: and nvidia-smi -L")
    uuids = [gpu.uuid for gpu in found]
    if len(set(uuids)) != len(uuids):
        raise ConfigError("the claim names one GPU twice", hint="name each GPU once", key="gpus.claim")
    for gpu in found:
        if gpu.divided:
            raise _divided(gpu, view)
        if gpu.error:
            raise trouble(f"cannot use GPU {gpu.label} ({gpu.uuid})", gpu.error)
    if count is not None and len(found) != count:
        raise UnavailableError(
            f"{show_count(len(found), 'GPU')} found, and the config asks for exactly {count}",
            hint="see which one is missing: gpu-lifecycle gpus; or correct gpus.count",
        )
    return found


def named(view: GpuView, claim: str | Sequence[str | int]) -> tuple[Gpu, ...]:
    """The GPUs that a claim means, whatever their state. Raises UnavailableError, ConfigError for one that it does not find."""
    if view.error:
        raise trouble("cannot look at the GPUs", view.error)
    whole = tuple(gpu for gpu in view.gpus if not gpu.parent)
    return whole if claim == "all" else tuple(_one(view, item) for item in claim)


def trouble(what: str, error: GpuError) -> UnavailableError:
    """An error of NVML as an exception; one that may pass has the exit status that makes systemd try again."""
    wrapped = UnavailableError(f"{what}: {error.text}", hint=error.cure)
    if error.kind in (ErrorClass.RETRY, ErrorClass.DEGRADED):
        wrapped.status = Exit.TEMPFAIL
    return wrapped


def _divided(gpu: Gpu, view: GpuView) -> ConfigError:
    """CUDA cannot use a GPU in MIG mode as a whole, and which of its instances is meant is not ours to guess."""
    mine = [item.uuid for item in view.gpus if item.parent == gpu.uuid]
    return ConfigError(
        f"GPU {gpu.label} ({gpu.uuid}) is divided into {show_count(len(mine), 'instance')} (MIG), and cannot be claimed whole",
        hint=f"claim them by their UUIDs: {', '.join(mine[:8])}" if mine else "make instances: nvidia-smi mig -cgi ... -C",
        key="gpus.claim",
    )


def _one(view: GpuView, item: str | int) -> Gpu:
    """One GPU by index, UUID (or an unambiguous beginning of it) or PCI address; one instance by UUID alone."""
    text = str(item).strip()
    if text.isdecimal():
        matches = [gpu for gpu in view.gpus if gpu.index == int(text) and not gpu.parent]
    elif pci_key(text):
        matches = [gpu for gpu in view.gpus if pci_key(gpu.pci) == pci_key(text) and not gpu.parent]
    else:
        matches = [gpu for gpu in view.gpus if gpu.uuid.lower().startswith(text.lower()) and len(text) >= 8]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f'"{text}" fits {len(matches)} GPUs', hint="write the whole UUID", key="gpus.claim")
    raise UnavailableError(f'the claimed GPU "{text}" is not there', hint="see what is: gpu-lifecycle gpus")


@dataclass(frozen=True, slots=True)
class Release:
    """Whether the memory of the claimed GPUs is free: ``text`` says what is still held where it is not."""

    free: bool
    text: str
    held: dict[str, int | None]


def judge_release(samples: Sequence[GpuView], uuids: Sequence[str], free_below: int) -> Release:
    """Free means: the last two looks both show every GPU below the threshold, and the same within 16 MiB.

    An error is never a zero: a GPU that could not be read is not free.
    """
    if not samples:
        return Release(False, "not looked at yet", {})
    last, before = samples[-1], samples[-2] if len(samples) > 1 else None
    if last.error:
        return Release(False, f"NVML: {last.error.text}", dict.fromkeys(uuids, None))
    held = {uuid: _used(last, uuid) for uuid in uuids}
    over = {uuid: used for uuid, used in held.items() if used is None or used > free_below}
    if over:
        return Release(False, ", ".join(_say(last, uuid, used) for uuid, used in over.items()), over)
    earlier = {uuid: _used(before, uuid) for uuid in uuids} if before and not before.error else {}
    for uuid, used in held.items():
        was = earlier.get(uuid)
        if was is None or used is None or abs(used - was) > STEADY_BYTES:
            return Release(False, "below the threshold, not yet steady", {})
    return Release(True, "free", {})


def _used(view: GpuView, uuid: str) -> int | None:
    return next((gpu.used for gpu in view.gpus if gpu.uuid == uuid and not gpu.error), None)


def _say(view: GpuView, uuid: str, used: int | None) -> str:
    label = next((gpu.label for gpu in view.gpus if gpu.uuid == uuid), None)
    return f"GPU {'?' if label is None else label}: {'unknown' if used is None else show_size(used)}"


def full_gpus(view: GpuView, uuids: Sequence[str], free_below: int) -> frozenset[str]:
    """Claimed GPUs that hold more than counts as free; one that cannot be read counts as full."""
    return frozenset(uuid for uuid in uuids if (used := _used(view, uuid)) is None or used > free_below)
