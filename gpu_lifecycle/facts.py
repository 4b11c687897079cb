"""What was seen, as frozen values. No behaviour beyond reading them; bytes and seconds are plain numbers.

Unknown is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

HANDOVER = "GPU_LIFECYCLE_HANDOVER"  # in a daemon's environment: the descriptor that holds what the program before it left


@dataclass(frozen=True, slots=True)
class UnitName:
    """A managed unit: ``sglang-kimi`` and ``sglang-kimi.service`` are the same one (systemd.unit(5))."""

    name: str

    @property
    def service(self) -> str:
        """The full unit name, as systemd spells it."""
        return f"{self.name}.service"


@dataclass(frozen=True, slots=True)
class Layout:
    """Every path of the project, below one root (``/`` on a machine, a folder in an image or a test)."""

    root: str = "/"

    def under(self, *parts: str) -> str:
        """A path below the root."""
        return "/".join([self.root.rstrip("/"), *(part.strip("/") for part in parts)])

    def config(self, unit: UnitName) -> str:
        return self.under("etc/gpu-lifecycle", f"{unit.name}.toml")

    @property
    def config_dir(self) -> str:
        return self.under("etc/gpu-lifecycle")

    @property
    def run_dir(self) -> str:
        return self.under("run/gpu-lifecycle")

    def unit_run_dir(self, unit: UnitName) -> str:
        return self.under("run/gpu-lifecycle", unit.name)

    def state(self, unit: UnitName) -> str:
        return self.under("run/gpu-lifecycle", unit.name, "state.json")

    def kept_config(self, unit: UnitName) -> str:
        """The config as it was last read, for who reads the same text again."""
        return self.under("run/gpu-lifecycle/.configs", f"{unit.name}.json")

    def runs(self, unit: UnitName) -> str:
        """The ids of the unit's runs. No unit's own folder: no unit's name begins with a dot."""
        return self.under("run/gpu-lifecycle/.runs", f"{unit.name}.json")

    @property
    def released(self) -> str:
        """Until when somebody wants NVML let go of (``gpus --release``)."""
        return self.under("run/gpu-lifecycle/.released.json")

    def lock(self, uuid: str) -> str:
        return self.under("run/gpu-lifecycle", f"gpu-{uuid}.lock")

    @property
    def kernel_log(self) -> str:
        return self.under("dev/kmsg")

    def var_dir(self, unit: UnitName) -> str:
        return self.under("var/lib/gpu-lifecycle", unit.name)

    def loads(self, unit: UnitName) -> str:
        """How the unit's last loads went."""
        return self.under("var/lib/gpu-lifecycle", unit.name, "loads.json")


class Verdict(StrEnum):
    """What is to happen to one holder."""

    IGNORE = "ignore"
    SPARE = "spare"
    REAP = "reap"
    CONFLICT = "conflict"


class OwnerKind(StrEnum):
    UNIT = "unit"
    SESSION = "session"
    CONTAINER = "container"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who answers for a process, read from its cgroup.

    ``alive`` is None where it could not be found out (no bus); ``outside`` marks a cgroup that lies above our own
    cgroup namespace, so that nothing here can tell who owns it.
    """

    kind: OwnerKind
    name: str = ""
    alive: bool | None = None
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for ever: a pid alone is reused (proc_pid_stat(5): field 22, clock ticks after boot)."""

    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Process:
    """One process as ``/proc`` shows it."""

    identity: Identity
    ppid: int
    state: str
    command: str  # the title, made printable
    executable: str  # resolved link, "" where unreadable
    uid: int
    user: str
    cgroup: str
    tty: int
    login_uid: int | None  # None: not from a login (proc_pid_loginuid: 4294967295)
    marker_unit: str = ""  # GPU_LIFECYCLE_UNIT of the first environment
    marker_run: str = ""  # GPU_LIFECYCLE_RUN, else INVOCATION_ID, of the first environment
    container: str = ""  # named where the process lives in a child PID namespace
    devices: frozenset[int] = frozenset()  # st_rdev numbers held
    how: tuple[str, ...] = ()  # "fd", "map"
    readable: bool = True  # its first environment could be read
    blocks: bool = False  # a read of its command line or environment does not come back

    @property
    def pid(self) -> int:
        return self.identity.pid


@dataclass(frozen=True, slots=True)
class Node:
    """An NVIDIA device node: ``minor`` is the GPU's minor for ``nvidiaN``, None for ctl, uvm and the like."""

    path: str
    rdev: int
    minor: int | None


@dataclass(frozen=True, slots=True)
class Sight:
    """How much could be seen. Nothing is called free, and nothing is killed, on partial sight."""

    limits: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        return not self.limits

    def plus(self, *limits: str) -> Sight:
        return Sight(self.limits + tuple(limit for limit in limits if limit not in self.limits))


