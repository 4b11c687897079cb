"""What is kept of a failure, and that keeping it neither takes long nor leads anywhere that it should not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_lifecycle.facts import GpuView, Layout, UnitName
from gpu_lifecycle.jobs.evidence import KEPT, LIMIT, Evidence, Scene
from gpu_lifecycle.rules.nvml import classify
from gpu_lifecycle.system.cgroup import Cgroup
from gpu_lifecycle.system.patience import Patience
from gpu_lifecycle.system.procfs import Proc

UNIT = UnitName("sglang-kimi")


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return Evidence(Layout(str(tmp_path)), UNIT, "0123456789abcdef", Proc())


def keep(evidence: Evidence, scene: Scene) -> Path:
    return Path(evidence.gather(scene)[0])


def scene(why: str = "stalled", pid: int = os.getpid(), output: tuple[str, ...] = (), engine: str = "/bin/true") -> Scene:
    identity = Proc().identity(pid)
    assert identity
    return Scene(why, {pid: identity}, None, [{"probe": "health", "ok": False}], output, engine)


def test_what_is_kept(evidence: Evidence) -> None:
    folder = keep(evidence, scene("stalled\x1b[2J", output=("loading", "--api-key hunter2 \x07", "RuntimeError")))
    document = json.loads((folder / "incident.json").read_text())
    assert document["why"] == "stalled\\x1b[2J"
    assert document["unit"] == UNIT.service
    assert document["processes"][0]["pid"] == os.getpid()
    assert sum(document["processes"][0]["threads"].values()) >= 1
    assert document["probes"] == [{"probe": "health", "ok": False}]
    assert (folder / "output.txt").read_text() == "loading\n--api-key *** \\x07\nRuntimeError"
    assert folder.name.endswith("Z-01234567")
    assert folder.stat().st_mode & 0o777 == 0o750


def test_an_error_of_nvml_is_kept_as_one(evidence: Evidence) -> None:
    view = GpuView((), error=classify("15", "lost"))
    folder = keep(evidence, Scene("gpu lost", {}, view))
    assert "fallen off the bus" in json.loads((folder / "incident.json").read_text())["gpus"][0]["error"]


def test_only_the_newest_are_kept_and_none_is_large(evidence: Evidence) -> None:
    made = [evidence.gather(scene(output=("x" * 900,) * 2000))[0] for _ in range(KEPT + 3)]
    folder = Path(made[-1]).parent
    assert sorted(str(path) for path in folder.iterdir()) == made[3:]
    assert max(path.stat().st_size for path in folder.rglob("*.txt")) <= LIMIT


@pytest.mark.parametrize("plant", [lambda path: path.symlink_to("/tmp"), lambda path: path.write_text(""), os.mkfifo])
def test_what_lies_in_the_way_is_not_followed(evidence: Evidence, tmp_path: Path, plant: Callable[[Path], object]) -> None:
    folder = tmp_path / "var/lib/gpu-lifecycle/sglang-kimi"
    folder.mkdir(parents=True)
    plant(folder / "incidents")
    with pytest.raises(OSError, match=r"incidents|link|directory"):
        evidence.gather(scene())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_root_writes_into_nobodys_folder(evidence: Evidence, tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/gpu-lifecycle/sglang-kimi/incidents"
    folder.mkdir(parents=True)
    os.chown(folder, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to another user"):
        evidence.gather(scene())
    assert list(folder.iterdir()) == []


STACKS = """#!/bin/sh
echo "Thread 0x1 (active): process $4"; echo "    forward (model.py:1)"
"""


def test_stacks_come_from_the_tool_beside_the_engine(evidence: Evidence, tmp_path: Path) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text(STACKS)
    tool.chmod(0o755)
    folder = keep(evidence, scene(engine=str(tmp_path / "python")))
    assert f"process {os.getpid()}" in (folder / "stacks.txt").read_text()
    assert "forward (model.py:1)" in (folder / "stacks.txt").read_text()


def test_no_key_is_kept(evidence: Evidence, tmp_path: Path) -> None:
    """py-spy heads its stacks with the command line; an answer of the engine may repeat what it was asked with."""
    evidence.secrets.add("s3cret")
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\necho 'Process 7: engine --api-key hunter2 --port 1'; echo 'it is s3cret'\n")
    tool.chmod(0o755)
    rows = [{"probe": "token", "text": "status 401: s3cret"}]
    identity = Proc().identity(os.getpid())
    assert identity
    folder = keep(evidence, Scene("s3cret", {os.getpid(): identity}, None, rows, ("x s3cret",), str(tmp_path / "python")))
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert sorted(texts) == ["incident.json", "output.txt", "stacks.txt"]
    assert not [name for name, text in texts.items() if "s3cret" in text or "hunter2" in text or "***" not in text]
    assert "engine --api-key *** --port 1\nit is ***" in texts["stacks.txt"]


def test_a_tool_that_hangs_takes_its_time_and_no_more(evidence: Evidence, tmp_path: Path) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    began = time.monotonic()
    folder = keep(evidence, scene(engine=str(tmp_path / "python")))
    assert time.monotonic() - began < 20
    assert "timed out" in (folder / "stacks.txt").read_text()


def test_a_look_that_hangs_is_left_behind(evidence: Evidence, tmp_path: Path) -> None:
    """A file system that hangs, in place of which a pipe holds up whoever writes: the failure is told without evidence."""
    evidence.patience = Patience(0.1)
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\nexec sleep 2\n")
    tool.chmod(0o755)
    with pytest.raises(TimeoutError):
        evidence.gather(scene(engine=str(tmp_path / "python")))
    deadline = time.monotonic() + 30
    while evidence.patience.blocked(os.getpid()) and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("text", "kills"),
    [
        ("low 0\nhigh 0\nmax 4\noom 2\noom_kill 3\noom_group_kill 0\n", 3),
        ("low 0\n", None),
        ("oom_kill x\n", None),
        ("oom", None),
    ],
)
def test_processes_that_the_kernel_ended_for_memory(tmp_path: Path, text: str, kills: int | None) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/memory.events").write_text(text)
    assert Cgroup("/a", str(tmp_path)).oom_kills() == kills
    assert Cgroup("/b", str(tmp_path)).oom_kills() is None


def test_a_process_that_is_gone_is_kept_as_gone(evidence: Evidence) -> None:
    done = subprocess.Popen([sys.executable, "-c", "pass"])
    gone = scene(pid=done.pid)
    done.wait()
    document = json.loads((keep(evidence, gone) / "incident.json").read_text())
    assert document["processes"] == [{"pid": done.pid, "title": "", "state": "", "threads": {}}]
