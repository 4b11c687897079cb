"""Reading a config runs nobody's plugin, and leaves the interpreter and its environment as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.settings import load

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps what it has read")

READ = """
import json, os, sys
sys.path[:0] = [sys.argv[1], os.getcwd()]
before = dict(os.environ)
from gpu_lifecycle.jobs.settings import parse
if sys.argv[2] == "late":
    import importlib.metadata
config = parse('[server]\\nengine = "custom"\\ncommand = ["/bin/true", "--port", "1"]\\n', "x")
loaded = "importlib.metadata" in sys.modules
import importlib.metadata
print(json.dumps([config.server.engine, "tattle" in sys.modules, loaded, os.environ == before,
                  importlib.metadata.version("pydantic") > "2"]))
"""


@pytest.mark.parametrize(("when", "loaded"), [("early", False), ("late", True)])
def test_a_plugin_of_another_package_is_not_run(tmp_path: Path, when: str, loaded: bool) -> None:
    (tmp_path / "tattle.py").write_text("plugin = object()\n")
    (tmp_path / "tattle-1.dist-info").mkdir()
    (tmp_path / "tattle-1.dist-info/METADATA").write_text("Name: tattle\nVersion: 1\n")
    (tmp_path / "tattle-1.dist-info/entry_points.txt").write_text("[pydantic]\ntattle = tattle:plugin\n")
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", READ, str(tmp_path), when], cwd=root, capture_output=True, text=True)
    assert json.loads(done.stdout) == ["custom", False, loaded, True, True], done.stderr


UNIT = UnitName("sglang-kimi")
TEXT = '[server]\nengine = "custom"\ncommand = ["/bin/true", "--port", "1"]\n[stop]\ndrain = "7s"\n'


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(str(tmp_path))
    Path(layout.config_dir).mkdir(parents=True)
    Path(layout.run_dir).mkdir(parents=True)
    Path(layout.config(UNIT)).write_text(TEXT)
    return layout


def kept(layout: Layout) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(layout.kept_config(UNIT)).read_text())
    return document


def move_and_link(layout: Layout) -> None:
    Path(layout.kept_config(UNIT)).rename(layout.run_dir + "/x")
    Path(layout.kept_config(UNIT)).symlink_to(layout.run_dir + "/x")


@needs_root
def test_a_config_is_read_once(layout: Layout) -> None:
    """The second reader takes what the first one kept, which a changed value there gives away."""
    Path(layout.config(UNIT)).chmod(0o640)
    os.chown(layout.config(UNIT), 0, 7)
    first, _ = load(layout, UNIT)
    document = kept(layout)
    info = os.stat(layout.kept_config(UNIT))
    assert (info.st_uid, info.st_gid, info.st_mode & 0o777) == (0, 7, 0o640), "as readable as the config, and no more"
    document["config"]["stop"]["drain"] = 8.0
    Path(layout.kept_config(UNIT)).write_text(json.dumps(document))
    assert (first.stop.drain, load(layout, UNIT)[0].stop.drain) == (7.0, 8.0)


@needs_root
@pytest.mark.parametrize(
    "spoil",
    [
        lambda layout: Path(layout.config(UNIT)).write_text(TEXT + "\n"),
        lambda layout: os.chown(layout.kept_config(UNIT), 65534, 65534),
        lambda layout: Path(layout.kept_config(UNIT)).write_text("{"),
        lambda layout: Path(layout.kept_config(UNIT)).write_text(json.dumps(kept(layout) | {"config": {"stop": 1}})),
        lambda layout: Path(layout.kept_config(UNIT)).write_text(json.dumps(kept(layout) | {"code": ["0.0.1"]})),
        move_and_link,
    ],
    ids=["another text", "another's file", "torn", "another shape", "another code", "a link"],
)
def test_what_was_kept_counts_only_where_it_fits(layout: Layout, spoil: Callable[[Layout], object]) -> None:
    load(layout, UNIT)
    document = kept(layout)
    document["config"]["stop"]["drain"] = 8.0
    Path(layout.kept_config(UNIT)).write_text(json.dumps(document))
    spoil(layout)
    assert load(layout, UNIT)[0].stop.drain == 7.0


def test_a_wrong_config_is_not_kept(layout: Layout) -> None:
    Path(layout.config(UNIT)).write_text(TEXT + "[stopp]\n")
    with pytest.raises(ConfigError):
        load(layout, UNIT)
    assert not Path(layout.kept_config(UNIT)).exists()


@needs_root
def test_the_second_reader_imports_no_schema(layout: Layout) -> None:
    load(layout, UNIT)
    code = (
        "import sys; from gpu_lifecycle.facts import Layout, UnitName; from gpu_lifecycle.jobs.settings import load\n"
        "print(load(Layout(sys.argv[1]), UnitName('sglang-kimi'))[0].stop.drain, 'pydantic' in sys.modules)"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code, layout.root], cwd=root, capture_output=True, text=True)
    assert done.stdout == "7.0 False\n", done.stderr
