"""The shapes of what commands print with ``--json``, by the words of the command: one entry for each.

Bytes and seconds are plain numbers; null is unknown, never 0. Fields may be added; these keep their names and kinds. The text
below a field is its description in the schema.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from gpu_lifecycle.facts import Level, OwnerKind, Phase, Verdict
from gpu_lifecycle.rules.cause import Outcome

Schema = Literal[1]


class Owner(TypedDict):
    kind: OwnerKind
    name: str


class Holder(TypedDict):
    pid: int
    start_ticks: int
    """Clock ticks since boot at which it started: with the boot and the pid, its identity."""
    command: str
    user: str
    how: list[Literal["fd", "map", "nvml"]]
    """By what it is known to hold a GPU."""
    gpus: list[str]
    """UUIDs."""
    memory: dict[str, int | None]
    """Bytes by UUID."""
    owner: Owner
    verdict: Verdict
    rule: str
    why: str


class Sight(TypedDict):
    full: bool
    limits: list[str]
    """Why not everything could be seen."""


class Holders(TypedDict):
    schema: Schema
    sight: Sight
    holders: list[Holder]


class Health(TypedDict):
    state: Literal["ok", "warn", "bad", "unknown"]
    reasons: list[str]


class Gpu(TypedDict):
    uuid: str
    index: int
    label: str
    minor: int | None
    pci: str
    name: str
    instance_of: str | None
    """UUID of the whole GPU, of an instance (MIG)."""
    divided: bool
    memory_total: int | None
    """Bytes."""
    memory_used: int | None
    """Bytes."""
    memory_unexplained: int | None
    """Bytes that no visible process explains."""
    health: Health
    claimed_by: list[str]
    """Units."""


class Gpus(TypedDict):
    schema: Schema
    gpus: list[Gpu]


class Finding(TypedDict):
    level: Level
    code: str
    message: str
    hint: str | None
    file: str | None
    key: str | None


class Check(TypedDict):
    schema: Schema
    ok: bool
    """Whether a start would go through."""
    findings: list[Finding]


class Swept(Holder):
    result: Literal["ended", "killed", "survived"] | None


class Sweep(TypedDict):
    schema: Schema
    outcome: Literal["free", "conflict", "stuck", "unknown"]
    text: str
    holders: list[Swept]
    gpus: list[Gpu]
    seconds: float


class UnitGpu(TypedDict):
    uuid: str
    index: int
    label: str
    memory_total: int | None
    """Bytes."""
    memory_used: int | None
    """Bytes."""
    memory_own: NotRequired[int | None]
    """Bytes that the unit's own processes hold; only the daemon says it, not the hooks."""


class Probe(TypedDict):
    probe: str
    ok: bool
    code: int | None
    text: str
    seconds: float


class End(TypedDict):
    reason: str
    text: str
    exit_code: NotRequired[str]
    """How the main process ended, in systemd's words: exited, killed, dumped."""
    exit_status: NotRequired[str]
    """Its exit status, or the name of the signal."""


class Systemd(TypedDict):
    load: str
    active: str
    sub: str
    result: str
    restarts: int


class Status(TypedDict):
    schema: Schema
    unit: str
    run: str | None
    phase: Phase
    since: float | None
    """When the phase began, in seconds since 1970."""
    progress: float | None
    """How far the load is, from 0 to 1."""
    eta: float | None
    """Seconds until it is ready."""
    text: str
    gpus: list[UnitGpu]
    probes: list[Probe]
    last_end: End | None
    systemd: Systemd | None
    """Null where systemd could not be asked."""


class Statuses(TypedDict):
    """Without UNIT: all managed units."""

    schema: Schema
    units: list[Status]


class ConfigValue(TypedDict):
    key: str
    value: bool | int | float | str | list[str | int] | dict[str, str] | None
    """Durations in seconds, sizes in bytes; null where nothing is set, or where it is hidden."""
    hidden: bool
    """True where the value, or a part of it, may be a password and is not shown."""
    source: Literal["file", "command", "environment", "engine", "default"]
    file: str | None
    line: int | None
    note: str | None
    """The option or variable that said it, or what holds where nothing is set."""


class ConfigShow(TypedDict):
    schema: Schema
    unit: str
    file: str
    values: list[ConfigValue]


class Running(TypedDict):
    run: str
    phase: str


class Run(TypedDict):
    run: str
    """systemd's INVOCATION_ID of it."""
    began: float | None
    """Seconds since 1970, as the other times."""
    ready: float | None
    ended: float | None
    seconds: float | None
    """How long it was there."""
    phases: dict[str, float]
    """Seconds by phase."""
    outcome: Outcome | None
    """Null where it has not ended."""
    cause: str | None
    """A code of docs/causes.md."""
    text: str | None
    times: int
    """How many runs in a row it stands for: a start that is refused all night is one."""
    first: float | None
    """When the first of those was."""
    systemd: str | None
    """systemd's own word on the end."""


class Runs(TypedDict):
    schema: Schema
    unit: str
    running: Running | None
    """The run that is alive now."""
    runs: list[Run]
    """Newest first."""


class WhyCause(TypedDict):
    code: str
    """Of docs/causes.md."""
    text: str
    cure: str


class Before(TypedDict):
    count: int
    """How many of the earlier runs have ended for the same cause."""
    of: int
    last: float | None
    """When the last of them ended."""


class Why(TypedDict):
    schema: Schema
    unit: str
    running: Running | None
    run: Run | None
    """Null where no run has ended."""
    cause: WhyCause | None
    evidence: list[str]
    """The strongest first."""
    incident: str | None
    """The folder with more evidence."""
    before: Before


class Span(TypedDict):
    name: str
    began: float
    """Seconds since the run began, as all times here."""
    ended: float


class StartSample(TypedDict):
    at: float
    memory: dict[str, int | None]
    """Bytes of the unit's own processes by UUID."""


class StartEvent(TypedDict):
    at: float
    event: str
    text: str


class StartGpu(TypedDict):
    uuid: str
    index: int
    label: str


class EarlierStart(TypedDict):
    run: str
    ready: float


class Timeline(TypedDict):
    schema: Schema
    unit: str
    run: str
    began: float | None
    """Seconds since 1970."""
    ready: float | None
    """Seconds from the beginning of the run to READY; null where it was not ready."""
    text: str
    note: str | None
    """Why there are no samples, where there are none."""
    seconds: float
    """How long the time is that the picture shows."""
    phases: list[Span]
    steps: list[Span]
    """What the engine did, by its own lines."""
    gpus: list[StartGpu]
    needed: int | None
    """Bytes on each GPU that READY asks for."""
    samples: list[StartSample]
    """Empty where none were recorded; else to READY, or the end."""
    events: list[StartEvent]
    earlier: list[EarlierStart]
    """Up to five runs before it that were ready, the newest first."""


OUTPUTS: dict[str, object] = {
    "holders": Holders,
    "gpus": Gpus,
    "check": Check,
    "sweep": Sweep,
    "status": Status | Statuses,
    "config show": ConfigShow,
    "why": Why,
    "runs": Runs,
    "timeline": Timeline,
}
