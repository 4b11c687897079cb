"""The door to the terminal of whoever typed the command: its modes, its keys, its size, and its state at our end."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGHUP)
LOCAL, CHARACTERS = 3, 6  # places in what tcgetattr gives
OFF = b"\0"  # _POSIX_VDISABLE of Linux: no key


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


@contextmanager
def keys_unseen(file: int, *, at_once: bool = False) -> Iterator[None]:
    """What is typed is not echoed into what is drawn, and Ctrl-Z and Ctrl-\\ do not leave a half-drawn terminal behind.

    ``at_once``: each key can be read as it is pressed (termios(3), ICANON). Ctrl-C stays what it is. The modes are given back
    as they were. Without a terminal, or in the background, where it may not be changed, nothing is done.
    """
    if not _ours(file):
        yield
        return
    before = termios.tcgetattr(file)
    changed = [*before[:6], list(before[6])]
    changed[LOCAL] &= ~(termios.ECHO | (termios.ICANON if at_once else 0))
    for key in (termios.VSUSP, termios.VQUIT):
        changed[CHARACTERS][key] = OFF
    if at_once:
        changed[CHARACTERS][termios.VMIN], changed[CHARACTERS][termios.VTIME] = 1, 0
    termios.tcsetattr(file, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _ours(file: int) -> bool:
    """Whether it is our terminal, and we are in its foreground: a change from the background would stop us (SIGTTOU)."""
    try:
        return os.isatty(file) and os.tcgetpgrp(file) == os.getpgrp()
    except OSError:
        return False  # not our controlling terminal


ARROWS = {b"A": "up", b"B": "down"}
KEY = re.compile(rb"\x1b[\[O][0-9;]*([A-Za-z~])|(.)", re.DOTALL)  # a key of several bytes (console_codes(4)), or one byte


class Keys:
    """What is pressed, and what wakes whoever waits for it: a byte in ``wake``, or a signal such as SIGWINCH."""

    def __init__(self, file: int, ready: int, wake: int) -> None:
        self.file, self.ready, self.wake = file, ready, wake

    def read(self, seconds: float) -> list[str]:
        """The keys so far, after at most so many seconds: ``up``, ``down``, or the character. ``q`` where there are no more."""
        poller = select.poll()
        for each in (self.file, self.ready):
            poller.register(each, select.POLLIN)
        found = dict(poller.poll(seconds * 1000))
        if self.ready in found:
            os.read(self.ready, 4096)
        if self.file not in found:
            return []
        typed = os.read(self.file, 4096)
        keys = [ARROWS.get(arrow, "") if arrow else key.decode("latin-1") for arrow, key in KEY.findall(typed)]
        return keys if typed else ["q"]

    def forget(self) -> None:
        """Drops what has been pressed and was not read yet."""
        termios.tcflush(self.file, termios.TCIFLUSH)


@contextmanager
def woken(file: int) -> Iterator[Keys]:
    """The keys of a terminal whose modes ``keys_unseen`` has set; a change of its size wakes the reader, too."""
    ready, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = signal.signal(signal.SIGWINCH, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield Keys(file, ready, wake)
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGWINCH, before)
        os.close(ready)
        os.close(wake)
