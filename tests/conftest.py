"""What holds for every test: it leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Hashable, Iterator
from pathlib import Path

import pytest

SETTLE = 2.0  # seconds; what is ending has ended by then, on a busy machine too

_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def pytest_configure() -> None:
    """Know every event loop: asyncio itself only tells about the running one."""
    plain = asyncio.BaseEventLoop.__init__

    def init(loop: asyncio.BaseEventLoop) -> None:
        plain(loop)
        _loops.add(loop)

    pytest.MonkeyPatch().setattr(asyncio.BaseEventLoop, "__init__", init)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a child process, a descriptor, a thread or an asyncio task.

    Fixtures of a wider scope that the test names as arguments are set up before this one, so that what they
    hold is not counted; ``request.getfixturevalue`` in the test would set them up after it.
    """
    before = _held()
    yield
    deadline = time.monotonic() + SETTLE
    while left := {key: text for key, text in _held().items() if key not in before}:
        if time.monotonic() > deadline:
            pytest.fail("left behind: " + ", ".join(sorted(left.values())), pytrace=False)
        gc.collect()
        time.sleep(0.01)


def _held() -> dict[Hashable, str]:
    """Everything that this process holds: what makes it the same thing later, and its name for a person."""
    return {**_children(), **_descriptors(), **_threads(), **_tasks()}


def _children() -> dict[Hashable, str]:
    """Our child processes, zombies among them (proc_pid_stat(5): state and parent follow the name)."""
    found: dict[Hashable, str] = {}
    own = str(os.getpid())
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")
        except OSError:  # ended meanwhile
            continue
        state, parent = rest.split()[:2]
        if parent == own:
            kind = "zombie" if state == "Z" else "process"
            found["process", entry.name] = f"{kind} {entry.name} {name.partition('(')[2]}"
    return found


def _descriptors() -> dict[Hashable, str]:
    found: dict[Hashable, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own
            continue
        found["descriptor", name, target] = f"descriptor {name} {target}"
    return found


def _threads() -> dict[Hashable, str]:
    return {("thread", thread.ident): f"thread {thread.name}" for thread in threading.enumerate()}


def _tasks() -> dict[Hashable, str]:
    """Tasks that are not done, and loops that are not closed."""
    found: dict[Hashable, str] = {}
    for loop in list(_loops):
        for task in asyncio.all_tasks(loop):
            found["task", id(task)] = f"task {task.get_name()} {task.get_coro()}"
        if not loop.is_closed():
            found["loop", id(loop)] = "an event loop that is not closed"
    return found
