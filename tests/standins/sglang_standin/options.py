"""The command line: real SGLang options, the stand-in's own, and its misbehaviours.

Parsed by hand: argparse and dataclasses would double the start-up time of every stand-in process.
"""

from __future__ import annotations

from collections.abc import Iterator

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
ALIASES = {"tensor_parallel_size": "tp", "tp_size": "tp", "model": "model_path"}
# name -> needs a value
MISBEHAVIOURS = {
    "exit-at-once": True,
    "exit-while-loading": True,
    "never-listens": False,
    "stall-at": True,
    "skip-gpu": True,
    "no-memory": False,
    "early-health": False,
    "ignore-term": False,
    "workers-ignore-term": False,
    "hang-after": True,
    "health-lies": False,
    "slow-health": True,
    "unhealthy-forever": False,
    "port-moves": False,
    "term-status": True,
    "leave-orphans": False,
    "garbage-health": False,
    "huge-health": False,
    "redirect-health": False,
    "crash-after": True,
    "hostile-title": False,
    "listens-late": True,  # says that it serves so many seconds before it listens (vLLM 0.32: some milliseconds)
    "awaits-askers": False,  # no page of metrics is answered, and no end comes while somebody waits for one (llama.cpp 11549)
}


class UsageError(Exception):
    """The command line makes no sense."""


class Options:
    """Values with the real server's defaults; the type of a default is the type of the option."""

    # real
    model_path: str = "/models/stand-in"
    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 30000
    tp: int = 1
    context_length: int = 262144
    mem_fraction_static: float = 0.9
    max_running_requests: int = 64
    chunked_prefill_size: int = 8192
    api_key: str = ""
    admin_api_key: str = ""
    enable_metrics: bool = False
    skip_server_warmup: bool = False
    log_level_http: str = "info"
    # the stand-in's own
    load_seconds: float = 3.0
    title_delay: float = 0.0
    keep_environ: bool = False
    memory_per_gpu: str = "72GiB"
    no_devices: bool = False
    open_devices: str = "own"
    worker_sessions: str = "own"
    no_pdeathsig: bool = False
    warmup_seconds: float = 0.5
    health_latency: float = 0.0
    health_timeout: float = 20.0
    token_seconds: float = 0.02
    shutdown_wait: float = 15.0
    crash_wait: str = "5"
    bind_fail_wait: float = 2.0
    orphan_life: float = 600.0
    pids: str = ""

    def __init__(self) -> None:
        self.misbehaviours: dict[str, str] = {}
        self.unknown: list[str] = []

    def does(self, name: str) -> bool:
        """Whether the misbehaviour was asked for."""
        return name in self.misbehaviours

    def number(self, name: str) -> float:
        """The value of a misbehaviour as a number."""
        return float(self.misbehaviours[name])

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory_per_gpu)

    @property
    def model_name(self) -> str:
        return self.served_model_name or self.model_path


def parse_bytes(text: str) -> int:
    """`72GiB`, `512MiB` or a plain number of bytes."""
    factor = UNITS.get(text[-3:], 0)
    return int(float(text[:-3]) * factor) if factor else int(text)


def parse(argv: list[str]) -> Options:
    """Read the command line; unknown options are collected, not refused."""
    options = Options()
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        _take(options, name, value if equals else None, words)
    _check(options)
    return options


def _take(options: Options, name: str, value: str | None, words: Iterator[str]) -> None:
    attribute = name.removeprefix("--").replace("-", "_")
    attribute = ALIASES.get(attribute, attribute)
    if name == "--misbehave":
        _misbehave(options, _value(name, value, words))
    elif not name.startswith("--") or attribute not in Options.__annotations__:
        options.unknown.append(name)
    elif isinstance(default := getattr(Options, attribute), bool):
        setattr(options, attribute, True)
    else:
        setattr(options, attribute, _convert(name, type(default), _value(name, value, words)))


def _value(name: str, value: str | None, words: Iterator[str]) -> str:
    if value is None:
        value = next(words, None)
    if value is None:
        raise UsageError(f"argument {name}: expected one argument")
    return value


def _convert(name: str, kind: type, text: str) -> object:
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(f"argument {name}: invalid {kind.__name__} value: {text!r}") from error


def _misbehave(options: Options, text: str) -> None:
    name, _, value = text.partition("=")
    if name not in MISBEHAVIOURS:
        raise UsageError(f"argument --misbehave: invalid choice: {name!r}")
    if MISBEHAVIOURS[name] and not value:
        raise UsageError(f"argument --misbehave: {name} needs a value: {name}=VALUE")
    options.misbehaviours[name] = value


def _check(options: Options) -> None:
    if options.tp < 1:
        raise UsageError("argument --tp: must be at least 1")
    if options.worker_sessions not in ("own", "shared"):
        raise UsageError("argument --worker-sessions: own or shared")
    if options.open_devices not in ("own", "all"):
        raise UsageError("argument --open-devices: own or all")
    try:
        parse_bytes(options.memory_per_gpu)
    except ValueError as error:
        raise UsageError(f"argument --memory-per-gpu: {error}") from error
    if options.crash_wait != "never":
        _convert("--crash-wait", float, options.crash_wait)
    for name, value in options.misbehaviours.items():
        if MISBEHAVIOURS[name] and value != "kill":
            _convert(f"--misbehave {name}", float, value)
