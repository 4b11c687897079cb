"""Reads what this machine gives a unit, and judges it: all of it for ``check``, what is cheap and near for each start."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.errors import BusyError
from gpu_lifecycle.facts import Finding, Layout, UnitName
from gpu_lifecycle.jobs.preflight import CONTAINERS
from gpu_lifecycle.rules.host import AT_START, CACHE_FREE, CHECKS, STATE_FREE, Host, Limit, Memory, Port, host_findings
from gpu_lifecycle.rules.sandbox import SHM, managed, may_write, own_shm
from gpu_lifecycle.rules.units import INFINITE

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config
    from gpu_lifecycle.rules.host import Space
    from gpu_lifecycle.system.host import Ask
    from gpu_lifecycle.system.sockets import Listener

SECONDS = 2.0  # for a disk to answer; one that takes longer is said and not judged
SILENT = f"no answer within {SECONDS:g} s: is a network file system mounted whose server is gone?"
CACHES = {  # variables that name a folder in which something is kept
    "TRITON_CACHE_DIR": "Triton's kernels", "TORCHINDUCTOR_CACHE_DIR": "compiled graphs", "TORCH_HOME": "torch's downloads",
    "TORCH_EXTENSIONS_DIR": "torch's extensions", "VLLM_CACHE_ROOT": "vLLM's cache", "CUDA_CACHE_PATH": "CUDA's kernels",
    "FLASHINFER_WORKSPACE_BASE": "FlashInfer's kernels", "XDG_CACHE_HOME": "caches", "HOME": "what engines keep in HOME",
    "TMPDIR": "temporary files",
}  # fmt: skip
DOWNLOADS = ("HF_HOME", "HF_HUB_CACHE")
BIND_SERVICE = 1 << 10  # CAP_NET_BIND_SERVICE
LOGINS = range(1000, 60_000)  # uids of people (login.defs(5)); above are systemd's dynamic users


@dataclass(frozen=True, slots=True)
class Around:
    """What is known before the machine is read. ``properties``: systemd's, {} where there is none.

    ``listeners`` are those whom a probe would reach: they are told elsewhere.
    """

    unit: UnitName
    config: Config
    layout: Layout
    env: Mapping[str, str]
    properties: Mapping[str, Any] = field(default_factory=dict)
    nodes: Sequence[str] = ()
    gpus: int = 1
    removes_ipc: bool = False
    listeners: Sequence[Listener] = ()

    @property
    def user(self) -> str:
        return str(self.properties.get("User") or "root")

    @property
    def in_container(self) -> bool:
        return os.path.basename(self.config.server.command[0]) in CONTAINERS


def check_host(around: Around) -> tuple[Finding, ...]:
    """Everything, as the unit will have it: for a person who asks."""
    from dataclasses import replace

    from gpu_lifecycle.system.as_user import account, group_ids
    from gpu_lifecycle.system.host import look_as, read_memory

    memory = read_memory()
    who = account(around.user)
    groups = group_ids(around.properties.get("SupplementaryGroups") or ())
    try:
        seen, why = look_as(around.user, groups, SECONDS, _ask(around)), SILENT
    except BusyError as error:
        seen, why = None, str(error)
    host = _seen(around, _common(around, memory), seen, why)
    upgrades = _upgrades(around)
    host = replace(
        host,
        user_known=who is not None or not around.properties or bool(around.properties.get("DynamicUser")),
        tried=bool(seen and seen["tried"]) or who is None,
        disks=tuple(_in_sandbox(space, around) for space in host.disks),
        limits=_limits(around),
        threads=None if around.in_container else _threads(around.properties),
        memory_max=_finite(around.properties.get("MemoryMax")),
        ports=_ports(around),
        remove_ipc=who.name if who and who.uid in LOGINS and around.removes_ipc and not host.own_shm else "",
        ceiling=around.config.ready.ceiling,
        vllm_ready=_vllm_ready(around),
        key_visible=_key_visible(around),
        needrestart=upgrades.needrestart,
        upgrades=upgrades.packages,
        journal_limit=_journald(around),
        unread=(*host.unread, *upgrades.unread),
    )
    return host_findings(host, CHECKS)


def start_host(around: Around) -> tuple[Finding, ...]:
    """What is cheap, from inside the unit, as the user that it has: the same limits, mounts and rights as its engine's.

    Raises BusyError where no process can be made for the look at folders and files.
    """
    from dataclasses import replace

    from gpu_lifecycle.system.host import look_as, may_raise_limits, read_limits, read_memory

    host = _seen(around, _common(around, read_memory()), look_as("", (), SECONDS, _ask(around)))
    disks = (space if not _is_journal(space) else replace(space, writable=None) for space in host.disks)
    most = {} if may_raise_limits() else read_limits(1)
    limits = {key: Limit(key, value, value == most.get(key, -1)) for key, value in read_limits("self").items()}
    return host_findings(replace(host, limits={} if around.in_container else limits, disks=tuple(disks)), AT_START)


def _is_journal(space: Space) -> bool:
    return space.path.endswith("/log/journal")


def _ask(around: Around) -> Ask:
    """What is looked at as the unit's user. Of an engine in a container only what the daemon itself writes."""
    from gpu_lifecycle.system.host import Ask

    spaces = _spaces(around)
    if around.in_container:
        return Ask(tuple(spaces[:1]))
    named = (around.config.server.target(), around.config.server.draft())
    models = tuple(path for path in named if path and os.path.isabs(path))
    return Ask(tuple(spaces), tuple(_openable(around.nodes)), _key_file(around), models)


