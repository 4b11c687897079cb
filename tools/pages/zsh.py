"""Completion for zsh, by its own ``_arguments``."""

from __future__ import annotations

from collections.abc import Iterator

from .commands import Argument, Command

_HEAD = r"""#compdef gpu-lifecycle
# Completion of gpu-lifecycle for zsh. Made from its command line by `make docs`: do not edit.

_gpu_lifecycle_units() {
    local -a units expl
    units=(/etc/gpu-lifecycle/*.toml(N:t:r))
    _wanted units expl 'managed unit' compadd -a units
}
"""


def script(top: Command) -> str:
    """The whole file."""
    return "\n".join((_HEAD, *(_function(command) for command in top.every()), '_gpu_lifecycle "$@"\n'))


def _name(command: Command) -> str:
    return "_".join(("_gpu_lifecycle", *command.words))


def _function(command: Command) -> str:
    lines = [f"    {line}" for line in (_choosing(command) if command.commands else _arguments(command))]
    return "\n".join((f"{_name(command)}() {{", *lines, "}", ""))


def _arguments(command: Command) -> Iterator[str]:
    specs = [*(_option(option) for option in command.options), *(_positional(item) for item in command.positionals)]
    yield "_arguments \\"
    yield from (f"    {spec} \\" for spec in specs[:-1])
    yield f"    {specs[-1]}"


def _choosing(command: Command) -> Iterator[str]:
    """A command with others below it: after its word, the function of that one goes on."""
    yield 'local curcontext="$curcontext" state line'
    yield "local -a commands"
    yield "commands=("
    yield from (f"    {_quoted(f'{item.words[-1]}:{_plain(item.text)}')}" for item in command.commands)
    yield ")"
    yield "_arguments -C \\"
    yield from (f"    {_option(option)} \\" for option in command.options)
    yield "    '1:command:->command' '*::argument:->argument'"
    yield "case $state in"
    yield "    command) _describe -t commands command commands ;;"
    yield "    argument)"
    yield "        case $line[1] in"
    yield from (f"            {item.words[-1]}) {_name(item)} ;;" for item in command.commands)
    yield "        esac ;;"
    yield "esac"


def _option(option: Argument) -> str:
    text = f"[{_plain(option.text)}]"
    value = ""
    if option.metavar:
        value = f"{'::' if option.optional else ':'}{option.metavar if not option.choices else 'value'}:{_action(option)}"
    equals = "=" if option.metavar else ""
    if len(option.spellings) == 1:
        return _quoted(f"{option.spellings[0]}{equals}{text}{value}")  # = allows a space, too
    names = ",".join(option.spellings)
    return f"{{{names}}}{_quoted(f'{text}{value}')}"


def _positional(item: Argument) -> str:
    name = "value" if item.choices else item.metavar
    return _quoted(f"{'::' if item.optional else ':'}{name}:{_action(item)}")


def _action(item: Argument) -> str:
    if item.choices:
        return f"({' '.join(item.choices)})"
    return {"unit": "_gpu_lifecycle_units", "folder": "_files -/", "file": "_files"}.get(item.takes, " ")


def _plain(text: str) -> str:
    """A description: brackets and colons have a meaning there."""
    return text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
