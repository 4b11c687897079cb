"""The man pages: without a flaw in their language, and with all that there is to say."""

from __future__ import annotations

import argparse
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from gpu_lifecycle.cli import parser
from gpu_lifecycle.errors import Exit
from gpu_lifecycle.rules.command_texts import MORE
from gpu_lifecycle.rules.config_keys import KEYS, default_text
from gpu_lifecycle.rules.events import EVENTS
from tools.pages import bash, fish, man, zsh
from tools.pages.commands import Command, read
from tools.pages.mdoc import page, prose, word

FOLDER = Path(__file__).parent.parent / "docs/man"
PAGES = sorted(FOLDER.iterdir())
TOP = read(parser())
COMMANDS = list(TOP.every())
UNKNOWN = re.compile(r"STYLE: referenced manual not found: Xr (\S+) (\d)")


def lint(path: Path) -> list[str]:
    """What mandoc finds, but for our other pages, which it only knows once they are installed."""
    done = subprocess.run(["mandoc", "-Tlint", "-Wall", str(path)], capture_output=True, text=True, timeout=30)
    lines = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 0 or lines
    return [line for line in lines if not _ours(line)]


def _ours(line: str) -> bool:
    match = UNKNOWN.search(line)
    return match is not None and (FOLDER / f"{match[1]}.{match[2]}").exists()


@cache
def rendered(name: str) -> str:
    """A page as a person sees it, its folded lines joined."""
    done = subprocess.run(
        ["mandoc", "-Tascii", "-Owidth=1000", str(FOLDER / name)], capture_output=True, text=True, check=True, timeout=30
    )
    return re.sub(r"[ \t\n]+", " ", re.sub(".\b", "", done.stdout))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_mandoc_has_nothing_to_say(path: Path) -> None:
    assert lint(path) == []


def test_the_linter_would_say_it(tmp_path: Path) -> None:
    path = tmp_path / "x.1"
    path.write_text(PAGES[0].read_text() + ".Xr no-such-page 1\n.Nonsense\n")
    assert len(lint(path)) >= 2


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command.words) or "top")
def test_every_command_and_option_has_its_words(command: Command) -> None:
    text = rendered("-".join(("gpu-lifecycle", *command.words[:1])) + ".1")
    for item in (*command.options, *command.positionals):
        assert item.text, f"{command.words} {item.metavar} has no help"
        for name in item.spellings or item.choices or (item.metavar,):
            assert name in text
        assert " ".join(item.text.split())[1:].rstrip(".") in re.sub("  +", " ", text)
    assert command.more[:60] in text


@pytest.mark.parametrize("status", Exit)
def test_every_exit_status_is_explained(status: Exit) -> None:
    assert f" {status.value} " in rendered("gpu-lifecycle.1").partition("EXIT STATUS")[2]


@pytest.mark.parametrize(("section", "key"), [(section, key) for section, keys in KEYS.items() for key in keys])
def test_every_key_is_explained(section: str, key: str) -> None:
    text = rendered("gpu-lifecycle.toml.5").partition(f"[{section}]: ")[2]
    about = " ".join(KEYS[section][key].meaning.split())
    assert f" {key} {about} " in text
    assert f"Default: {default_text(section, key)}" in text.partition(about)[2]


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_explained(name: str) -> None:
    text = rendered("gpu-lifecycle-events.7")
    assert re.search(rf" {name} \((error|warning|notice|info)\) ", text)
    assert f"MESSAGE_ID={EVENTS[name].id}" in text
    assert "@" not in text


def test_more_is_said_of_commands_that_exist() -> None:
    assert set(MORE) <= {" ".join(command.words) for command in COMMANDS}


def test_help_and_manual_say_the_same() -> None:
    for command in COMMANDS:
        if command.more:
            assert MORE[" ".join(command.words)] == command.more


def test_a_new_command_appears_by_itself(tmp_path: Path) -> None:
    """In every page that names commands, whatever kinds of arguments it has."""
    top = argparse.ArgumentParser(prog="gpu-lifecycle", description="x")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    new = commands.add_parser("brand-new", help="a new one, 100%% so", description="x")
    new.add_argument("--every", type=float, default=2.5, metavar="SECONDS", help="between two looks (%(default)s s)")
    new.add_argument("-c", "--colour", choices=["auto", "never"], help="what's it to be: [this], or that")
    new.add_argument("--no-more", action=argparse.BooleanOptionalAction, help="x")
    new.add_argument("units", nargs="*", metavar="UNIT", help="which")
    tree = read(top)
    made = {name: make() for name, make in man.pages(tree).items()}
    assert "brand-new" in made["gpu-lifecycle.1"]
    page = made["gpu-lifecycle-brand-new.1"]
    assert "100% so" in page
    assert "between two looks (2.5 s)" in page.replace("Between", "between")
    for script in (bash.script(tree), zsh.script(tree), fish.script(tree)):
        assert "brand-new" in script
        assert "colour" in script
    for shell, script in (("bash", bash.script(tree)), ("zsh", zsh.script(tree)), ("fish", fish.script(tree))):
        (tmp_path / shell).write_text(script)
        done = subprocess.run([shell, "-n", str(tmp_path / shell)], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("text", [".Sh NAME", "'br", "a\\fB", "\\", "é \u202e", "x" * 200, 'say "no" .', "- -- .", "Ar"])
def test_no_text_means_anything_to_roff(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.1"
    path.write_text(page("x", 1, "December 2, 2026", "x", [".Sh DESCRIPTION", prose(text), f".Ar {word(text)}"]))
    done = subprocess.run(["mandoc", "-Tutf8", str(path)], capture_output=True, text=True, check=True, timeout=30)
    shown = re.sub(".\b", "", done.stdout).partition("DESCRIPTION")[2]
    assert shown.replace("\n", " ").count(text[:60].replace("\\", "\\").split(" ")[0]) >= 2
    assert subprocess.run(["mandoc", "-Tlint", "-Werror", str(path)], timeout=30).returncode == 0
