"""What of this machine can spoil a start or a run: a table of checks over what was read of it. Pure.

Nearly all is a warning: how much an engine needs, nobody can tell for certain before it runs. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules.quantity import show_count, show_duration, show_size
from gpu_lifecycle.rules.sandbox import SHM
from gpu_lifecycle.rules.text import printable

KEY = "server.command"
GIB = 1 << 30
MIB = 1 << 20
CODES = {
    "shm-small": "the unit's /dev/shm is too small for what the workers of an engine pass each other there",
    "shm-full": "the machine's /dev/shm, which the unit uses, is nearly full: an engine that runs out dies of SIGBUS",
    "limit-low": "a limit of the unit is below what engines need",
    "ram-short": "there is less free memory than the workers and the shards that they read at once take",
    "page-cache": "the weights are larger than this machine's memory: every load reads them from disk again",
    "memory-max": "MemoryMax= of the unit is below what the workers and the shards that they read at once take",
    "swap-full": "the swap is nearly used up: this machine is short of memory",
    "hugepages": "the engine is told to use huge pages, and there are none",
    "disk-short": "a file system that the unit writes to is nearly full",
    "cache-read-only": "a folder that the engine is to keep files in is read-only for the unit",
    "node-denied": "the unit's user may not open a node of the GPUs",
    "not-as-user": "what the unit's user may do is not known: only root can try it",
    "no-user": "the unit's user does not exist",
    "port-taken": "something else has the engine's port",
    "port-privileged": "the engine's port is one that only root may use",
    "host-not-here": "the address that the engine is to listen on is not one of this machine's",
    "remove-ipc": "logind removes the unit's shared memory when its user logs out",
    "needrestart": "needrestart would restart the unit when a library is upgraded",
    "driver-upgrades": "NVIDIA's libraries are upgraded automatically, and then do not fit the loaded driver",
    "journal-limit": "journald drops lines of the engine when it writes many, the last ones before a crash among them",
    "time-short": "a time limit is too short for a model of this size",
    "key-visible": "an API key stands on the command line, which every user of the machine can read",
    "key-file": "the file of API keys is not there, or others can read it",
    "host-unread": "something of the machine could not be read: it is not judged",
}

NOFILE = 65535  # what SGLang and vLLM raise their soft limit to (set_ulimit)
MEMLOCK = GIB  # RDMA registers its buffers; GPU memory and pinned host memory do not count
THREADS_PER_RANK = 512  # imports, OpenMP, NCCL, compile workers: 200 to 500 were seen
SHM_ONE, SHM_MANY = 64 * MIB, GIB  # NCCL's guide asks for 1 GiB (--shm-size=1g); one GPU needs no NCCL
RANK_MEMORY = 3 * GIB  # resident, CUDA's libraries among it, beside the shard that a rank is reading
CACHE_FREE, STATE_FREE = 2 * GIB, 100 * MIB  # compiled kernels of one model take about 1 GiB
FILES_FREE = 1000
SLOW_READ = 512 * MIB  # bytes a second: the slowest disk or network that people load large models from
VLLM_READY = 600  # seconds: vLLM's default of VLLM_ENGINE_READY_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Space:
    """One file system, by a folder on it. ``files`` are those that can still be made; None: it does not count them.

    ``device`` tells file systems apart. ``writable`` None: not known.
    """

    path: str
    what: str
    total: int
    free: int
    files: int | None = None
    device: int = 0
    writable: bool | None = None
    least: int = CACHE_FREE


@dataclass(frozen=True, slots=True)
class Memory:
    """``/proc/meminfo``, and whether transparent huge pages are to be had (``thp``: always, madvise, never, "")."""

    total: int
    available: int
    swap: int = 0
    swap_free: int = 0
    huge: int = 0
    huge_free: int = 0
    thp: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    """A node that the unit's user cannot open, and whose it is."""

    path: str
    mode: int
    owner: str
    group: str


