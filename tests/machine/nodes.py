"""The machine's GPU device nodes: terminals that do nothing, each with a number that nothing else has open."""

from __future__ import annotations

from pathlib import Path

MAJOR, FIRST = 4, 20
REGISTERED = "  4 nvidia-frontend"


class Nodes:
    """`/dev/nvidia0` and so on, by path."""

    def __init__(self, gpus: int, uvm: bool) -> None:
        names = [f"nvidia{index}" for index in range(gpus)]
        if gpus:
            names += ["nvidiactl"]
        if gpus and uvm:
            names += ["nvidia-uvm", "nvidia-uvm-tools"]
        if len(names) > 43:
            raise ValueError("too many GPUs: the numbers 4:20 to 4:62 are all there are")
        self._minors = {f"/dev/{name}": FIRST + place for place, name in enumerate(names)}

    def all(self) -> list[tuple[str, int, int]]:
        return [(path, MAJOR, minor) for path, minor in self._minors.items()]

    def number(self, path: str) -> tuple[int, int]:
        """Major and minor of one node."""
        return MAJOR, self._minors[path]

    def proc_devices(self) -> str:
        """`/proc/devices` as this machine shows it: the major number of its nodes is NVIDIA's."""
        lines: list[str] = []
        characters = True
        for line in Path("/proc/devices").read_text().splitlines():
            characters = characters and not line.startswith("Block")
            if characters and line.split()[:1] == [str(MAJOR)]:
                if REGISTERED not in lines and self._minors:
                    lines.append(REGISTERED)
            else:
                lines.append(line)
        return "\n".join(lines) + "\n"