def around_start(unit: UnitName, config: Config, layout: Layout) -> Around:
    """What the daemon knows of itself before it starts an engine. Which nodes a claim by name needs, it does not know yet."""
    import pwd

    from gpu_lifecycle.system.devices import find_devices

    claim = config.gpus.claim
    nodes = [node.path for node in find_devices().nodes if node.minor is None or claim == "all"]
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    gpus = config.gpus.count or (1 if claim == "all" else len(claim))
    return Around(unit, config, layout, {**os.environ, **config.server.environment}, {"User": user}, nodes, gpus)


def _common(around: Around, memory: Memory | None) -> Host:
    """What is the same from inside the unit and from outside."""
    from gpu_lifecycle.system.host import space_of

    mine = own_shm(around.properties, memory.total) if memory else None
    shm = space_of(around.layout.under(SHM), "shared memory", 0)
    if mine is not None and shm:
        from dataclasses import replace

        shm = replace(shm, total=mine, free=mine)
    huge, by = _huge(around.env)
    return Host(
        unit=around.unit.service,
        user=around.user,
        gpus=around.gpus,
        shm=None if around.in_container else shm,
        own_shm=mine is not None,
        memory=memory,
        huge=huge,
        huge_by=by,
    )


def _seen(around: Around, host: Host, seen: Mapping[str, Any] | None, why: str = SILENT) -> Host:
    """With what was seen as the unit's user; None: nothing, and ``why``."""
    from dataclasses import replace

    from gpu_lifecycle.system.host import to_denied, to_space

    if seen is None:
        return replace(host, unread=(*host.unread, ("the unit's folders", why)))
    total, shard = seen["weights"]
    return replace(
        host,
        weights=total or None,
        shard=shard,
        disks=tuple(to_space(item) for item in seen["spaces"]),
        denied=tuple(to_denied(item) for item in seen["denied"]),
        key_file=_key_file(around),
        key_problem=seen["key"],
    )


def _spaces(around: Around) -> list[tuple[str, str, int]]:
    """The folders that the unit writes to, and how much there should be free."""
    layout, env = around.layout, around.env
    found = [(layout.var_dir(around.unit), "the state of its runs", STATE_FREE)]
    found += [(env[name], what, CACHE_FREE) for name, what in CACHES.items() if os.path.isabs(env.get(name, ""))]
    journal = next((path for path in ("/var/log/journal", "/run/log/journal") if os.path.isdir(layout.under(path))), "")
    if journal:
        found.append((layout.under(journal), "the journal", STATE_FREE))
    if not os.path.isabs(around.config.server.target() or "/"):
        found += [(env[name], "downloads of models", CACHE_FREE) for name in DOWNLOADS if os.path.isabs(env.get(name, ""))]
    return list({path: (path, what, least) for path, what, least in found}.values())


