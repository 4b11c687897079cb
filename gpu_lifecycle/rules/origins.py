"""Where each value of a config comes from: a line of the file, the engine's command or environment, or a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpu_lifecycle.rules import engines
from gpu_lifecycle.rules.config import Config, Server
from gpu_lifecycle.rules.config_keys import KEYS, plain_sections, written
from gpu_lifecycle.rules.text import redact
from gpu_lifecycle.rules.toml_lines import Key, key_lines, line_of, read_toml
from gpu_lifecycle.rules.toml_text import toml_key, toml_text


class Source(StrEnum):
    """What a value was read from."""

    FILE = "file"
    COMMAND = "command"
    ENVIRONMENT = "environment"
    ENGINE = "engine"  # what this kind of server does where it is told nothing
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """One value as it holds: ``text`` as TOML, ``value`` for a program (None: unknown, or not to be shown).

    ``note`` says more on a source outside the key's own line; ``line`` is where that source stands in the file, from 1.
    """

    section: str
    key: str
    value: Any
    text: str
    source: Source
    note: str = ""
    line: int | None = None
    hidden: bool = False


def origins(config: Config, text: str, file: str) -> Iterator[Origin]:
    """Every key, in the order of the file's documentation. ``text`` is what ``config`` was read from.

    Values of environment variables, and of options that name a key or a password, are never among them.
    """
    given, lines = read_toml(text, file), key_lines(text)
    for section, keys in plain_sections(config).items():
        for key, value in keys.items():
            at = line_of(lines, (section, key)) if key in given.get(section, {}) else None
            if (section, key) == ("server", "environment"):
                yield from _variables(value, lines, at)
            elif at is None and (section, key) in _DERIVED:
                yield _derived(key, config.server, lines)
            else:
                yield _plain(section, key, value, at)


def _plain(section: str, key: str, value: Any, line: int | None) -> Origin:
    source = Source.DEFAULT if line is None else Source.FILE
    if value is None:
        return Origin(section, key, None, "", source, KEYS[section][key].unset)
    shown = _words(value) if key in ("command", "before") else _place(value) if key == "api_key_file" else value
    return Origin(section, key, shown, written(section, key, shown), source, line=line, hidden=shown != value)


def _place(value: str) -> str:
    """A path may be shown. What is no path is a credential's name, or a key that somebody has pasted in its place."""
    return value if value.startswith("/") else "***"


def _words(command: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command without the values of options that name a key or a password."""
    return tuple(_word(before, word) for before, word in zip(("", *command), command, strict=False))


def _word(before: str, word: str) -> str:
    name, equals, _ = word.partition("=")
    if equals and _secret(name):
        return f"{name}=***"
    return "***" if _secret(before) and not word.startswith("-") else redact(word)


def _secret(option: str) -> bool:
    return redact(f"{option} x") == f"{option} ***"


def _variables(value: Mapping[str, str], lines: Mapping[Key, int], at: int | None) -> Iterator[Origin]:
    """Their names only: a value may be a password."""
    if not value:
        yield Origin("server", "environment", {}, "{}", Source.DEFAULT if at is None else Source.FILE, line=at)
    for name in value:
        line = line_of(lines, ("server", "environment", name))
        yield Origin("server", f"environment.{toml_key(name)}", None, toml_text("***"), Source.FILE, line=line, hidden=True)


_DERIVED = {("server", key) for key in ("url", "model", "draft_model", "tp")}


def _derived(key: str, server: Server, lines: Mapping[Key, int]) -> Origin:
    """A key that the command says, or else the engine's environment, or else the engine by itself."""
    value = {"url": _url, "model": Server.target, "draft_model": Server.draft, "tp": Server.tensor_parallel}[key](server)
    source, names = _told(key, server)
    if value is None:
        source, names = Source.DEFAULT, {"model": "not known", "draft_model": "none"}.get(key, "the engine decides")
    place = {Source.COMMAND: ("server", "command"), Source.ENVIRONMENT: ("server", "environment", names)}.get(source)
    note = f"default of {server.engine}" if source is Source.ENGINE else names
    line = line_of(lines, place) if place else None
    return Origin("server", key, value, "" if value is None else written("server", key, value), source, note, line)


def _url(server: Server) -> str:
    found = server.endpoint()
    return f"unix://{found.uds}" if found.uds else found.url("")


def _told(key: str, server: Server) -> tuple[Source, str]:
    """Where the engine was told: the option that says it, or the variable."""
    preset = server.preset
    options, variables = {
        "url": (
            (*preset.uds_options, *preset.port_options, *preset.host_options),
            (preset.host_env, preset.port_env),
        ),
        "model": (preset.model_options, (preset.model_env,)),
        "draft_model": ((*preset.draft_options, *preset.draft_json_options), ()),
        "tp": (preset.tp_options, (preset.tp_env,)),
    }[key]
    named = [name for name in options if engines.option(server.command, (name,)) is not None]
    if named or (key == "model" and engines.model_of(preset, server.command, {})):
        return Source.COMMAND, " ".join(named)
    variable = next((name for name in variables if name and name in server.environment), "")
    return (Source.ENVIRONMENT, variable) if variable else (Source.ENGINE, "")


def said(origin: Origin, file: str) -> str:
    """In words where a value comes from."""
    if origin.source is Source.FILE:
        return f"{file}:{origin.line}"
    if origin.source is Source.COMMAND:
        return f"{file}:{origin.line}, the command" + (f" ({origin.note})" if origin.note else "")
    if origin.source is Source.ENVIRONMENT:
        return f"{file}:{origin.line}, the environment ({origin.note})"
    return origin.note if origin.source is Source.ENGINE else "default"
