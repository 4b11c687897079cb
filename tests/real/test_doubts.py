"""What a start is told of what it looks for in a child: findings, refusals, defects, and that the child was ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.facts import Layout, Level, UnitName
from gpu_lifecycle.jobs.doubts import UNKNOWN, Doubts
from gpu_lifecycle.jobs.preflight import Preflight
from gpu_lifecycle.rules.config import Config
from gpu_lifecycle.rules.schema import parse_config

UNIT = UnitName("sglang-kimi")


def config(model: str) -> Config:
    command = f'["/opt/python", "-m", "sglang.launch_server", "--model-path", "{model}"]'
    return parse_config(f'[server]\nengine = "sglang"\ncommand = {command}\n', "kimi.toml")


def children() -> list[int]:
    return [int(word) for path in Path("/proc/self/task").glob("*/children") for word in path.read_text().split()]


def test_it_finds_what_a_look_in_this_process_finds(tmp_path: Path) -> None:
    doomed = config(str(tmp_path / "gone"))
    reading = Preflight(doomed, UNIT.service, os.environ)
    try:
        here = reading.findings()
    finally:
        reading.close()
    with Doubts(UNIT, Layout(str(tmp_path)), doomed, None) as doubts:
        found = doubts.found()
    assert here
    assert found[: len(here)] == list(here)
    assert children() == []


def test_a_child_that_was_ended_leaves_it_open(tmp_path: Path) -> None:
    with Doubts(UNIT, Layout(str(tmp_path)), config(str(tmp_path)), None) as doubts:
        (child,) = children()
        os.kill(child, signal.SIGKILL)
        (finding,) = doubts.found()
    assert (finding.level, finding.message) == (Level.WARN, UNKNOWN)
    assert children() == []


def test_a_defect_there_is_one_here(tmp_path: Path) -> None:
    nothing: Any = None
    with Doubts(UNIT, Layout(str(tmp_path)), nothing, None) as doubts, pytest.raises(RuntimeError, match="AttributeError"):
        doubts.found()
