"""The door to the cache of downloaded models: which folder a name stands for."""

from __future__ import annotations

import os
import re
import stat as st

from gpu_lifecycle.rules.hub import folder_name

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
SNAPSHOTS_LIMIT = 100


def snapshots(names: list[str], cache: str, user: str, seconds: float) -> dict[str, str] | None:
    """The folder of each of these models in ``cache``, "" where it has none; read as ``user``, in a child, for a disk may hang.

    None: not read in time, or that user may not look.
    """
    from gpu_lifecycle.system.as_user import being
    from gpu_lifecycle.system.worker import Worker

    def look() -> dict[str, str]:
        with being(user):
            return {name: snapshot(name, cache) for name in names}

    worker = Worker()
    try:
        worker.start(look)
        found = worker.answer(seconds)
        return found if isinstance(found, dict) else None
    finally:
        worker.abandon()


def snapshot(name: str, cache: str) -> str:
    """The folder of what ``main`` stands for, or of the only download. "" where there is none. Raises PermissionError."""
    folder = f"{cache}/{folder_name(name)}"
    try:
        with os.scandir(f"{folder}/snapshots") as entries:
            found = [entry.name for number, entry in enumerate(entries) if number < SNAPSHOTS_LIMIT and entry.is_dir()]
    except PermissionError:
        raise
    except OSError:
        return ""
    main = _main(folder)
    chosen = main if main in found else found[0] if len(found) == 1 else ""
    return f"{folder}/snapshots/{chosen}" if chosen else ""


def _main(folder: str) -> str:
    """What ``refs/main`` says; "" where it says nothing of the kind."""
    try:
        fd = os.open(f"{folder}/refs/main", _FLAGS)
    except OSError:
        return ""
    try:
        text = os.read(fd, 100) if st.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return ""
    finally:
        os.close(fd)
    return text.decode("ascii", "replace").strip() if re.fullmatch(rb"[0-9a-f]{6,64}\s*", text) else ""
