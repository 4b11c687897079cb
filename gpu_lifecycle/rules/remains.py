"""Which files of earlier, unmanaged runs in ``/dev/shm`` and ``/tmp`` may go. Pure.

A name alone removes nothing: it only makes a file worth a look. A file goes where all rules are passed: its kind, its
owner, its age, and that no process can own, open or map it. All else stays; each decision has the name of its rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpu_lifecycle.rules.quantity import show_count, show_size
from gpu_lifecycle.rules.text import printable

SHM, TMP = "/dev/shm", "/tmp"  # noqa: S108 -- looked at through descriptors that follow no link
FILE, SOCKET = "file", "socket"
YOUNG = 60.0  # seconds: whoever made it may be about to open it
FULL = 0.9  # of /dev/shm, above which engines begin to die of SIGBUS
SHOWN = 3  # files that a message names


@dataclass(frozen=True, slots=True)
class Name:
    """One kind of name. ``common``: other programs use it too, so that only a file of that very kind is meant."""

    pattern: re.Pattern[str]
    place: str
    kind: str
    maker: str
    common: bool = False


def _name(pattern: str, place: str, kind: str, maker: str, *, common: bool = False) -> Name:
    return Name(re.compile(pattern), place, kind, maker, common)


_PID = r"(?P<pid>[0-9]{1,10})"
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

# Where each was seen: SGLang 0.5.23 and vLLM 0.32.0 left them in runs of our own, unless a source is named.
NAMES = (
    _name(r"sglang_loads_[0-9a-f]{12}_[0-9a-f]{8}\.shm", SHM, FILE, "SGLang, load reports: one for each start"),
    _name(rf"sgl_shm_mq_{_PID}_[0-9a-f]{{8}}", SHM, FILE, "SGLang, queue between ranks"),
    _name(r"psm_[0-9a-f]{8}", SHM, FILE, "Python, multiprocessing.shared_memory"),
    _name(r"sem\.mp-[a-z0-9_]{8}", SHM, FILE, "Python, multiprocessing.synchronize"),
    _name(rf"torch_{_PID}_[0-9]+_[0-9]+", SHM, FILE, "PyTorch, NewProcessWideShmHandle() of ATen/MapAllocator.cpp"),
    _name(r"nccl-[A-Za-z0-9]{6}", SHM, FILE, "NCCL, ncclShmOpen() of misc/shmutils.cc: mkstemp(3)"),
    _name(r"cuda\.shm\.[0-9a-f]+\.[0-9a-f]+\.[0-9a-f]+", SHM, FILE, "CUDA, memory shared between processes"),
    _name(r"vllm_dist_[0-9a-f]{32}", TMP, FILE, "vLLM, rendezvous of the ranks"),
    _name(_UUID, TMP, SOCKET, "vLLM, messages between processes", common=True),
    _name(r"tmp[a-z0-9_]{8}", TMP, SOCKET, "SGLang, messages between processes", common=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Remain:
    """One entry of a directory, not followed: ``kind`` is file, socket, link, directory or another word."""

    place: str
    name: str
    kind: str
    uid: int
    device: int
    inode: int
    modified_ns: int
    size: int = 0  # bytes that it takes
    links: int = 1

    @property
    def key(self) -> tuple[int, int]:
        return self.device, self.inode

    @property
    def path(self) -> str:
        return f"{self.place}/{printable(self.name, 100)}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The unit's user."""

    uid: int
    name: str


@dataclass(frozen=True, slots=True)
class Moment:
    """Now and the start of this boot, in seconds since 1970; ``boot`` is 0 where it is not known."""

    now: float
    boot: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What all living processes show: their numbers (in every PID namespace), their users, and what they hold."""

    pids: frozenset[int] = frozenset()
    uids: frozenset[int] = frozenset()
    held: frozenset[tuple[int, int]] = frozenset()
    limits: tuple[str, ...] = ()  # why not all could be seen


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of one entry: ``rule`` names the rule that decided, ``why`` is its evidence in words."""

    remain: Remain
    remove: bool
    rule: str
    why: str


def named(place: str, name: str) -> Name | None:
    """The entry of the table that a name in a directory belongs to."""
    return next((item for item in NAMES if item.place == place and item.pattern.fullmatch(name)), None)


def meant(remain: Remain) -> bool:
    """Whether the table means this entry: of a common name, only what is of the table's kind."""
    name = named(remain.place, remain.name)
    return name is not None and (not name.common or remain.kind == name.kind)


