"""The command line as values, read from its parser: what man pages and completion are made from."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Argument:
    """One option (with its spellings) or one positional (without). ``metavar`` empty: it takes no value."""

    spellings: tuple[str, ...]
    metavar: str
    text: str
    choices: tuple[str, ...] = ()
    optional: bool = False  # the value, or the positional, may be left out

    @property
    def takes(self) -> str:
        """What a shell offers as its value: "unit", "folder", "file", "words", or "" for nothing."""
        if self.choices:
            return "words"
        return {"UNIT": "unit", "DIR": "folder", "FILE": "file"}.get(self.metavar, "")


@dataclass(frozen=True, slots=True)
class Command:
    """One command with the commands below it. ``words`` are those after the program's name; the first one has none."""

    words: tuple[str, ...]
    text: str
    more: str
    options: tuple[Argument, ...]
    positionals: tuple[Argument, ...]
    commands: tuple[Command, ...] = field(default=())

    def every(self) -> Iterator[Command]:
        """This command and all below it."""
        yield self
        for command in self.commands:
            yield from command.every()

    def option(self, spelling: str) -> Argument | None:
        return next((option for option in self.options if spelling in option.spellings), None)


def read(parser: argparse.ArgumentParser, words: tuple[str, ...] = (), text: str = "") -> Command:
    """The command that ``parser`` reads; what is hidden from its help is left out."""
    options: list[Argument] = []
    positionals: list[Argument] = []
    commands: list[Command] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            texts = {item.dest: _help(parser, item) for item in action._choices_actions}  # noqa: SLF001
            commands = [read(below, (*words, name), texts[name]) for name, below in action.choices.items() if name in texts]
        elif action.help != argparse.SUPPRESS:
            (options if action.option_strings else positionals).append(_argument(action, _help(parser, action)))
    return Command(words, text or parser.description or "", parser.epilog or "", tuple(options), tuple(positionals),
                   tuple(commands))  # fmt: skip


def _argument(action: argparse.Action, text: str) -> Argument:
    choices = tuple(str(item) for item in action.choices or ())
    metavar = "" if action.nargs == 0 else str(action.metavar or "|".join(choices) or action.dest.upper())
    return Argument(tuple(action.option_strings), metavar, text, choices, action.nargs == "?")


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help of an argument, its default filled in."""
    return parser._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001
