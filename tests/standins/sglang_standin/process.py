"""What others see of a process: title, death signal, device nodes, memory in the NVML stand-in."""

from __future__ import annotations

import contextlib
import ctypes
import os

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat: with the pid it names a process for good."""
    return _stat_fields(pid)[19]


def _stat_fields(pid: int) -> list[int]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    return [0, *(int(word) for word in words[1:])]


def set_title(title: bytes, keep_environ: bool) -> None:
    """Overwrite argv in place, as setproctitle does; that also blanks /proc/PID/environ unless kept."""
    fields = _stat_fields(os.getpid())
    arg_start, arg_end, env_start, env_end = fields[45:49]
    contiguous = arg_end == env_start
    room = (env_end if contiguous else arg_end) - arg_start
    if not contiguous or (keep_environ and len(title) < arg_end - arg_start):
        room = arg_end - arg_start
    if room > 1:
        # environment variables of this process were copied by the interpreter; getenv() is not used again
        ctypes.memset(arg_start, 0, room)
        ctypes.memmove(arg_start, title, min(len(title), room - 1))
    with open("/proc/self/comm", "wb", buffering=0) as file:
        file.write(title[:15])


def die_with_parent() -> None:
    """Be killed when the process that forked this one ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def visible_gpus(count: int) -> list[int]:
    """GPU index of each rank: what CUDA_VISIBLE_DEVICES lists, by number or UUID, else 0 and up."""
    words = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if not any(words):
        return list(range(count))
    known = _uuids() if not all(word.isdigit() for word in words) else {}
    return [int(word) if word.isdigit() else known[word] for word in words]


def _uuids() -> dict[str, int]:
    """The index of each GPU of the NVML stand-in by its UUID: its state has lines `gpu INDEX ... uuid=UUID`, and `mig`."""
    with open(os.path.join(_standin(), "state"), encoding="ascii") as file:
        lines = [line.split() for line in file if line.startswith(("gpu ", "mig "))]
    return {word[5:]: int(words[1]) for words in lines for word in words if word.startswith("uuid=")}


def _node(index: int) -> int:
    """The GPU whose node it is: of an instance (MIG) that which it is of, by lines `mig ENTRY parent=INDEX ...`."""
    with contextlib.suppress(FileNotFoundError), open(os.path.join(_standin(), "state"), encoding="ascii") as file:
        for line in file:
            if line.startswith(f"mig {index} parent="):
                return int(line.split()[2].removeprefix("parent="))
    return index


def _standin() -> str:
    return os.environ.get("NVML_STANDIN_DIR") or "/var/lib/nvml-standin"


def open_devices(indices: list[int]) -> None:
    """Open the nodes as CUDA does and keep them; a missing node is an OSError."""
    names = ["nvidiactl", "nvidia-uvm", *(f"nvidia{_node(index)}" for index in indices)]
    for name in names:
        os.open(f"/dev/{name}", os.O_RDWR | os.O_NOCTTY)


class Ledger:
    """This process' entry in the NVML stand-in: `alloc/PID.TICKS` with one line `INDEX BYTES`."""

    def __init__(self, index: int) -> None:
        pid = os.getpid()
        folder = os.path.join(_standin(), "alloc")
        os.makedirs(folder, exist_ok=True)
        self.index = index
        self.held = 0
        self._temporary = os.path.join(folder, f".tmp.{pid}")
        self._path = os.path.join(folder, f"{pid}.{start_ticks(pid)}")

    def hold(self, size: int) -> None:
        """Record this many bytes, in one atomic step."""
        if size == self.held:
            return
        with open(self._temporary, "w", encoding="ascii") as file:
            file.write(f"{self.index} {size}\n")
        os.rename(self._temporary, self._path)
        self.held = size

    def clear(self) -> None:
        """Give all of it back."""
        for path in (self._temporary, self._path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
