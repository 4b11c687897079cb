"""The house rules, checked on every run: linters, types, layers, sizes, names, and what text may not say."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gpu_lifecycle"
FILE_LINES = 400
FUNCTION_LINES = 60
FUNCTION_MEDIAN = 10

# Names that say nothing about what is in a file, and so draw in everything.
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

# Calls that would make a rule depend on more than its arguments, and need no import.
IMPURE = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__"}

# Hosts and folders that only say where something was written. Put together here, so as not to be found here.
HOSTS = ["py" + "pi.org", "python" + "hosted.org", "deb.debian" + ".org", "registry.npm" + "js.org", "local" + "host:3141"]
SAMPLE_USERS = {"alice", "bob", "carol", "me", "user", "NAME"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file with its number of lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}: {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def tracked() -> list[Path]:
    """The files that belong to the project: git's, those not yet added among them."""
    words = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive, or no git
        return [path for path in ROOT.rglob("*") if path.is_file() and not _ignored(path)]
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


@pytest.mark.parametrize(
    "command", [["ruff", "check", "--quiet"], ["mypy"], ["lint-imports"]], ids=lambda words: str(words[0])
)
def test_linter(command: list[str]) -> None:
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([str(program), *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_fit_in_the_head() -> None:
    assert {str(path): n for path in modules() if (n := len(path.read_text().splitlines())) >= FILE_LINES} == {}


def test_functions_fit_on_a_screen() -> None:
    sizes = dict(item for path in modules() for item in functions(path))
    assert {name: n for name, n in sizes.items() if n >= FUNCTION_LINES} == {}
    assert statistics.median(sizes.values()) < FUNCTION_MEDIAN


def test_names_say_what_is_inside() -> None:
    assert [str(path) for path in tracked() if path.suffix == ".py" and path.stem in EMPTY_NAMES] == []


def test_rules_call_nothing_outside() -> None:
    calls = [
        f"{path.name}:{node.lineno} {node.func.id}()"
        for path in (PACKAGE / "rules").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE
    ]
    assert calls == []


def test_text_does_not_say_where_it_was_written() -> None:
    found = [f"{path.relative_to(ROOT)}: {word}" for path in tracked() for word in _places(path)]
    assert found == []


def _places(path: Path) -> list[str]:
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return []
    homes = [name for name in re.findall(r"/home/(\w+)", text) if name not in SAMPLE_USERS]
    # A checkout in /opt or /usr/src lies where the text may speak of for other reasons.
    here = [str(ROOT)] if f"{ROOT}/" in text and not str(ROOT).startswith(("/opt", "/usr")) else []
    return [*(f"/home/{name}" for name in homes), *here, *(host for host in HOSTS if host in text)]


def _ignored(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts[:-1])


def test_test_files_have_names_of_their_own() -> None:
    """Without packages, pytest cannot tell two test files of one name apart, and then runs none at all."""
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(set(names)) == names
