"""Every command that a page tells to type exists, with its options: README, docs, and the texts of the events."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.cli import parser
from gpu_lifecycle.rules.events import EVENTS
from gpu_lifecycle.rules.examples import EXAMPLES, example_config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SEPARATORS = {"&&", "||", "|", ";", "&"}


def typed(text: str) -> Iterator[str]:
    """What a page has in code: each line of a block, and each code word of the text that names a command."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = re.sub(r"\\\n\s*", " ", block).splitlines()
        if language in ("sh", "bash", "console", "shell"):
            yield from lines
        else:  # a picture, or what a command prints
            yield from (line for line in lines if re.match(r"[$#] |(sudo )?(gpu-lifecycle|make) ", line))
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", rest):
        if re.match(r"(gpu-lifecycle|make) ", code):  # in a sentence it may lack its UNIT
            yield f"{code} UNIT" if "required: UNIT" in problem(code.split()) else code


def commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, without comments and the brackets of a synopsis. Others than ours may be any text."""
    if not re.search(r"\b(gpu-lifecycle|make) ", line):
        return
    lexer = shlex.shlex(line.removeprefix("$ ").removeprefix("# "), posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in SEPARATORS:
            yield from _ours(words)
            words = []
        else:
            words.append(word.strip("[]"))


def _ours(words: list[str]) -> Iterator[list[str]]:
    names = [word.rpartition("/")[2] for word in words]
    if words and words[0] in ("sudo", "time", "watch"):
        names, words = names[1:], words[1:]
    if names and names[0] in ("gpu-lifecycle", "make"):
        yield [names[0], *words[1:]]


def problem(words: list[str]) -> str:
    """What is wrong with a command; "" where it would be understood."""
    if words[0] == "make":
        names = [word for word in words[1:] if "=" not in word]
        return "" if set(names) <= TARGETS else f"no such target: {names}"
    top = parser()
    for each in _every(top):
        each.exit_on_error = False
        each.error = _raise  # type: ignore[method-assign, assignment]
    try:
        top.parse_args(words[1:])
    except (argparse.ArgumentError, ValueError) as error:
        return str(error)
    except SystemExit:  # --help, --version
        return ""
    return ""


def _every(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _every(below)


def _raise(message: str) -> None:
    raise ValueError(message)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_tells_to_type_exists(path: Path) -> None:
    found = {" ".join(words): problem(words) for line in typed(path.read_text()) for words in commands(line)}
    assert {line: text for line, text in found.items() if text} == {}


def test_the_readme_has_commands() -> None:
    """Or the test above would find nothing, and pass."""
    found = [words for line in typed(PAGES[0].read_text()) for words in commands(line)]
    assert len(found) > 15
    assert ["make", "demo"] in found
    assert ["gpu-lifecycle", "sweep", "sglang-kimi", "--dry-run"] in found


@pytest.mark.parametrize("word", EVENTS)
def test_what_an_event_tells_to_type_exists(word: str) -> None:
    text = EVENTS[word].text.replace("@GPU_LIFECYCLE_UNIT@", "UNIT")
    found = re.findall(r"(?<!of )\bgpu-lifecycle (?!itself)[a-z]+(?: UNIT| --[a-z-]+)*", text)
    assert [line for line in found if problem(line.split())] == []


@pytest.mark.parametrize("engine", EXAMPLES)
def test_what_an_example_tells_to_type_exists(engine: str) -> None:
    lines = [line.lstrip("# ") for line in example_config(engine).splitlines() if "gpu-lifecycle check" in line]
    assert [problem(words) for line in lines for words in commands(line)] == [""]


@pytest.mark.parametrize(
    "line",
    [
        "gpu-lifecycle swep UNIT", "gpu-lifecycle sweep UNIT --dryrun", "gpu-lifecycle check", "sudo gpu-lifecycle gpus --all",
        "make dmeo", "x && gpu-lifecycle hook start UNIT", "gpu-lifecycle config init --engine vlm",
    ],
)  # fmt: skip
def test_what_does_not_exist_is_found(line: str) -> None:
    assert [problem(words) for words in commands(line)] != [""]
    assert list(commands(line))
