"""The ``/dev/shm`` that a unit has of its own: how large, in which drop-in, and whether that makes sense. Pure.

The workers of an engine pass each other tensors there (NCCL, torch.multiprocessing, the queues of SGLang and vLLM); a write
beyond its size ends a worker by SIGBUS (tmpfs(5)). It is memory: what lies in it is counted as the unit's.
"""

from __future__ import annotations

import re

from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules.quantity import WrongValueError, parse_size, show_size

DEFAULT = "50%"  # what the unit file says, and what a tmpfs has that is given no size
KEY = "server.shm_size"
_CURE = 'write it like "50%" (of the memory) or "64GiB"'


def parse(value: object) -> str | int:
    """A share of the machine's memory as text (``"50%"``), or bytes. Raises WrongValueError."""
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,3})\s*%", value)):
        if 1 <= int(match[1]) <= 100:
            return f"{int(match[1])}%"
        raise WrongValueError("a share is 1% to 100% of the memory", _CURE)
    size = parse_size(value)
    if size < 1 << 20:
        raise WrongValueError("no engine can work with less than 1MiB", _CURE)
    return size


def option(size: str | int) -> str:
    """The value of ``TemporaryFileSystem=`` (systemd.exec(5)); ``size`` as ``parse`` gave it."""
    return f"/dev/shm:mode=1777,size={size}"  # noqa: S108 - the unit's own


def drop_in(size: str | int) -> str:
    """A drop-in that gives the unit this size in place of the one in its unit file."""
    head = f"# Written by gpu-lifecycle install, from {KEY}.\n[Service]\n"
    return f"{head}TemporaryFileSystem=\nTemporaryFileSystem={option(size)}\n"


def in_bytes(size: str | int, memory: int) -> int:
    """``memory``: what the machine has, in bytes."""
    return size if isinstance(size, int) else memory * int(size.removesuffix("%")) // 100


def size_of(options: str) -> str | int | None:
    """The size among the options of a mount as a unit has them; None: none, or not one of ours."""
    for word in options.split(","):
        name, _, value = word.partition("=")
        if name == "size":
            return int(value) if value.isdigit() else value
    return None


def judge(size: str | int, memory: int | None, mounted: str | None, service: str, name: str, file: str) -> list[Finding]:
    """``mounted``: the options of the unit's own ``/dev/shm`` as systemd has read them; None: not known, "": it has none."""
    found = []
    if memory is not None:
        found += _sense(in_bytes(size, memory), memory, file)
    if mounted == "":
        text = f"{service} has no /dev/shm of its own: what a run leaves there stays on the machine"
        hint = f"a drop-in took it away: systemctl cat {service}"
        found.append(Finding(Level.WARN, "shm-shared", text, hint, file, KEY))
    elif mounted is not None and size_of(mounted) != size:
        has = size_of(mounted)
        text = f"the config gives the unit a /dev/shm of {_shown(size)}, and systemd one of {_shown(has)}"
        found.append(Finding(Level.WARN, "shm-stale", text, f"gpu-lifecycle install {name}", file, KEY))
    return found


def _sense(amount: int, memory: int, file: str) -> list[Finding]:
    if amount > memory:
        text = f"a /dev/shm of {show_size(amount)} is more than the machine's memory, {show_size(memory)}"
        return [Finding(Level.WARN, "shm-large", text, f'leave it at "{DEFAULT}", or write less', file, KEY)]
    return []  # what is too little depends on the engine: rules/host.py


def _shown(size: str | int | None) -> str:
    return "unknown size" if size is None else show_size(size) if isinstance(size, int) else f"{size} of the memory"
