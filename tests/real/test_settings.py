"""Reading a config runs nobody's plugin, and leaves the interpreter and its environment as they were."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
