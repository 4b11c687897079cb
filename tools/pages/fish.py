"""Completion for fish."""

from __future__ import annotations

from collections.abc import Iterator

from .commands import Argument, Command

_HEAD = r"""# Completion of gpu-lifecycle for fish. Made from its command line by `make docs`: do not edit.

function __gpu_lifecycle_units
    for file in /etc/gpu-lifecycle/*.toml
        string replace -r '.*/(.*)\.toml$' '$1' -- $file
    end
end

# The commands so far, and how many other words follow them.
function __gpu_lifecycle_place
    set -l command
    set -l place 0
    set -l awaited 0
    set -l words (commandline -opc)
    for word in $words[2..-1]
        if test $awaited = 1
            set awaited 0
        else if string match -q -- '-*' $word
            __gpu_lifecycle_awaits "$command" $word; and set awaited 1
        else if __gpu_lifecycle_is_command (string join -- ' ' $command $word)
            set command $command $word
            set place 0
        else
            set place (math $place + 1)
        end
    end
    echo "$command"
    echo $place
end

# True within the commands $argv[1], if given at the $argv[2]-th word after them.
function __gpu_lifecycle_at
    set -l found (__gpu_lifecycle_place)
    test "$found[1]" = "$argv[1]"; or return 1
    not set -q argv[2]; or test $found[2] = $argv[2]
end

function __gpu_lifecycle_after
    set -l words (commandline -opc)
    test "$words[-1]" = $argv[1]
end
"""


def script(top: Command) -> str:
    """The whole file."""
    commands = list(top.every())
    known = [_path(command) for command in commands if command.words]
    awaiting = [f"{_path(item)} {name}" for item in commands for option in item.options
                if option.metavar and not option.optional for name in option.spellings]  # fmt: skip
    functions = [
        _contains("is_command", known, "$argv[1]"),
        _contains("awaits", awaiting, '"$argv[1] $argv[2]"'),
    ]
    lines = ["complete -c gpu-lifecycle -f", *(line for command in commands for line in _command(command))]
    return "\n".join((_HEAD, *functions, *lines, ""))


def _contains(name: str, words: list[str], subject: str) -> str:
    return f"function __gpu_lifecycle_{name}\n    contains -- {subject} {' '.join(map(_quoted, words))}\nend\n"


def _path(command: Command) -> str:
    return " ".join(command.words)


def _command(command: Command) -> Iterator[str]:
    path = _path(command)
    for below in command.commands:
        yield _line(_at(path, 0), f"-a {below.words[-1]}", below.text)
    for option in command.options:
        yield _line(_at(path), _option(option), option.text)
        if option.optional:
            yield _line(f'__gpu_lifecycle_at "{path}"; and __gpu_lifecycle_after {option.spellings[-1]}', _offer(option))
    for place, item in enumerate(command.positionals):
        yield _line(_at(path, place), _offer(item))


def _at(path: str, place: int | None = None) -> str:
    return f'__gpu_lifecycle_at "{path}"' + ("" if place is None else f" {place}")


def _line(where: str, what: str, text: str = "") -> str:
    return f"complete -c gpu-lifecycle -n {_quoted(where)} {what}" + (f" -d {_quoted(text)}" if text else "")


def _option(option: Argument) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.spellings)
    if not option.metavar:
        return names
    if option.optional:  # after a space, fish takes its value for a positional
        return f"{names} {_offer(option)}"
    return f"{names} -x {_offer(option)}" if option.takes != "file" else f"{names} -r -F"


def _offer(item: Argument) -> str:
    if item.choices:
        return f"-a {_quoted(' '.join(item.choices))}"
    values = {"unit": "(__gpu_lifecycle_units)", "folder": "(__fish_complete_directories)"}
    return f"-a {_quoted(values[item.takes])}" if item.takes in values else "-F" if item.takes == "file" else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
