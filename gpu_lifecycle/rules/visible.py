"""Which GPUs an engine may see: the claim, said in CUDA's own variables, so that it cannot land on a GPU that is not its.

CUDA numbers GPUs by speed unless CUDA_DEVICE_ORDER says otherwise, NVML and nvidia-smi by PCI address; the minor of a node is
a third order. UUIDs mean the same everywhere (CUDA C++ Programming Guide, environment variables).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.facts import Gpu
from gpu_lifecycle.rules.text import printable

DEVICES, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
BY_PCI = "PCI_BUS_ID"
HINT = "leave it out: it is set from gpus.claim"


def visible(claimed: Sequence[Gpu], there: Sequence[Gpu], said: Mapping[str, str]) -> dict[str, str]:
    """The variables for the engine, beside ``said``, those of ``server.environment``.

    Where all GPUs are claimed nothing has to be hidden, and engines that only read numbers are left alone. Raises ConfigError
    where the config's own variables mean other GPUs than its claim.
    """
    order = {} if ORDER in said else {ORDER: BY_PCI}
    if DEVICES in said:
        _must_agree(claimed, there, said)
        return order
    if len(claimed) == len(there):
        return order
    return order | {DEVICES: ",".join(gpu.uuid for gpu in claimed)}


def _must_agree(claimed: Sequence[Gpu], there: Sequence[Gpu], said: Mapping[str, str]) -> None:
    words = [word.strip() for word in said[DEVICES].split(",") if word.strip()]
    numbers = [word for word in words if word.isdecimal()]
    if numbers and said.get(ORDER, BY_PCI) != BY_PCI:
        raise ConfigError(
            f"cannot tell which GPUs {DEVICES} means: {ORDER} is not {BY_PCI}", hint=HINT, key=f"server.environment.{DEVICES}"
        )
    meant = {uuid for word in words if (uuid := _meant(word, there))}
    if meant != {gpu.uuid for gpu in claimed} or len(meant) != len(words):
        raise ConfigError(
            f'{DEVICES} is "{printable(said[DEVICES], 100)}", which is not what gpus.claim says',
            hint=HINT,
            key=f"server.environment.{DEVICES}",
        )


def _meant(word: str, there: Sequence[Gpu]) -> str:
    """The UUID behind one word, "" for none: a number in the order of PCI addresses, or a UUID or its beginning."""
    if word.isdecimal():
        ordered = sorted(there, key=lambda gpu: gpu.pci.lower())
        return ordered[int(word)].uuid if int(word) < len(ordered) else ""
    found = [gpu.uuid for gpu in there if gpu.uuid.lower().startswith(word.lower())]
    return found[0] if len(found) == 1 else ""
