"""Runs in the machine: ``crowd.py COUNT FDS FLAG`` keeps COUNT idle processes with FDS open files each.

FLAG is created once all of them stand. They are children of this process, and go with the unit it runs in.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def open_files(wanted: int) -> None:
    """A mix as servers have it: devices, regular files, pipes; the standard three count."""
    kinds = ("/dev/null", "/etc/hostname", "/dev/zero")
    have = len(os.listdir("/proc/self/fd")) - 1  # the listing's own is closed again
    while have < wanted - 1:
        os.open(kinds[have % 3], os.O_RDONLY)
        os.pipe()
        have += 3
    while have < wanted:
        os.open("/dev/null", os.O_RDONLY)
        have += 1


def main() -> None:
    count, files, flag = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    open_files(files)
    for _ in range(count):
        if os.fork() == 0:
            break
    else:
        flag.write_text(f"{count}\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