@dataclass(frozen=True, slots=True)
class Port:
    """A port that the engine will listen on. ``error``: why a socket like the engine's could not be bound, "" where it could.

    ``taken`` is True where it is in use, ``who`` then names who has it, as far as can be seen.
    """

    host: str
    number: int
    what: str = "the engine's port"
    error: str = ""
    taken: bool = False
    who: str = ""
    privileged: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of the unit; ``value`` None: unlimited. ``capped``: it is less than its unit says, for pid 1 has no more."""

    key: str
    value: int | None
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """What was read. None and "": not known, so not judged."""

    unit: str = ""
    user: str = ""
    user_known: bool = True
    tried: bool = True  # False: what that user may do could not be tried
    gpus: int = 1
    weights: int | None = None
    shard: int = 0  # the largest one
    shm: Space | None = None
    own_shm: bool = False  # the unit has one for itself
    memory: Memory | None = None
    memory_max: int | None = None
    limits: Mapping[str, Limit] = field(default_factory=dict)
    threads: int | None = None  # TasksMax=, or what the kernel allows at all
    huge: str = ""  # what asks for huge pages: "hugetlb" or "thp", and by which variable
    huge_by: str = ""
    disks: tuple[Space, ...] = ()
    denied: tuple[Denied, ...] = ()
    ports: tuple[Port, ...] = ()
    remove_ipc: str = ""  # the login user that logind would remove the shared memory of
    needrestart: str = ""
    upgrades: tuple[str, ...] = ()
    journal_limit: tuple[float, int] | None = None  # seconds and lines, where it applies to the unit
    ceiling: float = 0.0
    vllm_ready: float | None = None
    key_visible: bool = False
    key_file: str = ""
    key_problem: str = ""
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def need(self) -> int:
        """Memory that a load takes at the least: each worker, and the shard that it reads."""
        return self.gpus * (RANK_MEMORY + self.shard)

    @property
    def need_shown(self) -> str:
        return f"{show_count(self.gpus, 'worker')} x ({show_size(RANK_MEMORY)} + a shard of {show_size(self.shard)})"


Found = Iterator[Finding]


def warn(code: str, text: str, hint: str = "", file: str = "", key: str = "") -> Finding:
    return Finding(Level.WARN, code, text, hint, file, key)


def _shm(host: Host) -> Found:
    if host.shm is None:
        return
    need = SHM_MANY if host.gpus > 1 else SHM_ONE
    whose = f"the unit's own {SHM}" if host.own_shm else SHM
    cure = f"TemporaryFileSystem={SHM}:mode=1777,size=50%"
    total, needs = show_size(host.shm.total), f"an engine on {show_count(host.gpus, 'GPU')} needs {show_size(need)}"
    if host.shm.total < need:
        text = f"{whose} has {total}, and {needs}"
        yield warn("shm-small", text, f"systemctl edit {host.unit}: {cure}", key="TemporaryFileSystem")
    elif not host.own_shm and host.shm.free < need:
        text = f"{whose} has {show_size(host.shm.free)} free of {total}, and {needs}"
        yield warn("shm-full", text, f"ls -l {SHM}; or give the unit its own: {cure}", SHM)


_LIMITS = {
    "LimitNOFILE": (NOFILE, "open files", "1048576"),
    "LimitMEMLOCK": (MEMLOCK, "bytes of locked memory", "infinity"),
}


def _limits(host: Host) -> Found:
    for key, (least, what, cure) in _LIMITS.items():
        limit = host.limits.get(key)
        if limit and limit.value is not None and limit.value < least:
            yield _low(host, key, f"{limit.value} {what}", str(least), limit, cure)
    need = host.gpus * THREADS_PER_RANK
    nproc = host.limits.get("LimitNPROC")
    if host.threads is not None and host.threads < need:
        shown = f"{host.threads} processes and threads"
        yield _low(host, "TasksMax", shown, f"{need} for {show_count(host.gpus, 'worker')}", None, "infinity")
    elif nproc and nproc.value is not None and nproc.value < need:
        yield _low(host, "LimitNPROC", f"{nproc.value} processes and threads", str(need), nproc, "infinity")


def _low(host: Host, key: str, shown: str, least: str, limit: Limit | None, cure: str) -> Finding:
    if limit and limit.capped:
        hint = "whoever runs this container has to raise it: process 1 has no more, and may not raise it"
    else:
        hint = f"systemctl edit {host.unit}: {key}={cure}"
    return warn("limit-low", f"the unit may have {shown}, and engines need {least}", hint, key=key)


def _memory(host: Host) -> Found:
    memory = host.memory
    if memory is None:
        return
    shown = f"a load takes about {show_size(host.need)}: {host.need_shown}"
    if memory.available < host.need:
        text = f"{show_size(memory.available)} of memory are free, and {shown}"
        yield warn("ram-short", text, "end what uses it (ps aux --sort -rss), or claim fewer GPUs")
    if host.memory_max is not None and host.memory_max < host.need:
        text = f"MemoryMax= of the unit is {show_size(host.memory_max)}, and {shown}"
        yield warn("memory-max", text, f"systemctl edit {host.unit}: MemoryMax=infinity", key="MemoryMax")
    if host.weights and host.weights > memory.total:
        sizes = f"the weights have {show_size(host.weights)}, this machine {show_size(memory.total)}"
        text = f"{sizes}: each load reads them from disk"
        yield Finding(Level.INFO, "page-cache", text)
    if memory.swap and memory.swap_free * 10 < memory.swap:
        text = f"{show_size(memory.swap_free)} of {show_size(memory.swap)} swap are left: this machine is short of memory"
        yield warn("swap-full", text, "end what uses it, or swapoff -a && swapon -a once there is memory again")


def _huge(host: Host) -> Found:
    memory = host.memory
    if memory is None:
        return
    if host.huge == "hugetlb" and not memory.huge_free:
        text = f"{host.huge_by} asks for huge pages, and {memory.huge_free} of {memory.huge} are free"
        yield warn("hugepages", text, "sysctl vm.nr_hugepages=N", key=f"server.environment.{host.huge_by}")
    elif host.huge == "thp" and memory.thp == "never":
        text = f"{host.huge_by} asks for transparent huge pages, and they are switched off"
        file = "/sys/kernel/mm/transparent_hugepage/enabled"
        yield warn("hugepages", text, f"echo madvise > {file}", file, f"server.environment.{host.huge_by}")


def _disks(host: Host) -> Found:
    """Each file system once; of several reasons the one that asks for most."""
    told: set[int] = set()
    for space in sorted(host.disks, key=lambda space: -space.least):
        shown = printable(space.path, 200)
        if space.writable is False:
            text = f"{shown}, for {space.what}, is read-only for the unit: what the engine keeps there is lost, or it fails"
            hint = f"systemctl edit {host.unit}: ReadWritePaths={shown}; and see that {host.user or 'its user'} owns it"
            yield warn("cache-read-only", text, hint, shown, "ReadWritePaths")
        if space.device in told or space.writable is False:
            continue
        if space.free < space.least:
            text = f"{shown}, for {space.what}, has {show_size(space.free)} free of {show_size(space.total)}"
            yield warn("disk-short", text, f"make room: df -h {shown}", shown)
        elif space.files is not None and space.files < FILES_FREE:
            text = f"{shown}, for {space.what}, can take {show_count(space.files, 'more file')} only"
            yield warn("disk-short", text, f"make room: df -i {shown}", shown)
        else:
            continue
        told.add(space.device)


def _nodes(host: Host) -> Found:
    if not host.user_known:
        text = f"the unit's user {printable(host.user, 60)} does not exist: systemd cannot start it"
        yield Finding(Level.ERROR, "no-user", text, f"gpu-lifecycle install {host.unit.removesuffix('.service')}", key="User")
    elif not host.tried:
        text = f"what {printable(host.user, 60)} may open and write to is not looked at: only root can try"
        yield Finding(Level.INFO, "not-as-user", text, "run check as root")
    if host.denied:
        first = host.denied[0]
        more = f" and {show_count(len(host.denied) - 1, 'more node')}" if len(host.denied) > 1 else ""
        shown = f"mode {first.mode & 0o7777:04o}, {first.owner}:{first.group}"
        text = f"{printable(host.user, 60)} may not open {printable(first.path, 100)} ({shown}){more}"
        hint = f"SupplementaryGroups={first.group} in the unit, or NVreg_DeviceFileMode=0666 for the driver"
        yield warn("node-denied", text, hint, printable(first.path, 100))


def _ports(host: Host) -> Found:
    for port in host.ports:
        where = f"{port.what} {port.number}"
        if port.privileged:
            text = f"{where} is one that only root may listen on, and the engine runs as {printable(host.user, 60)}"
            hint = f"another port, or sysctl net.ipv4.ip_unprivileged_port_start={port.number}"
            yield Finding(Level.ERROR, "port-privileged", text, hint, key=KEY)
        elif port.taken:
            who = f" by {port.who}" if port.who else ""
            hint = "stop it, or give the engine another port"
            yield Finding(Level.ERROR, "port-taken", f"{where} is taken{who}", hint, key=KEY)
        elif port.error:
            text = f"the engine cannot listen on {printable(port.host, 100)}: {port.error}"
            yield warn("host-not-here", text, "correct the host of the command (ip addr shows this machine's)", key=KEY)


def _logind(host: Host) -> Found:
    if host.remove_ipc:
        who = printable(host.remove_ipc, 60)
        text = f"{who} is a login user: when it logs out, logind removes the shared memory of a running engine"
        hint = "run the unit as a system user (gpu-lifecycle), or RemoveIPC=no in /etc/systemd/logind.conf"
        yield warn("remove-ipc", text, hint, "/etc/systemd/logind.conf", "RemoveIPC")


def _upgrades(host: Host) -> Found:
    name = host.unit.removesuffix(".service")
    if host.needrestart:
        text = f"needrestart restarts {host.unit} when a library that it uses is upgraded ({printable(host.needrestart, 80)})"
        hint = f"$nrconf{{override_rc}}{{qr(^{name})}} = 0; in /etc/needrestart/conf.d/gpu-lifecycle.conf"
        yield warn("needrestart", text, hint, "/etc/needrestart/needrestart.conf", "override_rc")
    if host.upgrades:
        named = printable(", ".join(host.upgrades[:3]), 120) + (" and more" if len(host.upgrades) > 3 else "")
        text = f"{named} are upgraded automatically: libraries that do not fit the loaded driver end every later start"
        hint = f"apt-mark hold {' '.join(host.upgrades[:3])}; or Unattended-Upgrade::Package-Blacklist"
        yield warn("driver-upgrades", text, hint, "/etc/apt/apt.conf.d/50unattended-upgrades", "Unattended-Upgrade")


def _journal(host: Host) -> Found:
    if host.journal_limit:
        seconds, lines = host.journal_limit
        text = (
            f"journald drops what the engine writes beyond {lines} lines in {show_duration(seconds)}; on systemd 252 "
            "LogRateLimitIntervalSec=0 does not switch that off"
        )
        key = "LogRateLimitIntervalSec"
        yield warn("journal-limit", text, f"systemctl edit {host.unit}: {key}=1us", key=key)


def _times(host: Host) -> Found:
    if not host.weights:
        return
    slow = host.weights / SLOW_READ
    shown = f"{show_size(host.weights)} of weights take {show_duration(slow)} at {show_size(SLOW_READ)}/s"
    if host.ceiling and slow > host.ceiling:
        text = f"{shown}, and a start may last {show_duration(host.ceiling)}"
        yield warn("time-short", text, f'ready.ceiling = "{round(2 * slow / 60) + 1}min"', key="ready.ceiling")
    if host.vllm_ready is not None and slow > host.vllm_ready:
        text = f"{shown}, and vLLM gives itself {show_duration(host.vllm_ready)} for all of its start"
        key = "server.environment.VLLM_ENGINE_READY_TIMEOUT_S"
        yield warn("time-short", text, f'VLLM_ENGINE_READY_TIMEOUT_S = "{round(2 * slow)}"', key=key)


def _keys(host: Host) -> Found:
    if host.key_visible:
        text = "an API key stands on the command line, which every user of this machine can read (ps)"
        yield Finding(Level.INFO, "key-visible", text, "in an environment variable or a config file of the engine", key=KEY)
    if host.key_problem:
        shown = printable(host.key_file, 200)
        yield warn("key-file", f"the file of API keys {shown} {host.key_problem}", f"ls -l {shown}", shown, KEY)


def _unread(host: Host) -> Found:
    for path, why in host.unread:
        text = f"{printable(path, 200)} is not judged: {printable(why, 120)}"
        yield Finding(Level.INFO, "host-unread", text, file=printable(path, 200))


Check = Callable[[Host], Found]
AT_START: tuple[Check, ...] = (_shm, _limits, _memory, _huge, _disks, _nodes)  # cheap, and seen from inside the unit as it is
CHECKS: tuple[Check, ...] = (*AT_START, _ports, _logind, _upgrades, _journal, _times, _keys, _unread)


def host_findings(host: Host, checks: tuple[Check, ...] = CHECKS) -> tuple[Finding, ...]:
    """All findings, in the order of the table."""
    return tuple(item for check in checks for item in check(host))
