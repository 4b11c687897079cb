"""The door to the terminal of whoever typed the command: its modes, its keys, its size, and its state at our end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGHUP)


class EndedError(BaseException):
    """A signal ends us. Not an Exception: nothing that handles errors may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ended_in_order() -> Iterator[None]:
    """What the block has made of the terminal is undone before SIGTERM or SIGHUP ends us; then it ends us all the same.

    In the main thread only (signal(2) has no other).
    """

    def end(number: int, _frame: object) -> None:
        for each in ENDING:  # a second one must not interrupt the undoing
            signal.signal(each, signal.SIG_IGN)
        raise EndedError(number)

    before = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup: who started us wants it ignored
            signal.signal(number, end)
    try:
        yield
    except EndedError as ended:
        signal.signal(ended.number, signal.SIG_DFL)
        os.kill(os.getpid(), ended.number)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
