"""Completion for bash. It splits the line by itself: bash's own words end at ``@`` and ``:``, which names of units may hold."""

from __future__ import annotations

from collections.abc import Iterator

from .commands import Argument, Command

_HEAD = r"""# Completion of gpu-lifecycle for bash. Made from its command line by `make docs`: do not edit.

_gpu_lifecycle_units() {
    local file
    for file in /etc/gpu-lifecycle/*.toml; do
        [[ -e $file ]] && file=${file##*/} && printf '%s\n' "${file%.toml}"
    done
}

# What follows the commands $1: an option's value (after $2), a positional (the $2-th), or the options themselves.
"""
_TAIL = r"""
_gpu_lifecycle() {
    local -a words
    read -r -a words <<<"${COMP_LINE:0:COMP_POINT}"
    local current=""
    if [[ ${COMP_LINE:0:COMP_POINT} != *[[:space:]] ]]; then
        current=${words[-1]}
        unset 'words[-1]'
    fi
    local command="" awaited="" word takes place=0
    for word in "${words[@]:1}"; do
        if [[ -n $awaited && ! ($awaited == \?* && $word == -*) ]]; then
            awaited=""
        elif [[ $word == -* ]]; then
            awaited=$(_gpu_lifecycle_value "$command" "$word")
        elif _gpu_lifecycle_is_command "$command $word"; then
            command="$command $word" place=0
        else
            place=$((place + 1))
        fi
    done
    if [[ $current == --*=* ]]; then
        takes=$(_gpu_lifecycle_value "$command" "${current%%=*}")
        current=${current#*=}
    elif [[ -n $awaited && ! ($awaited == \?* && $current == -*) ]]; then
        takes=$awaited
    elif [[ $current == -* ]]; then
        takes="words $(_gpu_lifecycle_options "$command")"
    else
        takes=$(_gpu_lifecycle_positional "$command" "$place")
    fi
    takes=${takes#\?}
    COMPREPLY=()
    case $takes in
        "words "*) word=${takes#words } ;;
        unit) word=$(_gpu_lifecycle_units) ;;
        folder) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
        file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
        *) return ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$word" -- "$current")
    # readline replaces only what comes after the last of its own breaks, and that break too if it is an @
    local broken=${current%"${current##*[$COMP_WORDBREAKS]}"}
    broken=${broken%@}
    COMPREPLY=("${COMPREPLY[@]#"$broken"}")
}

complete -F _gpu_lifecycle gpu-lifecycle
"""


def script(top: Command) -> str:
    """The whole file."""
    commands = list(top.every())
    paths = " | ".join(f'"{_path(command)}"' for command in commands if command.words)
    known = _function("is_command", iter((f"{paths}) return 0 ;;", "*) return 1 ;;")))
    options = _function("options", (f'"{_path(item)}") echo "{" ".join(_spellings(item))}" ;;' for item in commands))
    values = _function("value", (line for item in commands for line in _values(item)), '"$1 $2"')
    places = _function("positional", (line for item in commands for line in _positionals(item)), '"$1 $2"')
    return _HEAD + f"{known}\n{options}\n{values}\n{places}" + _TAIL


def _function(name: str, lines: Iterator[str], subject: str = "$1") -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f"_gpu_lifecycle_{name}() {{\n    case {subject} in\n{body}\n    esac\n}}\n"


def _path(command: Command) -> str:
    return "".join(f" {word}" for word in command.words)


def _spellings(command: Command) -> list[str]:
    return [name for option in command.options for name in option.spellings]


def _values(command: Command) -> Iterator[str]:
    for option in command.options:
        if option.metavar:
            spelled = " | ".join(f'"{_path(command)} {name}"' for name in option.spellings)
            yield f'{spelled}) echo "{"?" if option.optional else ""}{_takes(option)}" ;;'


def _positionals(command: Command) -> Iterator[str]:
    if command.commands:
        yield f'"{_path(command)} 0") echo "words {" ".join(item.words[-1] for item in command.commands)}" ;;'
    for place, item in enumerate(command.positionals):
        yield f'"{_path(command)} {place}") echo "{_takes(item)}" ;;'


def _takes(item: Argument) -> str:
    """An empty answer would mean that no value is awaited."""
    return f"words {' '.join(item.choices)}" if item.choices else item.takes or "nothing"
