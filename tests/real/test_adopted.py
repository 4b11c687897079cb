"""A child that an earlier program in this process has started: its end is told like that of one's own."""

from __future__ import annotations

import os
import signal
import time

import pytest

from gpu_lifecycle.system.engine import Adopted


def child(code: int) -> int:
    pid = os.fork()
    if pid == 0:
        if code >= 0:
            os._exit(code)
        while True:
            signal.pause()
    return pid


@pytest.mark.parametrize("code", [0, 3, 255])
def test_a_status(code: int) -> None:
    adopted = Adopted(child(code))
    assert adopted.wait() == code
    assert (adopted.poll(), adopted.wait()) == (code, code)
    adopted.send_signal(signal.SIGKILL)  # to nobody: it has been collected


def test_a_signal() -> None:
    adopted = Adopted(child(-1))
    assert adopted.poll() is None
    adopted.send_signal(signal.SIGTERM)
    assert adopted.wait() == -signal.SIGTERM


def test_one_that_was_collected_elsewhere() -> None:
    pid = child(3)
    os.waitpid(pid, 0)
    assert Adopted(pid).poll() == 0


def test_a_poll_does_not_wait() -> None:
    adopted = Adopted(child(-1))
    began = time.monotonic()
    assert adopted.poll() is None
    assert time.monotonic() - began < 5
    adopted.send_signal(signal.SIGKILL)
    assert adopted.wait() == -signal.SIGKILL
