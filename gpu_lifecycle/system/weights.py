"""The door to a model's folder: how large its weights are, by the sizes of its files alone."""

from __future__ import annotations

import os
import stat as st

FILES_LIMIT = 10_000  # more than any model has shards; a folder with more is not read to its end
SUFFIXES = (".safetensors", ".gguf")


def weights_size(path: str) -> int | None:
    """Bytes of all weight files directly in a folder, or of the one file. None: not on this machine, or not readable."""
    found = weights_of(path)
    return found[0] if found else None


def weights_of(path: str) -> tuple[int, int] | None:
    """Bytes of all weight files, and of the largest one of them."""
    try:
        if st.S_ISREG(os.stat(path).st_mode):
            return os.stat(path).st_size, os.stat(path).st_size
        sizes = []
        with os.scandir(path) as entries:
            for number, entry in enumerate(entries):
                if number >= FILES_LIMIT:
                    return None
                if entry.name.endswith(SUFFIXES) and entry.is_file():
                    sizes.append(entry.stat().st_size)
    except OSError:
        return None
    return (sum(sizes), max(sizes)) if sizes else None
