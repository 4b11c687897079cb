"""The steps between a verdict and SIGKILL, on real processes: what lets go of the GPU meanwhile lives on, and runs."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_lifecycle.facts import Judged, Node, Owner, OwnerKind, Verdict
from gpu_lifecycle.jobs.observe import Observer
from gpu_lifecycle.jobs.reap import Reaper
from gpu_lifecycle.system.devices import Devices
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.holders import Scanner

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
TTY40 = os.makedev(4, 40)  # nobody has it open

# The victim ignores SIGTERM. A sibling that shares its descriptors, clone(2) with CLONE_FILES, closes the node when told.
SHARED = """
import ctypes, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
sibling = ctypes.CDLL(None).syscall(number, 0x400 | signal.SIGCHLD, 0, 0, 0, 0)
if sibling == 0:
    signal.sigwait(signal.valid_signals() - {signal.SIGTERM})
    os.close(fd)
    signal.pause()
print(sibling, flush=True)
sys.stdin.read()
"""


@contextmanager
def victim(node: str) -> Iterator[tuple[int, int]]:
    """A holder, and the sibling that can close what it holds."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # inherited: the sibling waits for it
    words = [sys.executable, "-c", SHARED, node]
    try:
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            sibling = int(process.stdout.readline())
            try:
                yield process.pid, sibling
            finally:
                os.kill(sibling, signal.SIGKILL)
                process.kill()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def judged(probe: GpuProbe, node: Path, pid: int) -> tuple[Observer, Judged]:
    """An observer to whom this node is a GPU's, and the process that holds it, to be reaped."""
    observer = Observer(probe)
    observer.scanner = Scanner(observer.proc, Devices((Node(str(node), TTY40, 0),), frozenset({4})))
    process = observer.proc.describe(pid, devices=frozenset({TTY40}))
    assert process
    return observer, Judged(process, Owner(OwnerKind.NONE), Verdict.REAP, "orphan", "nobody answers for it")


def wait_for(observer: Observer, pid: int, state: str) -> None:
    deadline = time.monotonic() + 10
    while (seen := observer.proc.stat(pid)) is None or seen.state != state:
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)


@pytest.mark.parametrize(("lets_go", "result"), [(True, "let-go"), (False, "killed")])
def test_who_lets_go_while_it_is_stopped_is_set_going_again(tmp_path: Path, lets_go: bool, result: str) -> None:
    node = tmp_path / "nvidia0"
    os.mknod(node, stat.S_IFCHR | 0o600, TTY40)
    with GpuProbe() as probe, victim(str(node)) as (pid, sibling):
        observer, item = judged(probe, node, pid)

        def look() -> list[Judged]:
            """Called between SIGSTOP and SIGKILL."""
            wait_for(observer, pid, "T")
            if lets_go:
                os.kill(sibling, signal.SIGUSR1)
                while observer.scanner.held(pid)[0]:
                    pass
            return []

        ended = Reaper(observer, 0.1, 5, lambda _: None, look).reap([item])
        assert ended == [(item, result)]
        wait_for(observer, pid, "S" if lets_go else "Z")


def test_an_interruption_leaves_nobody_stopped(tmp_path: Path) -> None:
    node = tmp_path / "nvidia0"
    os.mknod(node, stat.S_IFCHR | 0o600, TTY40)
    with GpuProbe() as probe, victim(str(node)) as (pid, _):
        observer, item = judged(probe, node, pid)

        def look() -> list[Judged]:
            wait_for(observer, pid, "T")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Reaper(observer, 0.1, 5, lambda _: None, look).reap([item])
        wait_for(observer, pid, "S")
