"""Why a process does not end, and what frees it: one sentence from what its threads show. The first rule that answers, decides.

Even SIGKILL is only taken at certain points of the kernel: a thread that sleeps uninterruptibly (state D), is frozen by a
version 1 freezer, or is held by a tracer as it exits gets to none of them.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_lifecycle.rules.quantity import show_count

REFRIGERATOR = "__refrigerator"  # where version 1 freezers, and a suspend, hold a thread (kernel/freezer.c); shown as state D
FUSE = ("request_wait_answer", "fuse_")  # fs/fuse/dev.c
DRIVER = ("nv", "uvm", "os_acquire_")  # nvidia, nvidia-uvm, and the first one's locks (os-interface.c)
NOT_DRIVER = ("nvme", "nvdimm", "nvmem")
KINDS_SHOWN = 3
MOUNTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread: ``where`` is its wait channel, "" unknown; ``tracer`` the pid of who traces it, 0 nobody."""

    tid: int
    state: str
    where: str = ""
    killed: bool = False  # SIGKILL is pending
    exiting: bool = False  # it is past all signals, in exit(2)
    tracer: int = 0

    @property
    def lives(self) -> bool:
        return self.state not in ("Z", "X")


@dataclass(frozen=True, slots=True)
class Frozen:
    """One cgroup that is frozen: ``file`` thaws it, "" where that cannot be seen from here."""

    version: int
    cgroup: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class FuseMount:
    """One FUSE file system: ``place`` is "" where it is mounted only elsewhere; ``waiting`` counts its open requests."""

    place: str
    abort: str  # the file that ends its connection, "" where fusectl is not mounted
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Stuck:
    """All that was seen of one process that does not end."""

    pid: int
    threads: tuple[Thread, ...] = ()
    frozen: tuple[Frozen, ...] = ()
    freezer: str = ""  # its cgroup in the version 1 freezer hierarchy
    fuse: tuple[FuseMount, ...] = ()
    tracer_name: str = ""

    @property
    def living(self) -> tuple[Thread, ...]:
        return tuple(thread for thread in self.threads if thread.lives)

    def asleep(self, test: Callable[[str], bool]) -> bool:
        """Whether a thread sleeps uninterruptibly where ``test`` says."""
        return any(thread.state == "D" and test(thread.where) for thread in self.living)


Answer = tuple[str, str]  # what it is; what frees it
Rule = Callable[[Stuck], Answer | None]


def in_fuse(where: str) -> bool:
    return where.startswith(FUSE)


def in_driver(where: str) -> bool:
    """True for a function of the NVIDIA driver."""
    name = where.lstrip("_")
    return name.startswith(DRIVER) and not name.startswith(NOT_DRIVER)


def frozen_v1(stuck: Stuck) -> Answer | None:
    """A version 1 freezer lets no signal through, SIGKILL neither."""
    groups = [group for group in stuck.frozen if group.version == 1]
    if groups:
        names = " and ".join(group.cgroup for group in groups)
        return f"it is frozen in cgroup v1 {names}, where SIGKILL has to wait", _thaw(groups)
    if stuck.asleep(lambda where: where == REFRIGERATOR):
        group = Frozen(1, stuck.freezer or "unknown")
        return f"it is frozen, by cgroup v1 {group.cgroup} or a group above it, where SIGKILL has to wait", _thaw([group])
    return None


def fuse(stuck: Stuck) -> Answer | None:
    """The server of a FUSE file system has taken its request and does not answer."""
    if not stuck.asleep(in_fuse):
        return None
    mounts = [mount for mount in stuck.fuse if mount.waiting] or [mount for mount in stuck.fuse if mount.waiting is None]
    cures = [text for mount in mounts[:MOUNTS_SHOWN] if (text := _abort(mount))]
    if len(cures) > 1:
        cures = [f"whichever of them hangs: {cures[0]}", *cures[1:]]
    cure = "; ".join(cures) or "umount -f its mount, or echo 1 > /sys/fs/fuse/connections/N/abort (N: the one with waiting > 0)"
    return "it waits for a FUSE file system whose server does not answer", cure


def driver(stuck: Stuck) -> Answer | None:
    """The NVIDIA driver does not return."""
    if not stuck.asleep(in_driver):
        return None
    return (
        "it waits inside the NVIDIA driver, which does not return",
        "reboot this machine (of a container: its host); the kernel's log may say why: journalctl -k -g 'NVRM|Xid'",
    )


def uninterruptible(stuck: Stuck) -> Answer | None:
    """Any other sleep that no signal ends."""
    if not stuck.asleep(lambda _: True):
        return None
    return (
        "it waits inside the kernel for something that does not come",
        f"mend what it waits for (a disk, a network file system, a driver: cat /proc/{stuck.pid}/task/*/stack), or reboot",
    )