def _in_sandbox(space: Space, around: Around) -> Space:
    """As the unit sees it: what systemd makes for it, it may write to; what its sandbox closes, it may not."""
    from dataclasses import replace

    if _is_journal(space) or any(f"{space.path}/".startswith(f"{own}/") for own in managed(around.properties)):
        return replace(space, writable=None)
    return replace(space, writable=space.writable and may_write(space.path, around.properties))


def _openable(paths: Sequence[str]) -> list[str]:
    """The nodes that CUDA opens; capabilities, switches and the display's are root's by design."""
    kinds = {path: path.rpartition("/nvidia")[2].removeprefix("-").rstrip("0123456789") for path in paths}
    return [path for path, kind in kinds.items() if kind in ("", "ctl", "uvm")]


def _limits(around: Around) -> dict[str, Limit]:
    """The unit's hard limits, and what process 1 can give where it may not raise its own."""
    from gpu_lifecycle.system.host import may_raise_limits, read_limits

    if around.in_container:
        return {}
    properties = around.properties
    said = {key: properties[key] for key in ("LimitNOFILE", "LimitMEMLOCK", "LimitNPROC") if key in properties}
    most = {} if may_raise_limits() else read_limits(1)
    found = {}
    for key, value in said.items():
        cap = most.get(key)
        capped = cap is not None and value > cap
        found[key] = Limit(key, cap if capped else _finite(value), capped)
    return found


def _threads(properties: Mapping[str, Any]) -> int | None:
    """The lowest of what the unit, and the kernel at all, allow."""
    from gpu_lifecycle.system.host import read_number

    kernel = [read_number(f"/proc/sys/kernel/{name}") for name in ("threads-max", "pid_max")]
    known = [value for value in (_finite(properties.get("TasksMax")), *kernel) if value is not None]
    return min(known) if known else None


def _finite(value: Any) -> int | None:
    return value if isinstance(value, int) and value < INFINITE else None


def _ports(around: Around) -> tuple[Port, ...]:
    """The ports of the command, tried with the options of the engine's own socket. None while the unit itself runs."""
    server = around.config.server
    if around.in_container or server.url or around.properties.get("ActiveState") not in (None, "inactive", "failed"):
        return ()
    from gpu_lifecycle.rules.engines import option

    endpoint = server.endpoint()
    wanted = [] if endpoint.uds else [(endpoint.bind, endpoint.port, "the engine's port")]
    nccl = option(server.command, ("--nccl-port",)) if server.engine == "sglang" else None
    if nccl and nccl.isdecimal() and 0 < int(nccl) < 65536:
        wanted.append(("", int(nccl), "the port of --nccl-port"))
    known = {item.inode for item in around.listeners}
    return tuple(port for item in wanted if (port := _port(around, *item, known)))


def _port(around: Around, host: str, number: int, what: str, known: set[int]) -> Port | None:
    """None where there is nothing to say, or it is said already."""
    from gpu_lifecycle.system.host import try_port, unprivileged_from
    from gpu_lifecycle.system.procfs import Proc
    from gpu_lifecycle.system.sockets import describe_owner, tcp_listeners

    ambient = around.properties.get("AmbientCapabilities") or 0
    if number < unprivileged_from() and around.properties and around.user != "root" and not ambient & BIND_SERVICE:
        return Port(host, number, what, privileged=True)
    error = try_port(host, number, reuse_port=around.config.server.engine in ("vllm", "llama.cpp"))
    if error != "taken":
        return Port(host, number, what, error=error) if error else None
    proc = Proc()
    found = tcp_listeners(number, proc)
    if any(item.inode in known for item in found):
        return None
    return Port(host, number, what, taken=True, who=describe_owner(found[0], proc) if found else "")


