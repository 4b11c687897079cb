"""What a start is told of what it looks for in a child: findings, refusals, defects, and that the child was ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.errors import ConfigError, Exit, LifecycleError
from gpu_lifecycle.facts import Layout, Level, UnitName
from gpu_lifecycle.jobs.doubts import UNKNOWN, Doubts
from gpu_lifecycle.jobs.preflight import Preflight
from gpu_lifecycle.rules.config import Config
from gpu_lifecycle.rules.schema import parse_config

UNIT = UnitName("sglang-kimi")
REFUSED = """
import os, resource
os.setgroups([]); os.setgid(61234); os.setuid(61234)  # nobody's: it has this one process
from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs import host, preflight
from gpu_lifecycle.jobs.doubts import Doubts
from gpu_lifecycle.rules.config import Config, Server
config = Config(Server(("sglang", "--model-path", "/")))
resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))  # this one and its child, which can make none
with Doubts(UnitName("kimi"), Layout("/"), config, None) as doubts:
    try:
        print(doubts.found())
    except LifecycleError as error:
        print(int(error.status), error)
"""


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


class Refusing:
    @property
    def server(self) -> Any:
        raise ConfigError("cannot use it", hint="mend it", file="kimi.toml", line=3, key="server.command")


def test_a_refusal_there_keeps_status_place_and_cure(tmp_path: Path) -> None:
    refusing: Any = Refusing()
    with Doubts(UNIT, Layout(str(tmp_path)), refusing, None) as doubts, pytest.raises(LifecycleError) as caught:
        doubts.found()
    assert caught.value.status is Exit.CONFIG
    assert str(caught.value) == "kimi.toml:3: server.command: cannot use it (mend it)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user that has no other process")
def test_a_limit_on_processes_there_is_told_with_its_cure() -> None:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=60, env=env, cwd="/")
    assert done.stdout.startswith("75 cannot make another process: Resource temporarily unavailable "), done.stderr
    assert "TasksMax=" in done.stdout