def concerns(remain: Remain, owner: Owner) -> bool:
    """Whether it is worth a word: what others leave under a name that any program may use, is not."""
    name = named(remain.place, remain.name)
    return name is not None and not (name.common and remain.uid != owner.uid)


def pid_in(remain: Remain) -> int | None:
    """The process that its name says made it."""
    name = named(remain.place, remain.name)
    found = name.pattern.fullmatch(remain.name) if name else None
    return int(found["pid"]) if found and "pid" in found.groupdict() else None


# Why an entry stays; "" where the rule has nothing against its removal.


def _no_plain_file(remain: Remain, _owner: Owner, _moment: Moment) -> str:
    name = named(remain.place, remain.name)
    if name is None:
        return "no engine is known to leave such a name"
    return "" if remain.kind == name.kind else f"a {remain.kind}, where engines leave a {name.kind}"


def _other_user(remain: Remain, owner: Owner, _moment: Moment) -> str:
    return "" if remain.uid == owner.uid else f"user {remain.uid}'s, and the unit runs as {owner.name} ({owner.uid})"


def _linked(remain: Remain, _owner: Owner, _moment: Moment) -> str:
    return "" if remain.links == 1 else f"it has {remain.links} names"


def _young(remain: Remain, _owner: Owner, moment: Moment) -> str:
    modified = remain.modified_ns / 1e9
    if modified < moment.boot or moment.now - modified >= YOUNG:
        return ""
    return f"written within the last {YOUNG:.0f} s"


def _pid_alive(remain: Remain, _owner: Owner, seen: Seen) -> str:
    pid = pid_in(remain)
    return f"process {pid} of its name is alive" if pid in seen.pids else ""


def _user_alive(remain: Remain, owner: Owner, seen: Seen) -> str:
    if pid_in(remain) is not None or owner.uid not in seen.uids:
        return ""
    return f"its name tells no process, and user {owner.name} has living ones"


def _held(remain: Remain, _owner: Owner, seen: Seen) -> str:
    return "a process has it open or mapped" if remain.key in seen.held else ""


def _unseen(_remain: Remain, _owner: Owner, seen: Seen) -> str:
    return f"not everything could be seen: {seen.limits[0]}" if seen.limits else ""


BY_ITSELF: tuple[tuple[str, Callable[[Remain, Owner, Moment], str]], ...] = (
    ("no-plain-file", _no_plain_file),
    ("other-user", _other_user),
    ("linked", _linked),
    ("young", _young),
)
BY_PROCESSES: tuple[tuple[str, Callable[[Remain, Owner, Seen], str]], ...] = (
    ("pid-alive", _pid_alive),
    ("user-alive", _user_alive),
    ("held", _held),
    ("partial-sight", _unseen),
)


def keep_by_itself(remain: Remain, owner: Owner, moment: Moment) -> Decision | None:
    """Kept for what it is. None: only a look at all processes can tell."""
    found = ((rule, decide(remain, owner, moment)) for rule, decide in BY_ITSELF)
    return next((Decision(remain, False, rule, why) for rule, why in found if why), None)


def judge(remain: Remain, owner: Owner, seen: Seen) -> Decision:
    """Decides about one that ``keep_by_itself`` has let pass."""
    found = ((rule, decide(remain, owner, seen)) for rule, decide in BY_PROCESSES)
    kept = next((Decision(remain, False, rule, why) for rule, why in found if why), None)
    return kept or Decision(remain, True, "leftover", f"{owner.name}'s, and no living process can own, open or map it")


# Words


def size_text(remains: Iterable[Remain]) -> str:
    return show_size(sum(remain.size for remain in remains))


def removed_text(done: Sequence[Decision]) -> str:
    """What was removed, in one line."""
    files = [item.remain for item in done]
    names = ", ".join(remain.path for remain in files[:SHOWN]) + _more(len(files))
    return f"removed {show_count(len(files), 'file')} of earlier runs, {size_text(files)}: {names}"


def kept_text(kept: Sequence[Decision]) -> str:
    """What was kept by one rule, in one line."""
    files = [item.remain for item in kept]
    names = "; ".join(f"{item.remain.path}, because: {item.why}" for item in kept[:SHOWN]) + _more(len(files))
    return f"left alone {show_count(len(files), 'file')} named like an engine's, {size_text(files)}: {names}"


def _more(number: int) -> str:
    return f"; and {number - SHOWN} more" if number > SHOWN else ""


def full_text(used: float | None) -> str:
    """A warning where the host's ``/dev/shm`` is nearly full. The unit has one of its own: no reason to refuse."""
    return f"the host's {SHM} is {used:.0%} full, see: ls -l {SHM}" if used is not None and used > FULL else ""