@dataclass(frozen=True, slots=True)
class Scan:
    """All holders found in one pass over ``/proc``, and the processes of one cgroup."""

    holders: tuple[Process, ...]
    members: tuple[Process, ...]  # live processes of the unit's cgroup, whether they hold or not
    sight: Sight
    processes: int = 0  # how many were looked at
    blocked: tuple[Identity, ...] = ()  # those that block whoever looks at their memory


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record of the kernel log, of the kernel's own (not what user space wrote there).

    ``sequence`` is its identity in one boot. ``seconds`` are those of the log's own clock, which drifts from the
    monotonic one: for showing only.
    """

    sequence: int
    seconds: float
    level: int  # syslog(3): 0 emergency to 7 debug
    text: str


PciAddress = tuple[int, int, int]  # domain, bus, device


@dataclass(frozen=True, slots=True)
class XidLine:
    """What the NVIDIA driver said of one GPU, or of one NVSwitch, in one kernel record.

    ``pid`` is a number of the host's, wherever it is read. ``code`` None: lost, and said so without a number.
    """

    sequence: int
    code: int | None
    pci: PciAddress
    text: str  # the whole line, made printable
    switch: bool = False
    pid: int | None = None
    name: str = ""
    instance: int | None = None  # of a GPU that is divided (MIG): GPU instance, compute instance
    compute_instance: int | None = None
    cause: int | None = None  # the earlier Xid that this one follows from
    recovery: int | None = None  # what the driver now asks for, where it says so (nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)


class ErrorClass(StrEnum):
    """What an NVML return code means for us."""

    PERMANENT = "permanent"
    RETRY = "retry"
    DEGRADED = "degraded"
    HOST_ACTION = "host-action"


@dataclass(frozen=True, slots=True)
class GpuError:
    """Why something about the GPUs is not known. ``code`` is NVML's (nvml.h), or a word of the helper's own."""

    code: str
    text: str
    kind: ErrorClass
    cure: str = ""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One entry of NVML's process lists; ``memory`` is None where the driver says "not available"."""

    pid: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``used`` is what is taken above the driver's own share; None: could not be read (see ``error``)."""

    uuid: str
    index: int
    minor: int | None
    pci: str
    name: str
    total: int | None
    used: int | None
    processes: tuple[GpuProcess, ...] | None
    error: GpuError | None = None
    free: int | None = None  # what NVML says can still be had; less than total - used, for the driver keeps a share
    divided: bool = False  # into instances (MIG): it is not to be used as a whole, and its own figures are not asked for
    parent: str = ""  # of an instance: the UUID of the GPU, whose index, minor and address these are
    instance: int | None = None  # ... its number there, as Xid lines have it
    compute_instance: int | None = None  # ... and that of its compute instance in it

    @property
    def board(self) -> str:
        """The UUID of the GPU that this is, or is an instance of."""
        return self.parent or self.uuid

    @property
    def label(self) -> str:
        """What it is called in tables and texts: its index; an instance 0:3, or 0:3:1, by the GPU, GI and CI of nvidia-smi."""
        parts = (self.index, self.instance, self.compute_instance or None)
        return ":".join(str(part) for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class GpuView:
    """All GPUs at one moment, or why there is no view. ``at`` is seconds on the monotonic clock."""

    gpus: tuple[Gpu, ...]
    driver: str = ""
    error: GpuError | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """What one GPU says of its fitness: ``values`` by the name of the item, None where it knows no such thing.

    ``errors``: items that could not be read; ``error``: the GPU itself could not be reached.
    """

    uuid: str
    index: int
    values: Mapping[str, int | None] = field(default_factory=dict)
    errors: Mapping[str, GpuError] = field(default_factory=dict)
    error: GpuError | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """One process with its verdict; ``rule`` names the rule that gave it, ``why`` is its evidence in words."""

    process: Process
    owner: Owner
    verdict: Verdict
    rule: str
    why: str
    gpus: tuple[str, ...] = ()  # UUIDs of the GPUs whose nodes it holds
    memory: dict[str, int | None] = field(default_factory=dict)  # UUID to bytes, as NVML says


class Level(StrEnum):
    ERROR = "error"
    WARN = "warn"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of ``check``."""

    level: Level
    code: str
    message: str
    hint: str = ""
    file: str = ""
    key: str = ""


class Phase(StrEnum):
    """Where a managed unit is (``status --json``)."""

    DOWN = "down"
    PRE_START = "pre-start"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    SUSPECT = "suspect"
    DRAINING = "draining"
    STOPPING = "stopping"
    POST_STOP = "post-stop"
    FAILED = "failed"
