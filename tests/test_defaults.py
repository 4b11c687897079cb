"""A default of the config stands in rules/config.py, and nowhere else: another place that needs it asks there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

from gpu_lifecycle.rules.config import SECTIONS, Ready, Stop
from gpu_lifecycle.rules.examples import example_config
from gpu_lifecycle.rules.schema import parse_config

PACKAGE = Path(__file__).parents[1] / "gpu_lifecycle"
DEFAULTS = {item.name: item.default for kind in SECTIONS.values() for item in fields(kind) if item.default is not MISSING}
SIZES = {DEFAULTS["free_below"]}


def test_no_field_or_argument_repeats_one() -> None:
    """``busy_grace: float = 300.0`` elsewhere, and ``free_below=512 << 20``."""
    assert [f"{path.name}:{line} {name}" for path, tree in _trees() for name, line, value in _given(tree)
            if type(value) in (int, float) and value == DEFAULTS.get(name)] == []  # fmt: skip


def test_no_function_writes_a_size_that_is_one() -> None:
    """A constant with a name and a meaning of its own may happen to be as large."""
    found = [f"{path.name}:{node.lineno}" for path, tree in _trees() for function in ast.walk(tree)
             if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
             for node in ast.walk(function) if isinstance(node, ast.expr) and _number(node) in SIZES]  # fmt: skip
    assert found == []


def test_the_searches_find_what_they_are_for() -> None:
    text = "class A:\n    busy_grace: float = 300.0\ndef f(drain=120.0):\n    g(free_below=512 << 20)\n"
    assert [(name, value) for name, _, value in _given(ast.parse(text))] == [
        ("busy_grace", 300.0), ("drain", 120.0), ("free_below", 512 << 20),
    ]  # fmt: skip


def test_vllms_example_gives_it_the_times_that_hold() -> None:
    server = parse_config(example_config("vllm"), "x.toml").server
    assert float(server.command[server.command.index("--shutdown-timeout") + 1]) == Stop.drain
    assert float(server.environment["VLLM_ENGINE_READY_TIMEOUT_S"]) == Ready.ceiling


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).as_posix() != "rules/config.py":
            yield path, ast.parse(path.read_text())


def _given(tree: ast.Module) -> Iterator[tuple[str, int, object]]:
    """Each name that is given a number: a field, a parameter with a default, an argument of a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.lineno, _number(node.value)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.lineno, _number(node.value)
        elif isinstance(node, ast.arguments):
            names = [*node.posonlyargs, *node.args]
            given = [*zip(names[len(names) - len(node.defaults) :], node.defaults, strict=True)]
            given += [(name, value) for name, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value]
            for name, value in given:
                yield name.arg, name.lineno, _number(value)


def _number(node: ast.AST) -> object:
    """The number that is written there, a shift too; None: none."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        left, right = _number(node.left), _number(node.right)
        return left << right if isinstance(left, int) and isinstance(right, int) else None
    return None
