"""The engine's program on a disk that answers, and on one that does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpu_lifecycle.system.program import State, look_at


def made(path: Path, text: str, mode: int) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    assert look_at(sys.executable, 10) is State.THERE
    assert look_at(made(tmp_path / "script", "#!/bin/sh\n", 0o755), 10) is State.THERE
    assert look_at(made(tmp_path / "odd", "#!\n", 0o755), 10) is State.THERE  # execve says what it makes of it
    assert look_at(made(tmp_path / "lost", "#!/no/such\n", 0o755), 10) is State.THERE
    assert look_at(made(tmp_path / "data", "", 0o644), 10) is State.NO_PROGRAM
    assert look_at(str(tmp_path), 10) is State.NO_PROGRAM
    assert look_at(str(tmp_path / "none"), 10) is State.MISSING
    assert look_at(str(tmp_path / "data" / "below"), 10) is State.MISSING


def test_what_may_not_be_looked_at_is_not_called_missing(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert look_at(str(loop), 10) is State.UNSEEN


HUNG = """
import os, sys, time
from gpu_lifecycle.system.program import look_at
began = time.monotonic()
print(*(look_at(path, 0.5) for path in sys.argv[2:]), time.monotonic() - began < 5, flush=True)
os.kill(int(sys.argv[1]), 9)
"""


def test_a_disk_that_hangs_is_waited_for_so_long(tmp_path: Path) -> None:
    """The program itself lies there, or its interpreter."""
    (tmp_path / "far").mkdir()
    script = made(tmp_path / "script", f"#!{tmp_path}/far/python\n", 0o755)
    start = '"$1" "$2" serve "$3" & server=$!; sleep 1; exec timeout -s KILL 60 "$1" -c "$4" $server "$3/engine" "$5"'
    fuse = Path(__file__).parents[1] / "standins/stuck_fuse.py"
    words = [sys.executable, str(fuse), str(tmp_path / "far"), HUNG, script]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", start, "sh", *words], capture_output=True, text=True, check=False, timeout=90
    )
    if "PermissionError" in done.stderr or "No such file" in done.stderr or "unshare" in done.stderr:
        pytest.skip("this machine allows no FUSE mounts in a user namespace")
    assert done.stdout == "silent silent True\n", done.stderr