def frozen_v2(stuck: Stuck) -> Answer | None:
    """Frozen in version 2: SIGKILL is let through, so this is rarely the whole reason."""
    groups = [group for group in stuck.frozen if group.version == 2]
    if not groups:
        return None
    return "it is frozen in cgroup v2 " + " and ".join(group.cgroup for group in groups), _thaw(groups)


def traced(stuck: Stuck) -> Answer | None:
    """A tracer may hold it as it exits (PTRACE_EVENT_EXIT of ptrace(2)), and then decides when it goes on."""
    pid = next((thread.tracer for thread in stuck.living if thread.tracer), 0)
    if not pid:
        return None
    name = f' "{stuck.tracer_name}"' if stuck.tracer_name else ""
    return f"it is traced by process {pid}{name}, which does not let it go", f"detach that tracer, or end it: kill {pid}"


def on_its_way(stuck: Stuck) -> Answer | None:
    """Nothing holds it; it has not come to its end."""
    if any(thread.exiting for thread in stuck.living):
        return "it is exiting, and what it holds takes long to give back", "wait; the next sweep looks again"
    if any(thread.killed for thread in stuck.living):
        return "SIGKILL is pending and not handled yet", "wait; the next sweep looks again (is the machine out of CPU time?)"
    return None


def out_of_reach(stuck: Stuck) -> Answer:
    what = "SIGKILL has not reached it; a security module may forbid it"
    return what, f"look there (AppArmor, SELinux), then kill -9 {stuck.pid}"


# The order is the meaning: what is frozen moves nowhere, whatever else holds; what holds surely comes before what may.
RULES: tuple[Rule, ...] = (frozen_v1, fuse, driver, uninterruptible, frozen_v2, traced, on_its_way)


def diagnose(stuck: Stuck) -> str:
    """What its threads do, why it does not end, and what frees it."""
    if not stuck.living:
        return "it has ended meanwhile"
    what, cure = next((answer for rule in RULES if (answer := rule(stuck))), None) or out_of_reach(stuck)
    return f"{_threads_text(stuck)}: {what}; to free it: {cure}"


def _threads_text(stuck: Stuck) -> str:
    living = stuck.living
    leader_gone = any(thread.tid == stuck.pid and not thread.lives for thread in stuck.threads)
    pending = ", SIGKILL pending" if all(thread.killed for thread in living) else ""
    if leader_gone:
        return f"its leader has exited (state Z) and {_count(living)}: {_kinds(living)}{pending}"
    if len(living) == 1:
        return f"{_doing(living[0])}{pending}"
    return f"{show_count(len(living), 'thread')}: {_kinds(living)}{pending}"


def _count(threads: Sequence[Thread]) -> str:
    return f"{show_count(len(threads), 'thread')} {'lives' if len(threads) == 1 else 'live'}"


def _kinds(threads: Sequence[Thread]) -> str:
    """The threads by what they do, those that cannot be woken first; the number of one that is alone in it."""
    if len(threads) == 1:
        return f"thread {threads[0].tid} in {_doing(threads[0])}"
    kinds = Counter(_doing(thread) for thread in sorted(threads, key=lambda thread: thread.state != "D"))
    ranked = [f"{number} in {doing}" for doing, number in kinds.items()]
    rest = [f"{len(ranked) - KINDS_SHOWN} more kinds"] if len(ranked) > KINDS_SHOWN else []
    return ", ".join(ranked[:KINDS_SHOWN] + rest)


def _doing(thread: Thread) -> str:
    where = f" in {thread.where}" if thread.where else ", wait channel unknown" if thread.state == "D" else ""
    return f"state {thread.state}{where}"


def _thaw(groups: Sequence[Frozen]) -> str:
    return "; ".join(_thaw_one(group) for group in groups)


def _thaw_one(group: Frozen) -> str:
    word = "THAWED" if group.version == 1 else "0"
    if group.file:
        return f"echo {word} > {shlex.quote(group.file)}"
    name = "freezer.state" if group.version == 1 else "cgroup.freeze"
    return f"echo {word} > {name} of that cgroup, on the host or wherever its hierarchy is mounted"


def _abort(mount: FuseMount) -> str:
    # umount -f, too, aborts the connection, although it then may say that the target is busy.
    ways = [f"echo 1 > {shlex.quote(mount.abort)}"] if mount.abort else []
    return ", or ".join([*ways, f"umount -f {shlex.quote(mount.place)}"] if mount.place else ways)
