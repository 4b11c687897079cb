"""The door to what a machine gives an engine: file systems, memory, limits, nodes, ports, and who upgrades packages.

It reads, and tries nothing that leaves a trace: a port is bound and let go, a node is asked about and not opened. What may hang
(a network file system) is looked at in a child that is abandoned. Sizes are bytes.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat as st
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_lifecycle.rules.host import Denied, Memory, Space
from gpu_lifecycle.system.procfs import read_bytes
from gpu_lifecycle.system.weights import weights_of

CAP_SYS_RESOURCE = 1 << 24  # include/uapi/linux/capability.h
WHOLE_USER_NAMESPACE = ["0", "0", "4294967295"]  # user_namespaces(7): the first one
_LIMIT = re.compile(r"^Max (open files|locked memory|processes)\s+(\S+)\s+(\S+)", re.MULTILINE)
_NAMES = {"open files": "LimitNOFILE", "locked memory": "LimitMEMLOCK", "processes": "LimitNPROC"}
STATUS_LIMIT = 64 << 20  # bytes of dpkg's status; a full desktop has 6 MiB


def read_memory(proc: str = "/proc", sys: str = "/sys") -> Memory | None:
    """proc_meminfo(5); None where it cannot be read."""
    try:
        text = read_bytes(f"{proc}/meminfo").decode("ascii", "replace")
    except OSError:
        return None
    found = {name: int(number) for name, number in re.findall(r"^(\w+):\s+([0-9]{1,15})", text, re.MULTILINE)}
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    return Memory(
        total=found["MemTotal"] << 10,
        available=found["MemAvailable"] << 10,
        swap=found.get("SwapTotal", 0) << 10,
        swap_free=found.get("SwapFree", 0) << 10,
        huge=found.get("HugePages_Total", 0),
        huge_free=found.get("HugePages_Free", 0),
        thp=_thp(sys),
    )


def _thp(sys: str) -> str:
    """Which of its words is chosen: ``always [madvise] never`` (Documentation/admin-guide/mm/transhuge.rst)."""
    try:
        text = read_bytes(f"{sys}/kernel/mm/transparent_hugepage/enabled", 200).decode("ascii", "replace")
    except OSError:
        return ""
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen[1] if chosen else ""


def read_limits(pid: int | str, proc: str = "/proc") -> dict[str, int | None]:
    """The hard limits of a process by the name of the unit's directive; None: unlimited. {} where they cannot be read."""
    try:
        text = read_bytes(f"{proc}/{pid}/limits").decode("ascii", "replace")
    except OSError:
        return {}
    found = ((_NAMES[name], hard) for name, _, hard in _LIMIT.findall(text))
    return {name: int(hard) if hard.isdigit() else None for name, hard in found}


def may_raise_limits(proc: str = "/proc") -> bool:
    """Whether process 1 may give a unit more than it has (setrlimit(2): CAP_SYS_RESOURCE in the first user namespace)."""
    try:
        status = read_bytes(f"{proc}/1/status").decode("ascii", "replace")
        spans = read_bytes(f"{proc}/1/uid_map", 4096).decode("ascii", "replace").split()
    except OSError:
        return True  # not known: nothing is said
    found = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", status, re.MULTILINE)
    return spans == WHOLE_USER_NAMESPACE and (found is None or bool(int(found[1], 16) & CAP_SYS_RESOURCE))


def read_number(path: str) -> int | None:
    """A file of ``/proc`` or ``/sys`` with one number; None: there is none."""
    try:
        return int(read_bytes(path, 64))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Ask:
    """What is looked at: folders (path, what for, least free), nodes, a file of keys ("": none), folders of models."""

    spaces: tuple[tuple[str, str, int], ...] = ()
    nodes: tuple[str, ...] = ()
    key_file: str = ""
    models: tuple[str, ...] = ()


def look_at(ask: Ask) -> dict[str, Any]:
    """What this process, as the user that it is, finds. Plain values, for they may go through a pipe."""
    sizes = [found for path in ask.models if (found := weights_of(path))]
    return {
        "spaces": [space for path, what, least in ask.spaces if (space := _space(path, what, least))],
        "denied": [node for path in ask.nodes if (node := _denied(path))],
        "key": _key_problem(ask.key_file) if ask.key_file else "",
        "weights": (sum(total for total, _ in sizes), max((largest for _, largest in sizes), default=0)),
    }


