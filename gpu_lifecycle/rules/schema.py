"""The config file of a managed unit: what may stand in it, and what is said when it is wrong.

The only module that imports pydantic, which costs more than all the rest of a hook: import it where a config is read
that has not been read before. Durations are seconds and sizes are bytes once parsed; in the file they are text with a unit
(rules/quantity.py).
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, Strict, ValidationError, create_model

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules import engines, shared_memory
from gpu_lifecycle.rules.config import SECTIONS, Config, from_sections
from gpu_lifecycle.rules.events import EVENTS
from gpu_lifecycle.rules.listening import parse_folder, parse_listening
from gpu_lifecycle.rules.quantity import WrongValueError, parse_duration, parse_size, show_duration
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.rules.toml_lines import Key, key_lines, line_of, read_toml

# Set by systemd or by the daemon for one process or one run; a fixed value would lie to whoever reads it.
_RESERVED = re.compile(r"NOTIFY_SOCKET|WATCHDOG_(USEC|PID)|INVOCATION_ID|LISTEN_(FDS|PID|FDNAMES)|GPU_LIFECYCLE_\w*")
_GPU = re.compile(
    r"[0-9]{1,4}|(GPU|MIG)-[0-9a-z-]{4,}|(PCI:)?([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?", re.IGNORECASE
)


def _some_time(value: object) -> float:
    seconds = parse_duration(value)
    if seconds > 0:
        return seconds
    raise WrongValueError("it must be longer than 0s", 'write it like "10s" or "2min"')


def _some_memory(value: object) -> int:
    size = parse_size(value)
    if size > 0:
        return size
    raise WrongValueError("it must be more than 0B", 'write it like "512MiB"')


def _min_used(value: object) -> Literal["auto"] | int:
    return "auto" if value == "auto" else _some_memory(value)


def _engine(value: object) -> str:
    if isinstance(value, str) and value in engines.ENGINES:
        return value
    raise WrongValueError(*_choice(list(engines.ENGINES), value))


def _claim(value: object) -> Literal["all"] | tuple[str | int, ...]:
    cure = 'write "all", or a list such as [0, 1] or ["GPU-5a0c…", "0000:3b:00.0"]'
    if value == "all":
        return "all"
    if not isinstance(value, list) or not value:
        raise WrongValueError('a claim is "all" or a list of GPUs', cure)
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (int, str)) or not _GPU.fullmatch(str(item)):
            raise WrongValueError(f"{_shown(item)} is no index, UUID or PCI address of a whole GPU, nor a MIG UUID", cure)
    if len({str(item).lower() for item in value}) < len(value):
        raise WrongValueError("it names one GPU twice", "name each GPU once")
    return tuple(value)


def _command(value: object) -> tuple[str, ...]:
    example = 'command = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]'
    if isinstance(value, str):
        raise WrongValueError("it is one text, and no shell splits it", _as_list(value) or f"write a list: {example}")
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise WrongValueError("it is not a list of texts", f"put every word in quotes, numbers too: {example}")
    if not value:
        raise WrongValueError("it is empty", f"write the program and its options: {example}")
    if not value[0].startswith("/"):
        name = printable(value[0], 60)
        raise WrongValueError(f'"{name}" is not an absolute path', f"write where it is; command -v {name} shows it")
    if any("\0" in word for word in value):
        raise WrongValueError("it has a NUL in a word, which no program can be given", "take it out")
    return tuple(value)


def _as_list(command: str) -> str:
    """The list that a shell would make of ``command``.

    Empty where that is unclear, or may hold a key or password.
    """
    if re.search("key|token|secret|passw", command, re.IGNORECASE):
        return ""
    try:
        words = ", ".join(f'"{word}"' for word in shlex.split(command))
    except ValueError:
        return ""
    return f"write a list: [{words}]" if len(words) <= 100 and "\\" not in words else ""


def _environment(value: object) -> dict[str, str]:
    """Values are never shown: they may be keys and passwords."""
    if not isinstance(value, dict):
        raise WrongValueError("it is not a table", 'write environment = { HF_HUB_OFFLINE = "1" }')
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise WrongValueError("that is no name of a variable", "letters, digits and _ only", (name,))
        if _RESERVED.fullmatch(name):
            raise WrongValueError("systemd and this daemon set it anew for each run", "leave it out", (name,))
        if not isinstance(text, str) or "\0" in text:
            raise WrongValueError("a variable is text without NUL", f'put it in quotes: {name} = "…"', (name,))
    return dict(value)


def _url(value: object) -> str:
    if not isinstance(value, str):
        raise WrongValueError("an address is text in quotes", 'write "http://127.0.0.1:30000"')
    try:
        engines.endpoint_of_url(value)
    except ConfigError as error:
        raise WrongValueError(error.message.partition(": ")[2], error.hint) from None
    return value


def _listen(value: object) -> str:
    parse_listening(value)
    return str(value)


def _folder(value: object) -> str:
    return parse_folder(value)


def _events(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise WrongValueError("it is not a list of events", 'write a list, such as ["engine-failed", "start-refused"]')
    for word in value:
        if not isinstance(word, str) or word not in EVENTS:
            near = difflib.get_close_matches(word.lower(), list(EVENTS), 1) if isinstance(word, str) else []
            cure = f'did you mean "{near[0]}"?' if near else "man gpu-lifecycle-events names all of them"
            raise WrongValueError(f"{_shown(word)} is no event", cure)
    return tuple(value)


def _key_file(value: object) -> str:
    cure = "write an absolute path, or the name of a credential that the unit loads (LoadCredential=engine-key:/etc/…)"
    if isinstance(value, str) and re.fullmatch(r"/[^\0]+|[A-Za-z0-9_.-]+", value) and value not in (".", ".."):
        return value
    raise WrongValueError("it is neither a path nor a credential's name", cure)


_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1, le=4096)]
_Time = Annotated[float, PlainValidator(parse_duration)]
_SomeTime = Annotated[float, PlainValidator(_some_time)]
_SomeMemory = Annotated[int, PlainValidator(_some_memory)]
_Command = Annotated[tuple[str, ...], PlainValidator(_command)]

# What may stand under each key of rules/config.py. The defaults are there.
_KINDS: dict[str, dict[str, Any]] = {
    "server": {
        "engine": Annotated[str, PlainValidator(_engine)],
        "command": _Command,
        "url": Annotated[str, PlainValidator(_url)] | None,
        "model": _Text | None,
        "draft_model": _Text | None,
        "tp": _Count | None,
        "api_key_file": Annotated[str, PlainValidator(_key_file)] | None,
        "environment": Annotated[dict[str, str], PlainValidator(_environment)],
        "shm_size": Annotated[Any, PlainValidator(shared_memory.parse)],
    },
    "gpus": {
        "claim": Annotated[Any, PlainValidator(_claim)],
        "count": _Count | None,
    },
    "sweep": {
        "policy": Literal["owned", "dedicated", "report"],
        "protect": Annotated[tuple[_Text, ...], Strict(False)],
        "term_grace": _Time,
        "exit_deadline": _SomeTime,
        "memory_deadline": _SomeTime,
        "free_below": _SomeMemory,
    },
    "ready": {
        "min_used": Annotated[Any, PlainValidator(_min_used)],
        "generate": bool,
        "stall": _SomeTime,
        "ceiling": _SomeTime,
    },
    "watch": {
        "interval": _SomeTime,
        "failures": _Count,
        "busy_grace": _Time,
        "timeout": _SomeTime,
    },
    "stop": {
        "drain": _Time,
        "before": _Command | None,
        "before_limit": _SomeTime,
    },
    "metrics": {
        "listen": Annotated[str, PlainValidator(_listen)] | None,
        "textfile": Annotated[str, PlainValidator(_folder)] | None,
    },
    "notify": {
        "command": _Command | None,
        "events": Annotated[tuple[str, ...], PlainValidator(_events)] | None,
        "limit": _SomeTime,
    },
}  # fmt: skip
_RULES = ConfigDict(strict=True, frozen=True, extra="forbid")


def _model(name: str) -> type[BaseModel]:
    """The schema of one section, with the defaults of its values. A key without a kind here is a defect."""
    kinds = {item.name: (_KINDS[name][item.name], _default(item)) for item in fields(SECTIONS[name])}
    return create_model(name, __config__=_RULES, **kinds)  # type: ignore[call-overload,no-any-return]


def _default(item: Any) -> Any:
    if item.default_factory is not MISSING:
        return Field(default_factory=item.default_factory)
    return ... if item.default is MISSING else item.default


_MODELS = {name: _model(name) for name in SECTIONS}
_FILE: Any = create_model(  # type: ignore[call-overload]
    "config",
    __config__=_RULES,
    **{name: (model, ... if name == "server" else Field(default_factory=model)) for name, model in _MODELS.items()},
)


def json_schema(generator: Any) -> dict[str, Any]:
    """The JSON schema of a file, by a generator of pydantic's that knows the functions above."""
    found: dict[str, Any] = _FILE.model_json_schema(schema_generator=generator)
    return found


