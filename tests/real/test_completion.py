"""Completion in real shells: what the Tab key of bash and zsh inserts, and what fish answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.cli import parser
from gpu_lifecycle.rules.command_texts import ENGINE_NAMES
from tests.tab import ask
from tools.pages.commands import Command, read

FOLDER = Path(__file__).parents[2] / "completions"
UNITS = ["a:b", "gpu-lifecycle@first", "llama", "sglang-kimi"]
PLACE = "/etc/gpu-lifecycle"
TOP = read(parser())
LOADED = {
    "bash": ("gpu-lifecycle.bash", "source {folder}/gpu-lifecycle.bash"),
    "zsh": ("_gpu-lifecycle", "fpath=({folder} $fpath); autoload -Uz _gpu-lifecycle; compdef _gpu-lifecycle gpu-lifecycle"),
    "fish": ("gpu-lifecycle.fish", "source {folder}/gpu-lifecycle.fish"),
}

# A line as it stands when Tab is pressed, and what is offered.
CASES: dict[str, list[str]] = {
    "sw": ["sweep"],
    "-": ["-h", "--help", "--version"],
    "sweep ": UNITS,
    "sweep s": ["sglang-kimi"],
    "sweep gpu-lifecycle@f": ["gpu-lifecycle@first"],
    "sweep gpu-lifecycle@": ["gpu-lifecycle@first"],
    "sweep a:": ["a:b"],
    "sweep --dry-run l": ["llama"],
    "sweep sglang-kimi --d": ["--dry-run"],
    "--version sweep s": ["sglang-kimi"],
    "gpus --release ": UNITS,
    "gpus --release=s": ["--release=sglang-kimi"],
    "gpus --release --w": ["--watch"],
    "gpus --json --w": ["--watch"],
    "hook ": ["post-stop", "pre-start", "reload"],
    "hook pre": ["pre-start"],
    "hook pre-start s": ["sglang-kimi"],
    "install --root {home}/fold": ["{home}/folder"],
    "install --root {home} l": ["llama"],
    "config ": ["init", "show"],
    "config show ": UNITS,
    "config init --engine ": sorted(ENGINE_NAMES),
    "config init --engine=vl": ["--engine=vllm"],
    "config init --engine vllm s": ["sglang-kimi"],
    "config init --output {home}/fil": ["{home}/file"],
    "demo x": [],
    "no-such-command ": [],
}


def tried(name: str, home: Path, lines: list[str], units: list[str]) -> Iterator[list[str]]:
    """What a shell offers for the rest of each line, with these units configured; the file is ours but for their folder."""
    (home / "units").mkdir()
    for unit in units:
        (home / f"units/{unit}.toml").touch()
    (home / "units/not-a-config.txt").touch()
    file, load = LOADED[name]
    text = (FOLDER / file).read_text()
    assert PLACE in text
    (home / file).write_text(text.replace(PLACE, f"{home}/units"))
    offered = ask(name, [f"gpu-lifecycle {line}" for line in lines], load.format(folder=home), str(home))
    for found in offered:
        yield sorted({item.rstrip("/=") for item in found})  # what invites to go on is each shell's own


@pytest.mark.parametrize("shell", LOADED)
def test_what_tab_offers(shell: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    lines = [line.format(home=tmp_path) for line in CASES]
    found = dict(zip(CASES, tried(shell, tmp_path, lines, UNITS), strict=True))
    assert found == {line: sorted(item.format(home=tmp_path) for item in offered) for line, offered in CASES.items()}


@pytest.mark.parametrize("shell", LOADED)
def test_every_command_and_option_is_offered(shell: str, tmp_path: Path) -> None:
    """Of the options the long ones: what a shell does with one that is alone is its own matter."""
    expected = {f"{_words(command)}--": _long(command) for command in TOP.every()}
    expected |= {_words(command): [item.words[-1] for item in command.commands] for command in TOP.every() if command.commands}
    found = dict(zip(expected, tried(shell, tmp_path, list(expected), []), strict=True))
    assert found == {line: sorted(offered) for line, offered in expected.items()}


@pytest.mark.parametrize("shell", LOADED)
def test_without_a_config_no_unit_is_offered(shell: str, tmp_path: Path) -> None:
    assert list(tried(shell, tmp_path, ["sweep s", "status "], [])) == [[], []]


@pytest.mark.parametrize("name", [file for file, _ in LOADED.values()])
def test_no_hidden_option_is_in_it(name: str) -> None:
    assert "self-test" not in (FOLDER / name).read_text()


def _words(command: Command) -> str:
    return "".join(f"{word} " for word in command.words)


def _long(command: Command) -> list[str]:
    return [name for option in command.options for name in option.spellings if name.startswith("--")]
