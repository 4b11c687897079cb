"""Runs in a live service: children that hold a GPU node, fork, exec and die, 200 at a time. Says how many died by a signal."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time

ALIVE = 200


def child(rng: random.Random) -> None:
    """Lives a moment with the node open: as itself, as another program, or as the parent of a child of its own."""
    os.set_inheritable(os.open("/dev/nvidia1", os.O_RDWR | os.O_NOCTTY), True)
    way = rng.random()
    if way < 0.3:
        os.execv("/bin/sleep", ["sleep", f"{rng.uniform(0.05, 0.5):.2f}"])
    if way < 0.6 and os.fork() == 0:
        time.sleep(rng.uniform(0, 0.2))
        os._exit(0)
    time.sleep(rng.uniform(0.05, 0.5))
    os._exit(0)


def main() -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    rng = random.Random(1)
    alive = signalled = born = 0
    while not stopping:
        while alive < ALIVE:
            born += 1
            alive += 1
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                child(random.Random(born))
        with contextlib.suppress(InterruptedError):
            _, status = os.waitpid(-1, 0)
            alive -= 1
            signalled += os.WIFSIGNALED(status)
        time.sleep(rng.uniform(0, 0.004))
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write(f"{born} {signalled}")


main()