def look_as(user: str, groups: Sequence[int], seconds: float, ask: Ask) -> dict[str, Any] | None:
    """``look_at`` as ``user`` ("": as we are) with these groups more, in a child. ``tried`` False: we cannot be that user.

    None: it did not come back within so many seconds.
    """
    from gpu_lifecycle.system.as_user import being
    from gpu_lifecycle.system.worker import Worker

    def look() -> dict[str, Any]:
        with being(user, groups) as tried:
            return {**look_at(ask if tried else replace(ask, nodes=(), key_file="")), "tried": tried}

    worker = Worker()
    try:
        worker.start(look)
        found = worker.answer(seconds)
        return found if isinstance(found, dict) else None
    finally:
        worker.abandon()


def _space(path: str, what: str, least: int) -> tuple[Any, ...] | None:
    """The file system of a folder, or of the nearest one above it. None: it cannot be looked at."""
    near = path
    while not os.path.isdir(near) and near not in ("/", ""):
        near = os.path.dirname(near)
    try:
        about, device = os.statvfs(near or "/"), os.stat(near or "/").st_dev
        writable = os.access(near or "/", os.W_OK | os.X_OK, effective_ids=True)
    except OSError:
        return None
    files = about.f_favail if about.f_files else None  # btrfs and network file systems do not count them
    return path, what, about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize, files, device, writable, least


def to_space(found: Sequence[Any]) -> Space:
    """What ``look_at`` found of one file system, back from the pipe."""
    return Space(*found)


def space_of(path: str, what: str, least: int) -> Space | None:
    """A file system that cannot hang, such as a tmpfs."""
    found = _space(path, what, least) if os.path.isdir(path) else None
    return Space(*found) if found else None


def _denied(path: str) -> tuple[str, int, int, int] | None:
    """A node that may not be opened to read and write: asked of the kernel, with access lists, without opening it."""
    try:
        if os.access(path, os.R_OK | os.W_OK, effective_ids=True):
            return None
        about = os.stat(path)
    except OSError:
        return None  # one that is not there is told elsewhere
    return path, about.st_mode, about.st_uid, about.st_gid


def to_denied(found: Sequence[Any]) -> Denied:
    """What ``look_at`` found of one node, with names."""
    import grp
    import pwd

    path, mode, uid, gid = found
    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = str(uid)
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return Denied(path, mode, owner, group)


def _key_problem(path: str) -> str:
    """What is wrong with a file of keys, in words that go on from its name; "" for nothing."""
    try:
        about = os.stat(path)
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    if not st.S_ISREG(about.st_mode):
        return "is no regular file"
    if not os.access(path, os.R_OK, effective_ids=True):
        return "may not be read by the unit's user"
    return "can be read by every user of the machine" if about.st_mode & st.S_IROTH else ""


def try_port(host: str, port: int, *, reuse_port: bool) -> str:
    """Why a socket like the engine's cannot listen there: "" where it can, "taken", or the reason in words.

    With SO_REUSEADDR, as uvicorn, vLLM and llama.cpp set it: connections in TIME_WAIT do not count (socket(7)).
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        return f"the name cannot be resolved: {getattr(error, 'strerror', None) or error}"
    for family, kind, protocol, _, address in found[:4]:
        try:
            with socket.socket(family, kind, protocol) as door:
                door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reuse_port:
                    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                door.bind(address)  # without listen(2), nobody can connect to it
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                continue  # a kernel without IPv6
            return "taken" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or errno.EIO)
    return ""


def unprivileged_from(proc: str = "/proc") -> int:
    """The first port that everybody may use (ip(7), ip_unprivileged_port_start)."""
    found = read_number(f"{proc}/sys/net/ipv4/ip_unprivileged_port_start")
    return 1024 if found is None else found


def driver_packages(root: str = "") -> list[str]:
    """The names of installed packages that could be NVIDIA's driver (dpkg; one file for each below its folder)."""
    names = set()
    try:
        with os.scandir(f"{root}/var/lib/dpkg/info") as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(".list") and ("nvidia" in name or name.startswith(("cuda-drivers", "libcuda"))):
                    names.add(name.removesuffix(".list").partition(":")[0])
    except OSError:
        return []
    return sorted(names)


def held_packages(names: Iterable[str], root: str = "") -> set[str]:
    """Those of these packages that dpkg does not upgrade, or has not installed (dpkg(1), package states)."""
    try:
        text = read_bytes(f"{root}/var/lib/dpkg/status", STATUS_LIMIT)
    except OSError:
        return set()
    return {name for name in names if not _upgradable(text, name.encode())}


def _upgradable(text: bytes, name: bytes) -> bool:
    at = -1
    while (at := text.find(b"Package: " + name + b"\n", at + 1)) >= 0:
        entry = text[at : at + 2000].split(b"\n\n", 1)[0]
        if text[max(0, at - 1) : at] in (b"", b"\n") and b"\nStatus: install ok installed\n" in entry:
            return True
    return False
