"""A look at the engine's program that comes back, wherever the program lies.

Executing a file waits for its disk in the kernel, with all threads of the interpreter where ``subprocess`` uses vfork(2), and
not even SIGKILL ends such a wait on every file system. So a child looks first, and is left behind where it hangs.
"""

from __future__ import annotations

import os
import stat as st
from enum import StrEnum

from gpu_lifecycle.system.worker import in_child


class State(StrEnum):
    THERE = "there"
    MISSING = "missing"
    NO_PROGRAM = "no-program"  # no file, or one that nobody may execute
    UNSEEN = "unseen"  # we may not look, or the look failed: it may be there
    SILENT = "silent"  # its disk, or that of its interpreter, has not answered in time


def look_at(path: str, seconds: float) -> State:
    """Looks as we are: what another user may, only that user's start shows. Raises BusyError: no process for the look."""
    found = in_child(lambda: {"state": str(_look(path))}, seconds)
    return State(found["state"]) if found else State.SILENT


def _look(path: str) -> State:
    try:
        seen = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return State.MISSING
    except OSError:
        return State.UNSEEN
    if not st.S_ISREG(seen.st_mode) or not os.access(path, os.X_OK):
        return State.NO_PROGRAM
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
        if line.startswith(b"#!"):  # execve(2): the interpreter is executed in its place
            os.stat(line[2:].split()[0])
    except (OSError, IndexError):
        pass  # what may be executed need not be readable; the rest is execve's to say
    return State.THERE
