"""The man pages: section 1 for the commands, 5 for the config, 7 for the events.

One page for each command, as git and systemd have them: ``man gpu-lifecycle-sweep`` is short, and a new command brings its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from gpu_lifecycle.errors import Exit
from gpu_lifecycle.rules.config_keys import KEYS, SECTION_TEXTS, UNITS, About, default_text, type_text
from gpu_lifecycle.rules.events import EVENTS, Kind

from .commands import Argument, Command
from .mdoc import escape, page, prose, see_also, word

PROGRAM = "gpu-lifecycle"
CONFIG, EVENTS_NAME = "gpu-lifecycle.toml", "gpu-lifecycle-events"
DATE = "December 2, 2026"  # of the last change of their form: what a page says has the date of the package
PRIORITIES = {3: "error", 4: "warning", 5: "notice", 6: "info"}

EXITS = {
    Exit.OK: "Done, or free.",
    Exit.DEFECT: "A defect of gpu-lifecycle itself; a traceback says where.",
    Exit.USAGE: "The command line asks for something that does not exist.",
    Exit.UNAVAILABLE: "A GPU or the driver needs a person, or an action on the host. systemd does not try again.",
    Exit.TEMPFAIL: "Not now: a process in the way, memory not yet released. systemd tries again.",
    Exit.NOPERM: "This user may not do that. systemd does not try again.",
    Exit.CONFIG: "The config, the model or the set-up of the host is wrong. systemd does not try again.",
}

FILES = {
    "/etc/gpu-lifecycle/NAME.toml": "The config of the unit NAME.",
    "/run/gpu-lifecycle/NAME/state.json": "What status shows; everybody may read it.",
    "/var/lib/gpu-lifecycle/NAME/incidents/": "Evidence of runs that failed; the newest ten are kept.",
}


def pages(top: Command) -> dict[str, Callable[[], str]]:
    """Each page by its file's name, with what makes it."""
    commands = {f"{_name(command)}.1": partial(_command, command) for command in top.commands}
    return {
        f"{PROGRAM}.1": partial(_overview, top),
        **commands,
        f"{CONFIG}.5": _config,
        f"{EVENTS_NAME}.7": _events,
    }


def _name(command: Command) -> str:
    return "-".join((PROGRAM, *command.words))


def _overview(top: Command) -> str:
    body = [".Sh SYNOPSIS", *_synopsis(top), ".Sh DESCRIPTION", prose(top.text)]
    body += [prose("UNIT is the name of a managed unit, with or without .service: one that has a config file."), ".Pp"]
    body += ["The commands are:", ".Bl -tag -width Ds"]
    for command in top.commands:
        body += [f".It Cm {word(command.words[0])}", prose(_sentence(command.text)), "See", f".Xr {_name(command)} 1 ."]
    body += [".El", ".Pp", "The options are:", *_arguments(top.options)]
    body += [".Sh FILES", ".Bl -tag -width Ds", *(f".It Pa {path}\n{prose(text)}" for path, text in FILES.items()), ".El"]
    body += _exit_status()
    body += see_also([*((_name(command), 1) for command in top.commands), (CONFIG, 5), (EVENTS_NAME, 7)])
    return page(PROGRAM, 1, DATE, top.text, body)


def _command(command: Command) -> str:
    leaves = [item for item in command.every() if not item.commands]
    body = [".Sh SYNOPSIS", *(line for leaf in leaves for line in _synopsis(leaf)), ".Sh DESCRIPTION"]
    for leaf in leaves:
        body += [f".Ss {escape(' '.join(leaf.words))}"] if len(leaves) > 1 else []
        body += [prose(_sentence(leaf.text)), *([".Pp", prose(leaf.more)] if leaf.more else [])]
        body += [".Pp", "Its arguments:", *_arguments((*leaf.positionals, *leaf.options))]
    body += _exit_status()
    body += see_also([(PROGRAM, 1), (CONFIG, 5), (EVENTS_NAME, 7)])
    return page(_name(command), 1, DATE, command.text, body)


def _synopsis(command: Command) -> Iterator[str]:
    yield f".Nm {PROGRAM}"
    if command.commands:
        yield from (".Op Ar option", ".Ar COMMAND", ".Op Ar argument ...")
        return
    yield from (f".Cm {word(name)}" for name in command.words)
    yield from (f".Op {_shown(option)}" for option in command.options if "--help" not in option.spellings)
    for item in command.positionals:
        shown = " | ".join(f"Cm {word(choice)}" for choice in item.choices) or f"Ar {word(item.metavar)}"
        yield f".Op {shown}" if item.optional else f".{shown}"


