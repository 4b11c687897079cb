"""The config of a managed unit as plain values, with their defaults. Durations are seconds, sizes are bytes.

What may stand in the file, and what is said when it is wrong, is rules/schema.py: it needs pydantic, which costs more than all
the rest of a hook, so only a file that has not been read before needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from gpu_lifecycle.rules import engines
from gpu_lifecycle.rules.shared_memory import DEFAULT


@dataclass(frozen=True)
class Server:
    """``[server]``: what to run.

    ``url``, ``model``, ``draft_model`` and ``tp`` override what the command says. ``api_key_file`` holds the key that our own
    requests need: an absolute path, or the name of a systemd credential (LoadCredential=). ``shm_size``: of the unit's own
    ``/dev/shm``, in bytes or as a share of the memory (``"50%"``).
    """

    command: tuple[str, ...]
    engine: str = "sglang"
    url: str | None = None
    model: str | None = None
    draft_model: str | None = None
    tp: int | None = None
    api_key_file: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    shm_size: str | int = DEFAULT

    @property
    def preset(self) -> engines.Engine:
        return engines.ENGINES[self.engine]

    def endpoint(self) -> engines.Endpoint:
        """Where the server answers: ``url``, else what the command says.

        Raises ConfigError (parse_config asked once).
        """
        if self.url:
            return engines.endpoint_of_url(self.url)
        return engines.endpoint(self.preset, self.command, self.environment)

    def target(self) -> str | None:
        """Path or name of the model that is served; None: not known."""
        return self.model or engines.model_of(self.preset, self.command, self.environment)

    def draft(self) -> str | None:
        """Path or name of the draft model; None: no speculative decoding with a model of its own."""
        return self.draft_model or engines.draft_of(self.preset, self.command)

    def served_name(self) -> str | None:
        """The name that requests use for the model; None: not known."""
        named = engines.option(self.command, self.preset.name_options)
        return named or self.target()

    def key_file(self, own: Mapping[str, str]) -> str | None:
        """The file with the engine's API key; None for none, "" for a credential of systemd's that is not there.

        ``own``: the daemon's environment, which says where the unit's credentials are (systemd.exec(5), CREDENTIALS_DIRECTORY).
        """
        named = self.api_key_file
        if named is None:
            return engines.option(self.command, self.preset.key_file_options)
        if "/" in named:
            return named
        folder = own.get("CREDENTIALS_DIRECTORY")
        return f"{folder}/{named}" if folder else ""

    def given_key(self, own: Mapping[str, str]) -> str:
        """The engine's API key as the command or its environment says it; "" where neither does."""
        variable = self.preset.key_env
        said = engines.option(self.command, self.preset.key_options) or self.environment.get(variable) or own.get(variable, "")
        return said.split(",")[0] if self.preset.keys_in_one else said

    def tensor_parallel(self) -> int | None:
        """Over how many GPUs each layer is split; None: the engine decides.

        Raises ConfigError like ``endpoint``.
        """
        return self.tp or engines.tp_of(self.preset, self.command, self.environment)

    def drains(self) -> bool:
        """True where SIGTERM lets running requests finish."""
        return engines.drains(self.preset, self.command)


@dataclass(frozen=True)
class Gpus:
    """``[gpus]``: which GPUs the unit uses, and how many must be there (None: any number)."""

    claim: Literal["all"] | tuple[str | int, ...] = "all"
    count: int | None = None


@dataclass(frozen=True)
class Sweep:
    """``[sweep]``: what is reaped before a start and after a stop, and how long that may take."""

    policy: Literal["owned", "dedicated", "report"] = "owned"
    protect: tuple[str, ...] = ()
    term_grace: float = 10.0
    exit_deadline: float = 30.0
    memory_deadline: float = 120.0
    free_below: int = 512 << 20


@dataclass(frozen=True)
class Ready:
    """``[ready]``: when the server counts as ready, and when waiting for it is given up."""

    min_used: Literal["auto"] | int = "auto"
    generate: bool = True
    stall: float = 600.0
    ceiling: float = 3600.0


@dataclass(frozen=True)
class Watch:
    """``[watch]``: how a ready server is watched."""

    interval: float = 5.0
    failures: int = 3
    busy_grace: float = 300.0
    # above the 20 s after which SGLang's /health says 503 by itself: a shorter wait would only ever see
    # silence
    timeout: float = 25.0


@dataclass(frozen=True)
class Stop:
    """``[stop]``: how long running requests may finish before the server is ended.

    ``before`` is run first, for at most ``before_limit``, to keep new requests away.
    """

    drain: float = 120.0
    before: tuple[str, ...] | None = None
    before_limit: float = 10.0


@dataclass(frozen=True)
class Metrics:
    """``[metrics]``: where Prometheus finds what the daemon sees (None: nowhere).

    ``listen`` is what rules/listening.py reads, ``textfile`` the folder of node_exporter's textfile collector.
    """

    listen: str | None = None
    textfile: str | None = None


@dataclass(frozen=True)
class Notify:
    """``[notify]``: a command that is run on ``events`` (None: those of priority warning and worse), for at most ``limit``."""

    command: tuple[str, ...] | None = None
    events: tuple[str, ...] | None = None
    limit: float = 10.0


@dataclass(frozen=True)
class Config:
    """A whole config file."""

    server: Server
    gpus: Gpus = field(default_factory=Gpus)
    sweep: Sweep = field(default_factory=Sweep)
    ready: Ready = field(default_factory=Ready)
    watch: Watch = field(default_factory=Watch)
    stop: Stop = field(default_factory=Stop)
    metrics: Metrics = field(default_factory=Metrics)
    notify: Notify = field(default_factory=Notify)


SECTIONS: dict[str, type[Any]] = {
    "server": Server, "gpus": Gpus, "sweep": Sweep, "ready": Ready, "watch": Watch, "stop": Stop, "metrics": Metrics,
    "notify": Notify,
}  # fmt: skip


def from_sections(sections: Mapping[str, Mapping[str, Any]]) -> Config:
    """A config of values that have been checked, each section by its name. Raises TypeError for a key that is none."""
    return Config(**{name: SECTIONS[name](**section) for name, section in sections.items()})


def plain(config: Config) -> dict[str, dict[str, Any]]:
    """The config as JSON can hold it."""
    return asdict(config)


def from_plain(document: Any) -> Config:
    """What ``plain`` gave, back from JSON, whose lists were tuples. Raises ValueError where it is something else."""
    try:
        sections = {name: {key: _tuple(value) for key, value in document[name].items()} for name in SECTIONS}
        if any(sections[name].keys() != {item.name for item in fields(kind)} for name, kind in SECTIONS.items()):
            raise ValueError("its keys are those of another version")
        return from_sections(sections)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"it is no config: {error!r}") from error


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
