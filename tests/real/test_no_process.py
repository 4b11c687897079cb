"""Under a real limit on processes: what could not be looked at for want of one is said so, and is not called slow or wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMITED = """
import os, resource, sys
if os.geteuid() == 0:  # root has no such limit
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
def no_more():
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
"""
SEEN = LIMITED + """
from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.jobs.preflight import Preflight
from gpu_lifecycle.rules.config import Config, Server
from gpu_lifecycle.system import engine, host, hub, model, program, shortage, worker
looks = {
    "program": lambda: program.look_at(sys.executable, 5),
    "folders": lambda: host.look_as("", (), 5, host.Ask((("/", "", 0),))),
    "models": lambda: model.read_folders(["/"], "", 5),
    "text": lambda: model.read_text("/etc/passwd", 5),
    "names": lambda: hub.snapshots(["a/b"], "/", "", 5),
    "preflight": lambda: Preflight(Config(Server(("sglang", "--model-path", "/"))), "x.service", {}),
    "engine": lambda: engine.start((sys.executable, "-c", ""), {}, "x.toml"),
}
no_more()
for name, look in looks.items():
    try:
        print(name, "found", look())
    except LifecycleError as error:
        print(name, error.status.value, error)
"""
COMMAND = LIMITED + """
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs import check, host, keys, preflight, run
from gpu_lifecycle.system import as_user, program, shortage
unit, layout = UnitName("kimi"), Layout(sys.argv[2])
no_more()
sys.exit(run.serve(unit, layout) if sys.argv[1] == "serve" else check.check(unit, layout, as_json=False))
"""
SHORT = "cannot make another process: Resource temporarily unavailable (a limit on processes is reached: TasksMax= "


@pytest.fixture
def root() -> Iterator[str]:
    """A machine's root that everybody may read, with one config."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "etc/gpu-lifecycle").mkdir(parents=True)
    (folder / "etc/gpu-lifecycle/kimi.toml").write_text(
        '[server]\ncommand = ["/bin/sh", "-c", "sleep 9"]\nengine = "custom"\nurl = "http://127.0.0.1:1"\n'
        '[ready]\nmin_used = "1GiB"\ngenerate = false\n'
    )
    yield str(folder)
    shutil.rmtree(folder)


def limited(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60, env=env, cwd="/")


def test_every_look_says_that_it_could_not_begin() -> None:
    done = limited(SEEN)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "program", "folders", "models", "text", "names", "preflight", "engine",
    ], done.stderr  # fmt: skip
    assert [line for line in lines if f" 75 {SHORT}" not in line] == []


def test_a_start_is_refused_for_now(root: str) -> None:
    done = limited(COMMAND, "serve", root)
    assert (done.returncode, SHORT in done.stderr + done.stdout) == (75, True), done.stderr
    assert "was not read within" not in done.stderr + done.stdout


def test_check_says_so_and_goes_on(root: str) -> None:
    done = limited(COMMAND, "check", root)
    assert f"error: {SHORT}" in done.stdout, done.stderr
    assert "not read within" not in done.stdout
    assert "no answer within" not in done.stdout
    assert done.stdout.endswith("a start would be refused\n")
