"""The door to the texts of unit files, drop-ins and other small config files, whatever lies at their paths."""

from __future__ import annotations

import glob
import os
import stat as st
from collections.abc import Iterable
from dataclasses import astuple

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.rules.unit_file import UnitText

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
LIMIT = 256 << 10  # bytes of one file
FILES_LIMIT = 64  # more drop-ins than any unit has
SECONDS = 5.0  # for all of them


def read_unit_files(paths: Iterable[str]) -> tuple[UnitText, ...]:
    """Each of them, in order; one that cannot be read says why. Never raises, and never waits for a pipe.

    They are read in a child: a unit may be a link to anywhere, and where one disk hangs, nothing is said of any of them.
    """
    from gpu_lifecycle.system.worker import in_child

    wanted = list(paths)[:FILES_LIMIT]
    try:
        found = in_child(lambda: {"files": [astuple(read_text(path)) for path in wanted]}, SECONDS)
        why = f"its disk, or that of one read with it, has not answered within {SECONDS:g} s"
    except LifecycleError as error:
        found, why = None, str(error)
    return tuple(UnitText(*item) for item in found["files"]) if found else tuple(UnitText(path, problem=why) for path in wanted)


def read_text(path: str, errors: str = "replace") -> UnitText:
    """A small text file; bytes that are no UTF-8 are replaced, or what else ``errors`` says (codecs)."""
    try:
        fd = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        return UnitText(path, problem=getattr(error, "strerror", None) or str(error))
    try:
        if not st.S_ISREG(os.fstat(fd).st_mode):
            return UnitText(path, problem="it is no regular file")
        data = b""
        while len(data) <= LIMIT and (piece := os.read(fd, LIMIT + 1 - len(data))):
            data += piece
    except OSError as error:
        return UnitText(path, problem=error.strerror or str(error))
    finally:
        os.close(fd)
    if len(data) > LIMIT:
        return UnitText(path, problem=f"it is larger than {LIMIT >> 10} KiB")
    return UnitText(path, data.decode("utf-8", errors))


def list_folder(folder: str, suffix: str) -> list[str]:
    """The paths in a folder that end so, in the order in which their programs read them; [] where there is no such folder."""
    try:
        return sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(suffix))[:FILES_LIMIT]
    except OSError:
        return []


def matching(pattern: str) -> list[str]:
    """The paths that a pattern of glob(7) names, sorted."""
    return sorted(glob.glob(pattern))