def _huge(env: Mapping[str, str]) -> tuple[str, str]:
    """What asks for huge pages, and by which variable: glibc's malloc, Mooncake's store, torch."""
    if "glibc.malloc.hugetlb=2" in env.get("GLIBC_TUNABLES", ""):
        return "hugetlb", "GLIBC_TUNABLES"
    if env.get("MC_STORE_USE_HUGEPAGE", "").lower() in ("1", "true", "on"):
        return "hugetlb", "MC_STORE_USE_HUGEPAGE"
    if "glibc.malloc.hugetlb=1" in env.get("GLIBC_TUNABLES", ""):
        return "thp", "GLIBC_TUNABLES"
    return ("thp", "THP_MEM_ALLOC_ENABLE") if env.get("THP_MEM_ALLOC_ENABLE") == "1" else ("", "")


def _vllm_ready(around: Around) -> float | None:
    from gpu_lifecycle.rules.host import VLLM_READY

    if around.config.server.engine != "vllm":
        return None
    said = around.env.get("VLLM_ENGINE_READY_TIMEOUT_S", "")
    return float(said) if said.isdecimal() and len(said) < 9 else float(VLLM_READY)


def _key_visible(around: Around) -> bool:
    from gpu_lifecycle.rules.engines import option

    return bool(option(around.config.server.command, ("--api-key", "--admin-api-key")))


def _key_file(around: Around) -> str:
    """llama.cpp reads its keys from a file; the others take them from the command or a variable."""
    from gpu_lifecycle.rules.engines import option

    named = option(around.config.server.command, ("--api-key-file",))
    return named if named and os.path.isabs(named) and not around.in_container else ""


@dataclass(frozen=True, slots=True)
class _Upgrades:
    needrestart: str
    packages: tuple[str, ...]
    unread: tuple[tuple[str, str], ...]


def _upgrades(around: Around) -> _Upgrades:
    """What restarts and upgrades by itself."""
    from gpu_lifecycle.rules.upgrades import restarts, upgraded, upgrades_itself
    from gpu_lifecycle.system.host import driver_packages, held_packages
    from gpu_lifecycle.system.unit_files import list_folder, read_unit_files

    under = around.layout.under
    more = list_folder(under("etc/needrestart/conf.d"), ".conf")
    needrestart = read_unit_files([under("etc/needrestart/needrestart.conf"), *more])
    apt = read_unit_files([*list_folder(under("etc/apt/apt.conf.d"), ""), under("etc/apt/apt.conf")])
    on, left = upgrades_itself(file.text for file in apt)
    names = upgraded(driver_packages(under("").rstrip("/")), left) if on else ()
    held = held_packages(names, under("").rstrip("/")) if names else set()
    there = os.path.exists(under("usr/sbin/needrestart"))
    unread = [file for file in (*needrestart, *apt) if file.problem and os.path.lexists(file.path)]
    return _Upgrades(
        restarts((file.text for file in needrestart), around.unit.service) if there else "",
        tuple(name for name in names if name not in held),
        tuple((file.path, file.problem) for file in unread),
    )


def _journald(around: Around) -> tuple[float, int] | None:
    """The limit that holds for what the unit writes; None: none, or not known."""
    from gpu_lifecycle.rules.journald import limit_of
    from gpu_lifecycle.system.unit_files import list_folder, read_unit_files

    if not around.properties or around.properties.get("LogNamespace"):
        return None
    under = around.layout.under
    folders = ("usr/lib/systemd/journald.conf.d", "run/systemd/journald.conf.d", "etc/systemd/journald.conf.d")
    drop_ins = [path for folder in folders for path in list_folder(under(folder), ".conf")]
    files = read_unit_files([under("etc/systemd/journald.conf"), *sorted(drop_ins, key=os.path.basename)])
    return limit_of(files, around.properties)
