"""The door to ``/proc/PID``: one process at a time, every vanishing and every refusal told apart.

Sources: proc(5) pages of the Linux man-pages; ``Documentation/filesystems/proc.rst`` of the kernel.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.facts import Identity, Process
from gpu_lifecycle.rules.text import printable, redact
from gpu_lifecycle.system.patience import Patience

PF_KTHREAD = 0x00200000  # include/linux/sched.h; field 9 of proc_pid_stat(5)
NO_LOGIN = 4294967295  # (uid_t) -1: proc_pid_loginuid(5)
GONE = frozenset((errno.ENOENT, errno.ESRCH, errno.ENOTDIR))  # all else is "could not look", never "is not there"
READ_LIMIT = 256 * 1024


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of ``/proc/PID/stat`` that matter here (proc_pid_stat(5))."""

    pid: int
    comm: bytes
    state: str
    ppid: int
    tty: int
    flags: int
    threads: int
    start_ticks: int
    session: int = 0

    @property
    def kernel_thread(self) -> bool:
        return bool(self.flags & PF_KTHREAD)

    @property
    def zombie(self) -> bool:
        return self.state in "ZX"


def parse_stat(text: bytes) -> Stat | None:
    """Reads a stat line. The name may hold blanks, parentheses and newlines, so fields count from the last ``)``.

    Returns None for a line that is torn or not a stat line at all.
    """
    head, close, tail = text.rpartition(b")")
    number, open_, comm = head.partition(b" (")
    fields = tail.split()
    if not close or not open_ or len(fields) < 21:  # the last field of a torn line may be cut, so one more is asked for
        return None
    try:
        return Stat(
            pid=int(number),
            comm=comm,
            state=fields[0].decode("ascii", "replace"),
            ppid=int(fields[1]),
            tty=int(fields[4]),
            flags=int(fields[6]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            session=int(fields[3]),
        )
    except ValueError:
        return None


def read_bytes(path: str, limit: int = READ_LIMIT) -> bytes:
    """The first ``limit`` bytes of a file of ``/proc``. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        chunks = []
        while limit > 0:
            chunk = os.read(fd, min(limit, 65536))
            if not chunk:
                break
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(fd)


class Proc:
    """One ``/proc`` tree (the real one, or a generated one in a test)."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = root
        self._boot_id: str | None = None
        self._users: dict[int, str] = {}
        self.patience = Patience()

    @property
    def boot_id(self) -> str:
        """random/boot_id of proc_sys_kernel(5). "" where the tree has none."""
        if self._boot_id is None:
            try:
                self._boot_id = read_bytes(f"{self.root}/sys/kernel/random/boot_id").decode("ascii").strip()
            except (OSError, ValueError):
                self._boot_id = ""
        return self._boot_id

    def pids(self) -> list[int]:
        """Process ids now. Raises OSError where ``/proc`` itself cannot be read."""
        return [int(name) for name in os.listdir(self.root) if name.isdecimal() and name.isascii()]

    def stat(self, pid: int) -> Stat | None:
        """None: gone. Raises BlindError where it cannot be told (no descriptors or memory left): that is not "gone"."""
        try:
            return parse_stat(read_bytes(f"{self.root}/{pid}/stat", 4096))
        except OSError as error:
            if error.errno in GONE or isinstance(error, PermissionError):
                return None
            raise BlindError(f"cannot look at process {pid}: {error.strerror}") from error

    def identity(self, pid: int) -> Identity | None:
        stat = self.stat(pid)
        return Identity(self.boot_id, pid, stat.start_ticks) if stat else None

    def is_alive(self, identity: Identity) -> bool:
        """True while that very process has a thread that runs; a zombie whose threads are all gone is not alive."""
        stat = self.stat(identity.pid)
        if stat is None or stat.start_ticks != identity.start_ticks or identity.boot_id != self.boot_id:
            return False
        return not (stat.zombie and stat.threads <= 1)

    def _text(self, pid: int, name: str, limit: int = READ_LIMIT) -> bytes:
        try:
            return read_bytes(f"{self.root}/{pid}/{name}", limit)
        except OSError:
            return b""

    def title(self, pid: int, stat: Stat) -> str:
        """What ``ps`` shows, made printable: the command line, or the name in brackets."""
        try:
            raw = self._memory(pid, "cmdline", 4096)
        except OSError:
            raw = b""
        line = raw.rstrip(b"\0").replace(b"\0", b" ").strip()
        return redact(printable(line or b"[" + stat.comm + b"]", 160))

    def environment(self, pid: int) -> dict[bytes, bytes] | None:
        """The first environment (proc_pid_environ(5)). None: may not be read, or blocks whoever reads it.

        A leader that has exited has none left; a thread of it that lives still shows the process's own.
        """
        try:
            raw = self._memory(pid, "environ")
        except OSError:
            return None
        pairs = (item.partition(b"=") for item in raw.split(b"\0"))
        return {key: value for key, equals, value in pairs if equals}

    def _memory(self, pid: int, name: str, limit: int = READ_LIMIT) -> bytes:
        """A file that comes from the memory of the process. Raises OSError, also where a read of it does not come back."""
        path = f"{self.root}/{self._speaker(pid)}/{name}"
        return self.patience.one(pid, lambda _: read_bytes(path, limit))

    def marked(self, pid: int) -> tuple[str, str]:
        """The unit and the run that its first environment names; our own run name counts before systemd's."""
        environment = self.environment(pid)
        run = _marker(environment, b"GPU_LIFECYCLE_RUN") or _marker(environment, b"INVOCATION_ID")
        return _marker(environment, b"GPU_LIFECYCLE_UNIT"), run

    def _speaker(self, pid: int) -> str:
        """The part of ``/proc`` that speaks for a process: itself, or a living thread where the leader has exited."""
        stat = self.stat(pid)
        if stat is None or not stat.zombie or stat.threads <= 1:
            return str(pid)
        tasks = [name for name in os.listdir(f"{self.root}/{pid}/task") if name != str(pid)]
        return f"{pid}/task/{tasks[0]}" if tasks else str(pid)

    def cgroup(self, pid: int) -> str:
        """The cgroup path: of v2, or of systemd's own v1 tree where v2 is not in use (cgroups(7)). "": unknown."""
        return choose_cgroup(self._text(pid, "cgroup"))

    def status(self, pid: int) -> dict[str, str]:
        lines = self._text(pid, "status", 16384).decode("utf-8", "replace").splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def bytes_read(self, pid: int) -> int | None:
        """Bytes that it and its ended children have read (proc_pid_io(5)): what it asked for, or, if more, what disks gave.

        Pages of a mapped file show only in the second, those that lay in memory only in the first. None: gone, or not ours
        to see.
        """
        text = self._text(pid, "io", 4096)
        found = dict(line.split(b": ", 1) for line in text.splitlines() if b": " in line)
        try:
            return max(int(found[b"rchar"]), int(found[b"read_bytes"]))
        except (KeyError, ValueError):
            return None

    def user(self, uid: int) -> str:
        """The user's name, else the number as text."""
        if uid not in self._users:
            import pwd

            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]

    def describe(self, pid: int, *, devices: frozenset[int] = frozenset(), how: tuple[str, ...] = ()) -> Process | None:
        """All that a verdict needs of one process. None: it is gone.

        The start time is read first and last: a pid that was reused in between is gone, not described by halves.
        """
        stat = self.stat(pid)
        if stat is None:
            return None
        status = self.status(pid)
        uid = int((status.get("Uid") or "-1").split()[0])
        environment = self.environment(pid)
        login = self._text(pid, "loginuid", 32).strip()
        process = Process(
            identity=Identity(self.boot_id, pid, stat.start_ticks),
            ppid=stat.ppid,
            state=stat.state,
            command=self.title(pid, stat),
            executable=self._executable(pid),
            uid=uid,
            user=self.user(uid),
            cgroup=self.cgroup(pid),
            tty=stat.tty,
            login_uid=int(login) if login.isdigit() and int(login) != NO_LOGIN else None,
            marker_unit=_marker(environment, b"GPU_LIFECYCLE_UNIT"),
            marker_run=_marker(environment, b"GPU_LIFECYCLE_RUN") or _marker(environment, b"INVOCATION_ID"),
            container=_namespaced(status),
            devices=devices,
            how=how,
            readable=environment is not None,
            blocks=self.patience.blocked(pid),
        )
        again = self.stat(pid)
        return process if again and again.start_ticks == stat.start_ticks else None

    def _executable(self, pid: int) -> str:
        try:
            # An upgrade replaces the file of a running program; it is still the program that was started from there.
            return os.readlink(f"{self.root}/{self._speaker(pid)}/exe").removesuffix(" (deleted)")
        except OSError:
            return ""

    def ancestors(self, pid: int) -> set[int]:
        """The pid and all its parents up to and including 1."""
        line: set[int] = set()
        while pid > 0 and pid not in line:
            line.add(pid)
            stat = self.stat(pid)
            pid = stat.ppid if stat else 0
        return line

    def children(self) -> dict[int, list[int]]:
        """Every parent with its children, from one pass."""
        tree: dict[int, list[int]] = {}
        for pid in self.pids():
            stat = self.stat(pid)
            if stat:
                tree.setdefault(stat.ppid, []).append(pid)
        return tree

    def descendants(self, pid: int) -> set[int]:
        """All living processes below one, without itself."""
        tree = self.children()
        found: set[int] = set()
        rest = list(tree.get(pid, ()))
        while rest:
            child = rest.pop()
            if child not in found:
                found.add(child)
                rest.extend(tree.get(child, ()))
        return found


def _marker(environment: dict[bytes, bytes] | None, key: bytes) -> str:
    return printable(environment.get(key, b""), 260) if environment else ""


def _namespaced(status: dict[str, str]) -> str:
    """Says so where the process has a pid of its own in a child PID namespace (NSpid of proc_pid_status(5))."""
    numbers = status.get("NSpid", "").split()
    return "pid namespace" if len(numbers) > 1 else ""


def choose_cgroup(text: bytes) -> str:
    """Picks the line of ``/proc/PID/cgroup`` that systemd uses (cgroups(7))."""
    unified = named = ""
    for line in text.decode("utf-8", "backslashreplace").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        path = path.removesuffix(" (deleted)")
        if number == "0" and not controllers:
            unified = path
        elif controllers == "name=systemd":
            named = path
    return named if unified in ("", "/") and named else unified