def _shown(option: Argument) -> str:
    """An option with its value, the longest spelling."""
    flag = f"Fl {word(option.spellings[-1].removeprefix('-'))}"
    value = "ENGINE" if option.choices else option.metavar
    if not value:
        return flag
    return f"{flag} Op Ar {word(value)}" if option.optional else f"{flag} Ar {word(value)}"


def _arguments(items: tuple[Argument, ...]) -> Iterator[str]:
    yield ".Bl -tag -width Ds"
    for item in items:
        if item.spellings:
            spelled = " , ".join(f"Fl {word(name.removeprefix('-'))}" for name in item.spellings[:-1])
            yield f".It {spelled} , {_shown(item)}" if spelled else f".It {_shown(item)}"
        else:
            yield ".It " + (" | ".join(f"Cm {word(name)}" for name in item.choices) or f"Ar {word(item.metavar)}")
        choices = f"One of {', '.join(item.choices)}." if item.choices and item.spellings else ""
        yield prose(" ".join(part for part in (_sentence(item.text), choices) if part))
    yield ".El"


def _exit_status() -> list[str]:
    rows = [f".It {status.value}\n{prose(EXITS[status])}" for status in Exit]
    return [".Sh EXIT STATUS", ".Bl -tag -width Ds", *rows, ".El"]


def _sentence(text: str) -> str:
    """A help text, which begins small and has no full stop, as a sentence."""
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _config() -> str:
    body = [".Sh SYNOPSIS", ".Pa /etc/gpu-lifecycle/NAME.toml", ".Sh DESCRIPTION"]
    body += [prose("The config of the managed unit NAME, in TOML. Only server.command has no default; an unknown key or a wrong"
                   f" value is refused, with its line and the cure. {UNITS}"), ".Pp"]  # fmt: skip
    body += [prose("A commented file to begin with: gpu-lifecycle config init. What holds, and where each value comes from:"
                   " gpu-lifecycle config show NAME.")]  # fmt: skip
    for section, keys in KEYS.items():
        body += [f".Ss Section {section}", prose(f"[{section}]: {SECTION_TEXTS[section]}"), ".Bl -tag -width Ds"]
        for key, about in keys.items():
            body += _key(section, key, about)
        body += [".El"]
    body += see_also([(PROGRAM, 1), (f"{PROGRAM}-config", 1)])
    return page(CONFIG, 5, DATE, "what a managed unit runs, and how it is looked after", body)


def _key(section: str, key: str, about: About) -> Iterator[str]:
    yield f".It Ic {word(key)}"
    yield prose(about.meaning.strip())
    yield ".Pp"
    yield prose(f"{_sentence(type_text(section, key))} Default: {default_text(section, key).rstrip('.')}.")


def _events() -> str:
    body = [".Sh DESCRIPTION"]
    body += [prose("Every event in the journal carries MESSAGE_ID=, GPU_LIFECYCLE_EVENT= (the word below), GPU_LIFECYCLE_UNIT="
                   " and GPU_LIFECYCLE_RUN=. journalctl -x shows these texts beside the events; journalctl"
                   " GPU_LIFECYCLE_EVENT=holder-reaped shows one kind."), ".Bl -tag -width Ds"]  # fmt: skip
    for name, kind in EVENTS.items():
        body += _event(name, kind)
    body += [".El", *see_also([(PROGRAM, 1), (CONFIG, 5)])]
    return page(EVENTS_NAME, 7, DATE, "what gpu-lifecycle writes into the journal", body)


def _event(name: str, kind: Kind) -> Iterator[str]:
    yield f".It Ic {word(name)} Pq {PRIORITIES[kind.priority]}"
    yield prose(_filled(f"{kind.subject}."))
    yield ".Pp"
    yield prose(_filled(re.sub(r"\n(?!What to do)", " ", kind.text)))
    yield ".Pp"
    yield f"MESSAGE_ID={kind.id}"


def _filled(text: str) -> str:
    """Where journalctl would fill in a field, its last word: UNIT for @GPU_LIFECYCLE_UNIT@."""
    return re.sub(r"@(?:\w+_)?([A-Z]+)@", r"\1", text)
