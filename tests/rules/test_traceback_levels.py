"""All lines of a traceback are errors, whoever speaks in between; and nothing else becomes one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.output import TRACE_LINES, Levels

# Each line with the level it has to get: "e" error, "." none, else the number of its own.
PLAIN = """
. before
e Traceback (most recent call last):
e   File "a.py", line 1, in <module>
e     f()
e     ^^^
e ValueError: no such model
. after
.   indented, and nobody's
"""
CHAINED = """
e [2026-12-02 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):
e   File "a.py", line 1, in <module>
e KeyError: 'x'
e
e During handling of the above exception, another exception occurred:
e
e Traceback (most recent call last):
e   File "a.py", line 3, in <module>
e RuntimeError: y
. [2026-12-02 10:00:01] Received sigquit from a child process.
"""
SPOKEN_BETWEEN = """
e (Worker pid=7) Traceback (most recent call last):
6 INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK
e (Worker pid=7)   File "a.py", line 1, in <module>
. (Worker pid=8) loads its weights
e loading shards:  43% Completed
e   File "b.py", line 2, in g
e     h()
e (Worker pid=7) RuntimeError: z
. (Worker pid=7) goes on
"""
WITH_LEVELS = """
e (EngineCore pid=7) ERROR 12-02 10:00:00 [core.py:1] Traceback (most recent call last):
3 (EngineCore pid=7) ERROR 12-02 10:00:00 [core.py:1]   File "a.py", line 1, in f
3 (EngineCore pid=7) ERROR 12-02 10:00:00 [core.py:1] ValueError: x
6 (EngineCore pid=7) INFO 12-02 10:00:00 [core.py:1] y
"""
GROUP = """
e   + Exception Group Traceback (most recent call last):
e   |   File "a.py", line 1, in <module>
e   | ExceptionGroup: two (2 sub-exceptions)
e   +-+---------------- 1 ----------------
e     | ValueError: a
e     +------------------------------------
. after, and not indented
"""
NATIVE = """
e Traceback (most recent call last):
e   File "a.py", line 1, in <module>
e torch.AcceleratorError: CUDA error: an illegal memory access was encountered
e Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 (most recent call first):
e frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f in libc10.so)
e frame #1: clone + 0x40 (0x7f in /lib/libc.so.6)
. next
"""
FATAL = """
e Fatal Python error: Segmentation fault
e
e Current thread 0x00007f0000000000 (most recent call first):
e   File "a.py", line 1 in f
e
e Thread 0x00007f0000000001 (most recent call first):
e   File "b.py", line 1 in g
e Extension modules: numpy (total: 1)
. next
"""
STORIES = {
    "plain": PLAIN, "chained": CHAINED, "spoken between": SPOKEN_BETWEEN, "with levels": WITH_LEVELS, "group": GROUP,
    "native frames": NATIVE, "faulthandler": FATAL,
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_a_story(name: str) -> None:
    levels = Levels()
    for row in STORIES[name].strip("\n").splitlines():
        mark, line = row[:1], row[2:]
        wanted = {"e": 3, ".": None}.get(mark, int(mark) if mark.isdigit() else None)
        assert levels.of(line.encode())[0] == wanted, row


@pytest.mark.parametrize("name", STORIES)
def test_a_story_of_which_another_reader_takes_each_line(name: str) -> None:
    """As in a reload, which hands over by JSON where each stream is."""
    one, other = Levels(), Levels()
    for row in STORIES[name].strip("\n").splitlines():
        speaker, left, over = json.loads(json.dumps(other.inside))
        other = Levels((speaker, left, over))
        assert other.of(row[2:].encode()) == one.of(row[2:].encode()), row


def test_a_traceback_as_this_python_writes_it() -> None:
    code = "try:\n    {}['x']\nexcept KeyError as e:\n    raise OSError(1) from e"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stderr
    levels = Levels()
    lines = said.splitlines()
    assert len(lines) > 6
    assert {levels.of(line)[0] for line in lines} == {3}
    assert levels.of(b"the next thing")[0] is None


def test_one_that_never_ends_is_none() -> None:
    levels = Levels()
    levels.of(b"Traceback (most recent call last):")
    said = [levels.of(b"  more")[0] for _ in range(TRACE_LINES + 5)]
    assert said == [3] * TRACE_LINES + [None] * 5


@given(st.lists(st.binary(max_size=60)))
def test_without_a_traceback_nothing_changes(lines: list[bytes]) -> None:
    levels = Levels()
    for line in lines:
        if b"most recent call" not in line and b"Fatal" not in line:
            assert levels.of(line)[0] == Levels().of(line)[0]