@dataclass(frozen=True, slots=True)
class _Problem:
    key: Key
    message: str
    cure: str = ""


def parse_config(text: str, file: str) -> Config:
    """Read a whole config; ``file`` is named in errors.

    Raises one ConfigError for the first problem in the order of the file, with file, line, dotted key and
    cure; its hint says how many more there are.
    """
    data = read_toml(text, file)
    try:
        checked = _FILE.model_validate(data)
    except ValidationError as error:
        problems = [_explain(entry) for entry in error.errors(include_url=False)]
    else:
        config = from_sections({name: dict(getattr(checked, name)) for name in SECTIONS})
        problems = list(_cross_checks(config))
        if not problems:
            return config
    raise _first(problems, text, file)


def _first(problems: list[_Problem], text: str, file: str) -> ConfigError:
    lines = key_lines(text)
    placed = [(line_of(lines, problem.key), problem) for problem in problems]
    line, problem = min(placed, key=lambda place: place[0] or len(text))  # min keeps the first of equals
    more = f"and {len(problems) - 1} more in this file" if len(problems) > 1 else ""
    hint = "; ".join(part for part in (problem.cure, more) if part)
    return ConfigError(problem.message, hint=hint, file=file, line=line, key=_dotted(problem.key))


def _dotted(key: Key) -> str:
    return ".".join(p if re.fullmatch(r"[A-Za-z0-9_-]+", p) else f'"{printable(p, 60)}"' for p in key)


