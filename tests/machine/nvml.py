"""The machine's NVML stand-in: what its `state` file says, changed while the machine runs."""

from __future__ import annotations

from typing import Protocol

HOME = "/var/lib/nvml-standin"
PLACE = "/dev/nvml-standin"  # HOME is a link to it: writable in a sandbox, and empty after a boot, like a GPU's memory
TOTAL, RESERVED = 150754820096, 650117120


class Files(Protocol):
    def write(self, path: str, text: str, mode: int = 0o644) -> None: ...
    def read(self, path: str) -> str: ...


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012d}"


def gpu(index: int, base: int = 0) -> str:
    """The line of one GPU."""
    place = f"minor={index} uuid={uuid(index)} pci=00000000:{index + 1:02X}:00.0"
    return f"gpu {index} {place} total={TOTAL} reserved={RESERVED} base={base} name=NVIDIA H200"


class Nvml:
    """The lines of the state file; each change replaces the file in one step."""

    def __init__(self, files: Files, gpus: int, driver: str) -> None:
        self._files = files
        self.lines = [f"driver {driver}", *(gpu(index) for index in range(gpus))]

    def set(self, *lines: str) -> None:
        """Add lines; a line of the same kind and object (`driver`, `gpu N`, `hidden N`, ...) is replaced."""
        for line in lines:
            self.lines = [old for old in self.lines if _subject(old) != _subject(line)] + [line]
        self._put()

    def clear(self, prefix: str = "") -> None:
        """Take out the lines that start so."""
        self.lines = [line for line in self.lines if not line.startswith(prefix)]
        self._put()

    def unload(self) -> None:
        """No driver: NVML says 9, until the next set() or clear()."""
        self._files.write(f"{HOME}/state", "unloaded\n")

    def inits(self) -> int:
        return len(self._files.read(f"{HOME}/inits"))

    def shutdowns(self) -> int:
        return len(self._files.read(f"{HOME}/shutdowns"))

    def _put(self) -> None:
        self._files.write(f"{HOME}/state", "".join(f"{line}\n" for line in self.lines))


def _subject(line: str) -> tuple[str, ...]:
    """What a line is about: its words but the value that it gives."""
    words = line.split()
    kind = words[0] if words else ""
    if kind in ("driver", "linger", "keep"):
        return (kind,)
    if kind in ("gpu", "mig", "hidden", "delay"):
        return tuple(words[:2])
    if kind in ("process", "health"):
        return tuple(words[:3])
    if kind == "error":
        return (kind, words[1], *words[3:])
    return (line,)
