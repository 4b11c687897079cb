"""What each key of a config file means: for the man page, the commented file of ``config init``, and ``config show``.

One entry for each key of rules/config.py, in its order; a test holds the two equal. Defaults are not repeated here: they are
those of the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, get_args, get_type_hints

from gpu_lifecycle.rules.config import SECTIONS
from gpu_lifecycle.rules.engines import ENGINES
from gpu_lifecycle.rules.toml_text import toml_duration, toml_size, toml_value


class Kind(StrEnum):
    """How a value is written; the words are those of the man page."""

    TEXT = "text"
    CHOICE = "text, one of"
    COUNT = "number from 1 to 4096"
    FLAG = "true or false"
    DURATION = "duration"
    SIZE = "size in memory"
    SIZE_OR_SHARE = 'size in memory, or a share of all such as "50%"'
    SIZE_OR_AUTO = 'size in memory, or "auto"'
    PLACE = "absolute path, or the name of a credential"
    TEXTS = "list of texts"
    COMMAND = "list of texts, the first an absolute path"
    VARIABLES = "table of texts"
    GPUS = '"all", or a list of GPUs'
    LISTEN = '"127.0.0.1:PORT", "[::1]:PORT" or "unix:/PATH"'
    FOLDER = "absolute path of a folder"
    EVENTS = "list of events"


@dataclass(frozen=True, slots=True)
class About:
    """One key: how its value is written, and what it means, in whole sentences.

    ``unset`` says what holds where a key without a default is left out; ``sample`` is a value for it, as TOML.
    """

    kind: Kind
    meaning: str
    unset: str = ""
    sample: str = ""


UNITS = "Durations are text with a unit (ms, s, min, h, d), sizes too (B, KiB, MiB, GiB, TiB)."

SECTION_TEXTS = {
    "server": "What to run.",
    "gpus": "Which GPUs the unit uses.",
    "sweep": "What is ended before a start and after a stop, and how long that may take.",
    "ready": "When the server counts as ready, and when waiting for it is given up.",
    "watch": "How a ready server is watched.",
    "stop": "How the server is ended.",
    "metrics": "What Prometheus can read. Off unless one of these is set.",
    "notify": "Who is told: a command that is run on events.",
}

_FROM_COMMAND = "read from the command"

KEYS: dict[str, dict[str, About]] = {
    "server": {
        "command": About(
            Kind.COMMAND,
            "The program and its options, one word each: no shell reads this. Keep keys and passwords out of it, for every user"
            " can read a command line.",
            sample='["/absolute/path/of/the/program", "--option", "value"]',
        ),
        "engine": About(Kind.CHOICE, "What kind of server it is: how it is asked, and how it ends."),
        "url": About(
            Kind.TEXT,
            "Where the server answers: an http or https address without a path, or unix:///PATH of a socket.",
            _FROM_COMMAND,
            '"http://127.0.0.1:30000"',
        ),
        "model": About(
            Kind.TEXT,
            "Path or name of the model. Its files are looked at before a start.",
            _FROM_COMMAND,
            '"/models/kimi-k2.5-int4"',
        ),
        "draft_model": About(
            Kind.TEXT,
            "Path or name of the draft model of speculative decoding.",
            _FROM_COMMAND,
            '"/models/kimi-k2.5-eagle3"',
        ),
        "tp": About(Kind.COUNT, "Over how many GPUs each layer is split (tensor parallelism).", _FROM_COMMAND, "8"),
        "api_key_file": About(
            Kind.PLACE,
            "Where the key is that our own requests need, with --api-key: a file, or a systemd credential"
            " (LoadCredential=engine-key:/etc/credstore/kimi in a drop-in). Better there than in the command, which everybody"
            " may read. It is read anew for each request, and never shown: where the engine prints it the journal has ***.",
            "the key in the command, if there is one",
            '"engine-key"',
        ),
        "environment": About(
            Kind.VARIABLES,
            "Variables for the server, added to what systemd gives the unit (Environment=).",
            "none",
            'HF_HUB_OFFLINE = "1"',
        ),
        "shm_size": About(
            Kind.SIZE_OR_SHARE,
            "Size of the unit's own /dev/shm, over which the workers pass tensors. Holds after gpu-lifecycle install UNIT and a"
            " restart.",
        ),
    },
    "gpus": {
        "claim": About(
            Kind.GPUS,
            'All GPUs, or a list of indices, UUIDs or PCI addresses: [0, 1], ["GPU-5a0c1f7e-..."], ["0000:3b:00.0"]. An index'
            " can change with a reboot, a UUID cannot. An instance of a divided GPU (MIG) is claimed by its UUID.",
        ),
        "count": About(Kind.COUNT, "Exactly this many must be there and fit to work.", "any number", "8"),
    },
    "sweep": {
        "policy": About(
            Kind.CHOICE,
            "Whose processes are ended.\n"
            '"owned": what an earlier run of this unit left, and orphans.\n'
            '"dedicated": also what login sessions left running on these GPUs (nohup, tmux), for a machine that is there for'
            " this server alone; services and containers stay, and are named with the command that stops them.\n"
            '"report": none, it is only said what is there.\n',
        ),
        "protect": About(
            Kind.TEXTS, 'Units, users or executables that are never touched: ["dcgm.service", "alice", "/usr/bin/nvtop"].'
        ),
        "term_grace": About(Kind.DURATION, "Between SIGTERM and SIGKILL."),
        "exit_deadline": About(Kind.DURATION, "How long their end may take."),
        "memory_deadline": About(Kind.DURATION, "How long the driver may take to give their memory back."),
        "free_below": About(Kind.SIZE, "Used memory above the driver's own at which a GPU counts as free."),
    },
    "ready": {
        "min_used": About(
            Kind.SIZE_OR_AUTO,
            'Memory that each GPU must hold before the server can be ready. "auto": half of an even share of the weights, at'
            " least 512MiB.",
        ),
        "generate": About(Kind.FLAG, "Ready only after one real token, where the engine can give one."),
        "stall": About(Kind.DURATION, "No progress for this long while loading: give up."),
        "ceiling": About(Kind.DURATION, "The longest start of all."),
    },
    "watch": {
        "interval": About(Kind.DURATION, "Between two looks at a ready server."),
        "failures": About(
            Kind.COUNT,
            "Bad looks before the server counts as failed, and good ones in a row after which they are forgotten. Bad is what"
            " says so: an error, a refusal, a dead worker. Silence and waiting are judged by busy_grace.",
        ),
        "busy_grace": About(
            Kind.DURATION,
            "How long a server with work in hand may show no progress (no token, no piece of a prompt), or one that is asked"
            " may say nothing. Longer than the longest compilation that a first request may cause. Without counters (SGLang:"
            " --enable-metrics) its only work that can be seen is a token that we ask for now and then; one that may wait"
            " behind the requests of others is given six times as long.",
        ),
        "timeout": About(Kind.DURATION, "For one answer; what is later is silence."),
    },
    "stop": {
        "drain": About(Kind.DURATION, "How long running requests may finish. TimeoutStopSec= of the unit must be longer."),
        "before": About(
            Kind.COMMAND,
            "Run before the engine is told to end, to keep new requests away: a load balancer that is told, and the time that"
            " it takes to listen. Whatever comes of it, the stop goes on.",
            "nothing",
            '["/usr/local/bin/leave-the-pool", "kimi"]',
        ),
        "before_limit": About(Kind.DURATION, "How long stop.before may take."),
    },
    "metrics": {
        "listen": About(
            Kind.LISTEN,
            "Where the daemon serves its metrics page (GET /metrics), to this machine only.",
            "nowhere",
            '"127.0.0.1:9400"',
        ),
        "textfile": About(
            Kind.FOLDER,
            "The folder of node_exporter's textfile collector, where the daemon writes the same page as"
            " gpu_lifecycle_NAME.prom. The unit's user must be allowed to write there (ReadWritePaths= of the unit, and the"
            " folder's owner).",
            "no file",
            '"/var/lib/prometheus/node-exporter"',
        ),
    },
    "notify": {
        "command": About(
            Kind.COMMAND,
            "Run by the daemon as the unit's user, with the event as JSON on its standard input. What it prints goes to the"
            " journal. Four run at once at most, and the same event of the same GPU once a minute at most. A stop never waits"
            " for it.",
            "nobody is told",
            '["/usr/bin/curl", "-sS", "--data-binary", "@-", "https://chat.example/hook"]',
        ),
        "events": About(
            Kind.EVENTS,
            "On which events it is run. man gpu-lifecycle-events names them.",
            "every event of priority warning or error",
            '["engine-failed", "start-refused", "run-ended"]',
        ),
        "limit": About(Kind.DURATION, "How long one run of it may take; then it is ended."),
    },
}


def choices(section: str, key: str) -> tuple[str, ...]:
    """What a key of kind CHOICE may be, its default first."""
    found = tuple(ENGINES) if (section, key) == ("server", "engine") else get_args(get_type_hints(SECTIONS[section])[key])
    return tuple(str(item) for item in found)


def default(section: str, key: str) -> Any:
    """The value that holds where the key is left out; None: it has none, and ``About.unset`` says what holds."""
    item = next(item for item in fields(SECTIONS[section]) if item.name == key)
    if item.default_factory is not MISSING:
        return item.default_factory() or None
    return None if item.default is MISSING else item.default


def written(section: str, key: str, value: Any) -> str:
    """A value as the file has it: TOML that reads back as just this value."""
    kind = KEYS[section][key].kind
    if kind is Kind.DURATION:
        return toml_duration(value)
    if kind in (Kind.SIZE, Kind.SIZE_OR_SHARE, Kind.SIZE_OR_AUTO) and not isinstance(value, str):
        return toml_size(value)
    return toml_value(value)


def type_text(section: str, key: str) -> str:
    """How the value of a key is written, in words."""
    kind = KEYS[section][key].kind
    return f"{kind} {_either(choices(section, key))}" if kind is Kind.CHOICE else str(kind)


def default_text(section: str, key: str) -> str:
    """The default of a key as the file would have it, or in words what holds without it."""
    value = default(section, key)
    if value is not None:
        return written(section, key, value)
    return KEYS[section][key].unset or "it has to be there"


def _either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def plain_sections(config: Any) -> Mapping[str, Mapping[str, Any]]:
    """The values of a config by section and key, in the order of the file."""
    return {name: {key: getattr(getattr(config, name), key) for key in KEYS[name]} for name in KEYS}
