"""Signals reach the very process that was meant, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.facts import Identity
from gpu_lifecycle.system.pidfd import hold, wait_gone
from gpu_lifecycle.system.procfs import Proc

PROC = Proc()
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ignores SIGTERM."""
    with subprocess.Popen([sys.executable, "-c", DEAF], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def identity(pid: int) -> Identity:
    found = PROC.identity(pid)
    assert found
    return found


def test_a_signal_goes_through(victim: subprocess.Popen[bytes]) -> None:
    held = hold(identity(victim.pid), PROC)
    assert held
    with held:
        assert held.send(signal.SIGTERM)
        assert not held.gone()
        assert wait_gone([held], 0.05) == [held]
        assert held.send(signal.SIGKILL)
        assert wait_gone([held], 10) == []
        assert held.gone()
        assert victim.wait(10) == -signal.SIGKILL
        assert not held.send(signal.SIGTERM), "gone, and said so"
    held.close()  # a second time does no harm


@pytest.mark.parametrize(
    "change", [{"start_ticks": 1}, {"boot_id": "another"}, {"boot_id": ""}], ids=["reused pid", "another boot", "no boot"]
)
def test_another_process_is_not_held(victim: subprocess.Popen[bytes], change: dict[str, object]) -> None:
    wrong = replace(identity(victim.pid), **change)  # type: ignore[arg-type]
    before = len(os.listdir("/proc/self/fd"))
    assert hold(wrong, PROC) is None
    assert len(os.listdir("/proc/self/fd")) == before
    assert victim.poll() is None


def test_a_process_that_is_gone(victim: subprocess.Popen[bytes]) -> None:
    who = identity(victim.pid)
    victim.kill()
    os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
    held = hold(who, PROC)  # a zombie can be held, and is gone
    assert held
    with held:
        assert held.gone()
        assert wait_gone([held], 10) == []
    victim.wait()
    assert hold(who, PROC) is None


def test_what_cannot_be_held_is_no_proof_of_an_end() -> None:
    with pytest.raises(BlindError, match="cannot hold process 0"):
        hold(Identity(PROC.boot_id, 0, 0), PROC)


def test_a_wait_ends_at_its_deadline_and_is_shown(victim: subprocess.Popen[bytes]) -> None:
    shown: list[tuple[int, float]] = []
    held = hold(identity(victim.pid), PROC)
    assert held
    with held:
        began = time.monotonic()
        assert wait_gone([held], 1.2, lambda left, seconds: shown.append((left, seconds))) == [held]
        took = time.monotonic() - began
    assert 1.2 <= took < 5
    assert [left for left, _ in shown] == [1] * len(shown)
    assert 2 <= len(shown) <= 3
    assert 1.0 < shown[0][1] <= 1.2
    assert wait_gone([], 10) == []


def test_the_wait_ends_with_the_last_one() -> None:
    """One ends at once, one later, and one after the deadline."""
    script = "import sys; sys.stdin.read()"
    pipe = subprocess.PIPE
    with (
        subprocess.Popen([sys.executable, "-c", script], stdin=pipe) as first,
        subprocess.Popen([sys.executable, "-c", script], stdin=pipe) as last,
    ):
        grips = [grip for process in (first, last) if (grip := hold(identity(process.pid), PROC))]

        def tick(left: int, _: float) -> None:
            for process in (first, last)[2 - left :]:
                process.kill()

        try:
            assert wait_gone(grips, 20, tick) == []
        finally:
            for grip in grips:
                grip.close()
            first.kill()
            last.kill()
