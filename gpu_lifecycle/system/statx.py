"""statx(2) without asking anybody: what the kernel knows of a file at this moment.

stat(2) of a descriptor that leads to a dead FUSE or NFS server waits for that server, and then not even SIGKILL ends it.
``AT_STATX_DONT_SYNC`` takes what is cached. Device numbers never change, so they are right in any case.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable

DONT_SYNC = 0x4000  # AT_STATX_DONT_SYNC of linux/fcntl.h
WANTED = 0x00000103  # STATX_TYPE, STATX_MODE, STATX_INO of linux/stat.h
HERE = -100  # AT_FDCWD of linux/fcntl.h: names are paths
_KIND, _CHARACTER = 0o170000, 0o020000  # S_IFMT, S_IFCHR: inode(7)
SIZE = 256  # of struct statx


@functools.cache
def _call() -> Callable[[int, bytes, int, int, ctypes.c_void_p], int]:
    """Without declared types, whose checks cost a tenth of a look: what is passed is right as it is."""
    function: Callable[[int, bytes, int, int, ctypes.c_void_p], int] = ctypes.CDLL(None).statx
    return function


class Look:
    """One buffer to look with; for one thread at a time."""

    __slots__ = ("_at", "_buffer", "_call", "_halves", "_longs", "_words")

    def __init__(self) -> None:
        self._call = _call()
        self._buffer = ctypes.create_string_buffer(SIZE)
        self._at = ctypes.c_void_p(ctypes.addressof(self._buffer))
        view = memoryview(self._buffer).cast("B")
        self._halves, self._words, self._longs = view.cast("H"), view.cast("I"), view.cast("Q")

    def at(self, directory: int, name: str) -> int:
        """The mode of what ``name`` in an open directory leads to; 0 where it cannot be looked at, as when it is gone.

        ``HERE`` for the directory makes it a path.
        """
        return 0 if self._call(directory, os.fsencode(name), DONT_SYNC, WANTED, self._at) else self._halves[14]

    def sort(self, directory: int, names: list[str], majors: frozenset[int]) -> tuple[set[int], list[str], list[str]]:
        """Of the descriptors in an open ``/proc/PID/fd``: device numbers of these majors, the names of those that lead to an
        anonymous inode, such as a ring, and of those that cannot be looked at. One loop, for it is most of a scan's time.
        """
        call, at, halves, words = self._call, self._at, self._halves, self._words
        found: set[int] = set()
        anonymous: list[str] = []
        failed: list[str] = []
        for name in names:
            if call(directory, name.encode(), DONT_SYNC, WANTED, at):
                failed.append(name)
                continue
            kind = halves[14] & _KIND
            if kind == _CHARACTER:
                if words[32] in majors:
                    found.add(os.makedev(words[32], words[33]))
            elif not kind:
                anonymous.append(name)
        return found, anonymous, failed

    # Of the last look that succeeded; offsets of struct statx in linux/stat.h.

    @property
    def rdev(self) -> int:
        return os.makedev(self._words[32], self._words[33])

    @property
    def device(self) -> int:
        return os.makedev(self._words[34], self._words[35])

    @property
    def inode(self) -> int:
        return self._longs[4]


_LOOKS = threading.local()


def own_look() -> Look:
    """The calling thread's own, made once: making one costs as much as a dozen looks."""
    try:
        look: Look = _LOOKS.look
    except AttributeError:
        look = _LOOKS.look = Look()
    return look
