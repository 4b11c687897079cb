"""Incident folders: a writer that is killed at any step, or finds the disk full, is in nobody's way afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.system.files import write_evidence
from tests.killed import killed_after

FILES = {"incident.json": b"{}", "output.txt": b"x" * 5000}
KEPT = 3


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_writer_that_is_killed_at_any_step(tmp_path: Path) -> None:
    folder = tmp_path / "incidents"
    step, through = 1, False
    while not through:
        shutil.rmtree(folder, ignore_errors=True)
        for number in range(KEPT):
            write_evidence(str(folder), f"{number}", FILES, KEPT)
        through = killed_after(step, lambda: write_evidence(str(folder), "5", FILES, KEPT))
        write_evidence(str(folder), "7", FILES, KEPT)
        assert len(names(folder)) == KEPT, step
        assert names(folder / "7") == sorted(FILES)
        assert all((folder / "7" / name).read_bytes() == data for name, data in FILES.items())
        step += 1
    assert step > 20
    assert names(folder) == ["2", "5", "7"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("left", [0, 4096, 8192, 12288])
def test_a_full_disk_leaves_no_half_file_and_the_next_one_is_whole(small: Path, left: int) -> None:
    folder = small / "incidents"
    write_evidence(str(folder), "1", FILES, KEPT)
    space = os.statvfs(small)
    filler = small / "filler"
    filler.write_bytes(b"x" * max(0, space.f_bavail * space.f_frsize - left))
    failed = False
    try:
        write_evidence(str(folder), "2", FILES, KEPT)
    except OSError:
        failed = True
    assert failed == (left < 12288)
    assert all(path.read_bytes() == FILES[path.name] for path in folder.glob("2/*"))
    filler.unlink()
    write_evidence(str(folder), "3", FILES, KEPT)
    assert names(folder / "3") == sorted(FILES)
