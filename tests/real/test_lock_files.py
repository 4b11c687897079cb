"""Lock files as they lie there, and who has them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from gpu_lifecycle.system.build_locks import DEPTH, find
from gpu_lifecycle.system.procfs import Proc


def test_what_is_found(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("a/lock", "a/b/kernel.lock", "a/lock.txt", "a/x.lockfile"):
        (tmp_path / name).write_text("")
    (tmp_path / "a/dir.lock").mkdir()
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "a/linked.lock").symlink_to("lock")
    os.mkfifo(tmp_path / "a/pipe.lock")
    found = find([str(tmp_path), str(tmp_path / "nowhere")], Proc())
    assert sorted(lock.path.removeprefix(f"{tmp_path}/") for lock in found) == ["a/b/kernel.lock", "a/lock"]
    assert all(lock.holders == frozenset() for lock in found)


def test_who_has_it(tmp_path: Path) -> None:
    (tmp_path / "k.lock").write_text("")
    with (tmp_path / "k.lock").open() as file:
        assert find([str(tmp_path)], Proc())[0].holders == {os.getpid()}
        fcntl.flock(file, fcntl.LOCK_EX)
        assert find([str(tmp_path)], Proc())[0].holders == {os.getpid()}
    assert find([str(tmp_path)], Proc())[0].holders == frozenset()


def test_a_lock_whose_holder_cannot_be_looked_at_is_known_from_the_kernels_list(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    lock = tmp_path / "k.lock"
    lock.write_text("")
    info = lock.stat()
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    lines = [f"1: FLOCK  ADVISORY  WRITE 4711 {place} 0 EOF", f"1: -> FLOCK  ADVISORY  WRITE 9 {place} 0 EOF", "torn", "2: x"]
    (tmp_path / "proc/locks").write_text("\n".join(lines))
    assert find([str(lock.parent)], Proc(str(tmp_path / "proc")))[0].holders == {4711}


@pytest.mark.parametrize(("depth", "count"), [(DEPTH, 1), (DEPTH + 1, 0)])
def test_a_deep_tree_is_looked_at_in_part(tmp_path: Path, depth: int, count: int) -> None:
    folder = tmp_path.joinpath(*["d"] * depth)
    folder.mkdir(parents=True)
    (folder / "lock").write_text("")
    assert len(find([str(tmp_path)], Proc())) == count
