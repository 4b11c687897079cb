"""``config init`` and ``config show``, by the command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_lifecycle.errors import ConfigError, LifecycleError, NotPermittedError, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs import config_file
from gpu_lifecycle.jobs.settings import parse
from gpu_lifecycle.rules.examples import EXAMPLES, example_config

KIMI = UnitName("kimi")
ROOT = Path(__file__).parents[2]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "gpu_lifecycle", *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("engine", EXAMPLES)
def test_init_writes_a_config_that_loads(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "kimi.toml"
    done = command("config", "init", "--engine", engine, "--output", str(path), "kimi.service")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wrote {path}\n", "")
    assert path.read_text() == example_config(engine, "kimi")
    assert parse(path.read_text(), str(path)).server.engine == engine
    assert os.listdir(tmp_path) == ["kimi.toml"]


def test_init_prints_without_an_output_file() -> None:
    done = command("config", "init")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (ROOT / "config/sglang-kimi.toml").read_text()


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_init_never_overwrites(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "kimi.toml", tmp_path / "other"
    other.write_text("mine")
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(other)
    else:
        path.write_text("mine")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(UsageError, match="it is there already") as caught:
        config_file.init(KIMI, "sglang", str(path))
    assert "move it away" in caught.value.hint
    assert sorted(os.listdir(tmp_path)) == before
    assert other.read_text() == "mine"
    assert kind != "file" or path.read_text() == "mine"


def test_a_link_to_nothing_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "kimi.toml"
    path.symlink_to(tmp_path / "other")
    with pytest.raises(UsageError):
        config_file.init(KIMI, "sglang", str(path))
    assert os.listdir(tmp_path) == ["kimi.toml"]


@pytest.mark.parametrize(("place", "error"), [("none/kimi.toml", LifecycleError), ("/proc/kimi.toml", LifecycleError)])
def test_init_says_what_is_in_the_way(tmp_path: Path, place: str, error: type[LifecycleError]) -> None:
    with pytest.raises(error, match=r"cannot write .*kimi\.toml: ") as caught:
        config_file.init(KIMI, "sglang", str(tmp_path / place))
    assert caught.value.hint


def test_init_without_leave_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    before = os.geteuid()
    os.seteuid(before or 65534)  # root may write everywhere
    try:
        with pytest.raises(NotPermittedError, match="Permission denied") as caught:
            config_file.init(KIMI, "sglang", str(tmp_path / "kimi.toml"))
    finally:
        os.seteuid(before)
        tmp_path.chmod(0o755)
    assert "sudo" in caught.value.hint
    assert os.listdir(tmp_path) == []


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "etc/gpu-lifecycle").mkdir(parents=True)
    return Layout(str(tmp_path))


@pytest.mark.parametrize("engine", [name for name, example in EXAMPLES.items() if not example.environment])
def test_show_is_a_config_of_the_same_values(layout: Layout, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = example_config(engine)
    Path(layout.config(KIMI)).write_text(text)
    assert config_file.show(KIMI, layout, as_json=False) == 0
    shown = capsys.readouterr().out
    before, after = parse(text, "a"), parse(shown, "b")
    assert (after.gpus, after.sweep, after.ready, after.watch, after.stop) == (
        before.gpus, before.sweep, before.ready, before.watch, before.stop,
    )  # fmt: skip
    assert after.server.command == before.server.command
    assert after.server.tensor_parallel() == before.server.tensor_parallel()
    assert after.server.endpoint().url() == before.server.endpoint().url()
    assert f"# {layout.config(KIMI)}:" in shown


def test_show_as_json(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    Path(layout.config(KIMI)).write_text('[server]\ncommand = ["/x", "--tp", "2"]\nenvironment = { T = "hunter2" }\n')
    config_file.show(KIMI, layout, as_json=True)
    out = capsys.readouterr().out
    assert "hunter2" not in out
    document = json.loads(out)
    file = layout.config(KIMI)
    assert {key: document[key] for key in ("schema", "unit", "file")} == {"schema": 1, "unit": "kimi.service", "file": file}
    rows = {row["key"]: row for row in document["values"]}
    assert rows["server.tp"] == {
        "key": "server.tp", "value": 2, "hidden": False, "source": "command", "file": file, "line": 2, "note": "--tp",
    }  # fmt: skip
    assert rows["server.environment.T"]["hidden"] is True
    assert rows["stop.drain"]["value"] == 120.0
    assert (rows["stop.drain"]["file"], rows["stop.drain"]["line"]) == (None, None)


def test_hostile_values_are_shown_harmlessly(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    Path(layout.config(KIMI)).write_text(r"""
[server]
command = ["/x", "\u001b[2J", "a\nb"]
model = "\u202e\u001b]0;x\u0007"
[server.environment]
"_\u0041" = "x"
""")
    for as_json in (False, True):
        config_file.show(KIMI, layout, as_json=as_json)
        out = capsys.readouterr().out
        assert out.replace("\n", "").isprintable()


def test_show_says_what_is_wrong(layout: Layout) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        config_file.show(KIMI, layout, as_json=False)
