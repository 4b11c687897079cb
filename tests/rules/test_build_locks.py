"""Which lock of a build may hold a load up, and which is none of our business."""

from __future__ import annotations

import pytest

from gpu_lifecycle.rules.build_locks import BuildLock, places, suspects

BATON = "/c/torch_extensions/x/lock"
FILE = "/c/triton/k.lock"


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        (BuildLock(BATON, 100), "/lock was left 1h ago by a build that is dead; to go on: rm /c/torch_extensions/x/lock"),
        (BuildLock(BATON, 1001), ""),
        (BuildLock(BATON, 100, frozenset({7})), ""),
        (BuildLock(BATON, 100, frozenset({9})), "is held by process 9, which is not part of this run; look: ps -fp 9"),
        (BuildLock(FILE, 100), ""),
        (BuildLock(FILE, 100, frozenset({7})), ""),
        (BuildLock(FILE, 5000, frozenset({7, 9})), "/c/triton/k.lock is held by process 9"),
        (BuildLock("/c/a\nb/lock", 100), "/c/a\\x0ab/lock was left"),
    ],
)
def test_a_suspect(lock: BuildLock, words: str) -> None:
    said = suspects([lock], 1000, {7, 8}, 3700)
    assert (words in said) if words else said == ""


def test_many_are_counted() -> None:
    said = suspects([BuildLock(f"/c/{n}/lock", 1) for n in range(5)], 1000, (), 2000)
    assert said.count("was left") == 3
    assert said.endswith("; and 2 more")


@pytest.mark.parametrize(
    ("environment", "first", "count"),
    [
        ({}, None, 0),
        ({"HOME": "/h"}, "/h/.cache/torch_extensions", 6),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/torch_extensions", 6),
        ({"TORCH_EXTENSIONS_DIR": "/t"}, "/t", 1),
        ({"TORCH_EXTENSIONS_DIR": "relative"}, None, 0),
        ({"HOME": "/h", "TORCHINDUCTOR_CACHE_DIR": "/i"}, "/h/.cache/torch_extensions", 7),
    ],
)
def test_places(environment: dict[str, str], first: str | None, count: int) -> None:
    found = places(environment)
    assert (found[0] if found else None, len(found)) == (first, count)
