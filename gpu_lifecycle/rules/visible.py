"""What the engine is shown of the machine: CUDA's variables, made from the claim, and whether the config says otherwise.

CUDA numbers the GPUs that it can reach by itself. With CUDA_DEVICE_ORDER=PCI_BUS_ID the order is that of the PCI addresses;
else the fastest one comes first. CUDA_VISIBLE_DEVICES selects among them and gives them new numbers, in the order in which it
names them; at the first name that it does not know it stops (CUDA C++ Programming Guide, "CUDA Environment Variables").
A number of CUDA's is no minor, and NVML's index only where nothing is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import ConfigError, UnavailableError
from gpu_lifecycle.facts import Gpu, GpuView
from gpu_lifecycle.rules.claims import pci_key, trouble
from gpu_lifecycle.rules.engines import option
from gpu_lifecycle.rules.nvml import classify
from gpu_lifecycle.rules.quantity import show_count
from gpu_lifecycle.rules.text import printable

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Server

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
BY_PCI = "PCI_BUS_ID"
NO_PERMISSION = "4"  # NVML counts a GPU that this cgroup may not open; CUDA does not
# Engines that read the variable themselves, and know numbers only: SGLang's custom all-reduce, vLLM's platform layer.
BY_NUMBER = frozenset(("sglang", "vllm"))
# Options that pass over some of the GPUs that are shown, unless they have this value.
SKIPPING = {"sglang": {"--base-gpu-id": "0", "--gpu-id-step": "1"}}
LEAVE_OUT = "leave it out: the claim says it"


@dataclass(frozen=True, slots=True)
class _Said:
    """A variable that is set for the engine already: by whom, and to what."""

    key: str
    text: str


def variables(view: GpuView, gpus: Sequence[Gpu], server: Server, own: Mapping[str, str]) -> dict[str, str]:
    """What to add to the engine's environment so that it sees the claimed ``gpus`` and no others; ``own`` is ours.

    Raises ConfigError where the command or the environment shows it other GPUs than the claim, and UnavailableError where
    CUDA's numbers cannot be known.
    """
    _refuse_skipping(server, len(gpus))
    order, visible = _said(ORDER, server, own), _said(VISIBLE, server, own)
    found = {} if order else {ORDER: BY_PCI}
    if visible:
        _compare(visible, order, view, gpus)
        return found
    if {gpu.uuid for gpu in gpus} == {gpu.uuid for gpu in _reachable(view)}:
        return found  # all that there is: nothing to select
    if server.engine not in BY_NUMBER or any(gpu.parent for gpu in gpus):  # an instance has no number
        return found | {VISIBLE: ",".join(gpu.uuid for gpu in gpus)}
    _must_be_by_pci(order)
    numbers = {gpu.uuid: number for number, gpu in enumerate(_by_pci(view))}
    return found | {VISIBLE: ",".join(str(numbers[gpu.uuid]) for gpu in gpus)}


def _said(name: str, server: Server, own: Mapping[str, str]) -> _Said | None:
    """The last one who sets it wins: an ``env NAME=value`` in the command, the config, the unit's own environment."""
    words = server.command
    if words[0].rpartition("/")[2] == "env":
        for word in reversed(words[1:]):
            if word.startswith(f"{name}="):
                return _Said("server.command", word.partition("=")[2])
    if name in server.environment:
        return _Said(f"server.environment.{name}", server.environment[name])
    return _Said("the service's own environment", own[name]) if name in own else None


def _reachable(view: GpuView) -> list[Gpu]:
    return [gpu for gpu in view.gpus if not gpu.parent and not (gpu.error and gpu.error.code == NO_PERMISSION)]


def _by_pci(view: GpuView) -> list[Gpu]:
    """The GPUs by CUDA's number. A GPU that is broken may or may not be counted: then no number is sure."""
    found = _reachable(view)
    places = {gpu.uuid: pci_key(gpu.pci) for gpu in found}
    for gpu in found:
        if gpu.divided:
            raise UnavailableError(
                f"cannot tell CUDA's numbers of the GPUs because GPU {gpu.index} ({gpu.uuid}) is divided (MIG)",
                hint=f'name the claimed GPUs by UUID yourself: {VISIBLE} = "GPU-..."',
            )
        if gpu.error or not places[gpu.uuid]:
            why = gpu.error or classify("garbled", "no PCI address")
            raise trouble(f"cannot tell CUDA's numbers of the GPUs because of GPU {gpu.index} ({gpu.uuid})", why)
    return sorted(found, key=lambda gpu: places[gpu.uuid] or (0, 0, 0))


def _must_be_by_pci(order: _Said | None) -> None:
    if order and order.text != BY_PCI:
        raise ConfigError(
            f'"{printable(order.text, 40)}" lets CUDA number the GPUs by their speed, and nobody else can tell which is which',
            hint=f"leave it out, or write {BY_PCI}",
            key=order.key,
        )


def _compare(visible: _Said, order: _Said | None, view: GpuView, gpus: Sequence[Gpu]) -> None:
    """What is said must be the claim: the same GPUs, in any order, each once."""
    items = [item.strip() for item in visible.text.split(",")]
    if any(re.fullmatch(r"[0-9]+", item) for item in items):
        _must_be_by_pci(order)
    shown = [_one(item, visible, view) for item in items]
    if len(set(shown)) < len(shown):
        raise _wrong(visible, "names one GPU twice, and CUDA then shows none")
    if set(shown) != {gpu.uuid for gpu in gpus}:
        raise _wrong(visible, f"shows the engine {_name(shown, view)}, and the claim is {_name([g.uuid for g in gpus], view)}")


def _one(item: str, visible: _Said, view: GpuView) -> str:
    """The UUID of what one item names: a number of CUDA's, or a UUID or the beginning of one."""
    if re.fullmatch(r"[0-9]{1,4}", item):
        numbered = _by_pci(view)
        if int(item) < len(numbered):
            return numbered[int(item)].uuid
    elif item.startswith(("GPU-", "MIG-")) and len(item) > len("GPU-"):
        found = [gpu.uuid for gpu in view.gpus if not gpu.error and gpu.uuid.lower().startswith(item.lower())]
        if len(found) == 1:
            return found[0]
    what = f'"{printable(item, 60)}"' if item else "an empty name"
    raise _wrong(visible, f"has {what} for a GPU that is not there, and CUDA stops reading at it")


def _wrong(visible: _Said, why: str) -> ConfigError:
    return ConfigError(f'{VISIBLE} "{printable(visible.text, 100)}" {why}', hint=LEAVE_OUT, key=visible.key)


def _name(uuids: Sequence[str], view: GpuView) -> str:
    named = sorted((gpu.index, gpu.uuid if gpu.parent else str(gpu.index)) for gpu in view.gpus if gpu.uuid in uuids)
    return f"{show_count(len(named), 'GPU')} ({', '.join(name for _, name in named)})"


def _refuse_skipping(server: Server, count: int) -> None:
    """An option that passes over some of the GPUs which are shown: the claim has them, and they would stay empty."""
    for name, usual in SKIPPING.get(server.engine, {}).items():
        value = option(server.command, (name,))
        if value is not None and value != usual:
            raise ConfigError(
                f"{name} {printable(value, 20)} makes the engine pass over some of the {show_count(count, 'GPU')} it is shown",
                hint="leave the option out: the claim says it, and the engine counts from 0 within the claim",
                key="server.command",
            )