def _explain(entry: Mapping[str, Any]) -> _Problem:
    """A problem that pydantic found, in our words."""
    key = tuple(part for part in entry["loc"] if isinstance(part, str))
    kind, value = entry["type"], entry["input"]
    if kind == "missing":
        return _missing(key)
    if kind == "extra_forbidden":
        return _Problem(key, f'cannot use "{printable(key[-1], 60)}": unknown key', _nearest(key))
    wrong = entry.get("ctx", {}).get("error")
    if isinstance(wrong, WrongValueError):
        # a command or a variable may hold a key or a password, and a key may have been written where its file should be
        shown = "this value" if key[1:] in (("command",), ("environment",), ("url",), ("api_key_file",)) else _shown(value)
        return _Problem((*key, *wrong.at), f"cannot use {shown}: {wrong.reason}", wrong.cure)
    reason, cure = _REASONS.get(kind, (entry["msg"], ""))
    if kind == "literal_error":
        reason, cure = _choice(list(get_args(_KINDS[key[0]][key[1]])), value)
    return _Problem(key, f"cannot use {_shown(value)}: {reason}", cure)


_REASONS = {
    "string_type": ("it is not text", "put it in quotes"),
    "string_too_short": ("it is empty", "say it, or leave the key out"),
    "int_type": ("it is not a whole number", "write it like 8, without quotes or a point"),
    "greater_than_equal": ("it is below 1", "write 1 or more, or leave the key out"),
    "less_than_equal": ("it is above 4096", "write a smaller number, or leave the key out"),
    "bool_type": ("it is not true or false", "write true or false, without quotes"),
    "tuple_type": ("it is not a list", 'write a list, such as ["nvidia-dcgm.service"]'),
    "model_type": ("it is not a table", "write the section's name in brackets on a line of its own"),
}


def _missing(key: Key) -> _Problem:
    key = key if len(key) > 1 else (*key, "command")
    cure = 'write [server] and below it command = ["/absolute/path/of/the/program", "--option", "value"]'
    return _Problem(key, "cannot tell what to run: the key is missing", cure)


def _nearest(key: Key) -> str:
    """The right name near an unknown one: in its own section, among the sections, or the section it belongs to."""
    section, name = ".".join(key[:-1]), key[-1]
    known = list(_KINDS[section]) if section in _KINDS else list(_KINDS)
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, 1)
    if near:
        return f'did you mean "{near[0]}"?'
    homes = [f"[{home}]" for home, kinds in _KINDS.items() if name in kinds]
    if homes:
        return f"it belongs into {homes[0]}"
    if name in _KINDS:
        return f"it is a section: write [{name}] on a line of its own"
    return f"known here: {', '.join(known)}"


def _choice(choices: list[str], value: object) -> tuple[str, str]:
    """Reason and cure for a value that is none of ``choices``."""
    near = difflib.get_close_matches(value.lower(), choices, 1) if isinstance(value, str) else []
    reason = f"it is none of {', '.join(choices)}"
    return reason, f'did you mean "{near[0]}"?' if near else f'write it like "{choices[0]}"'


def _shown(value: object) -> str:
    """A value as the file has it, shortened; a number too long to be printed has no form worth showing."""
    if isinstance(value, str):
        return f'"{printable(value, 60)}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64):
        return str(value)
    return "this list" if isinstance(value, list) else "this value"


def _cross_checks(config: Config) -> Iterator[_Problem]:
    """What no single key can tell."""
    for read in (config.server.endpoint, config.server.tensor_parallel):
        try:
            read()
        except ConfigError as error:
            yield _Problem(tuple(error.key.split(".")), error.message, error.hint)
    claim, count = config.gpus.claim, config.gpus.count
    if claim != "all" and count is not None and count != len(claim):
        reason = f"cannot use {count}: the claim names {len(claim)} GPUs"
        yield _Problem(("gpus", "count"), reason, f"write {len(claim)}, or leave count out")
    if config.metrics.listen and parse_listening(config.metrics.listen).port in _ports(config):
        yield _Problem(("metrics", "listen"), "cannot use this port: the engine itself answers there", "choose another port")
    if config.ready.ceiling < config.ready.stall:
        ceiling, stall = show_duration(config.ready.ceiling), show_duration(config.ready.stall)
        reason = f"cannot use {ceiling}: it is shorter than ready.stall, {stall}, which then never counts"
        yield _Problem(("ready", "ceiling"), reason, "make ceiling the longer of the two")


def _ports(config: Config) -> set[int]:
    try:
        return {config.server.endpoint().port} - {0}
    except ConfigError:
        return set()  # which is told of its own
