"""What one look at a running engine must show before anything is called ready or healthy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_lifecycle.facts import Identity
from gpu_lifecycle.rules.metrics import Counters, Scrape
from gpu_lifecycle.rules.quantity import show_size

DEFAULT_MIN_USED = 512 * 1024 * 1024  # more than a bare CUDA context takes, less than any model's share


def min_used_for(weights: int | None, gpus: int) -> int:
    """How much each GPU must hold at least, where the config leaves it to us.

    Half of an even share of the weights: layers are not split evenly, while a load that stopped half way, or that went to
    the host's memory, stays well below it.
    """
    return max(DEFAULT_MIN_USED, weights // (2 * gpus)) if weights and gpus else DEFAULT_MIN_USED


@dataclass(frozen=True, slots=True)
class Needs:
    """What READY=1 asks for: so much memory of the unit's own processes on each of these GPUs (UUID: label)."""

    gpus: Mapping[str, str]
    min_used: int = DEFAULT_MIN_USED


@dataclass(frozen=True, slots=True)
class Health:
    """One answer of the health endpoint. ``code`` None: no HTTP answer, and ``text`` says why.

    ``silent``: neither an answer nor a refusal. Nothing, or not all of it, came within the deadline, or this machine had no
    room for a connection.
    """

    code: int | None
    text: str
    seconds: float = 0.0
    silent: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 200


NOT_ASKED = Health(None, "not asked this time")


@dataclass(frozen=True, slots=True)
class Socket:
    """Who listens where the engine should: nobody, the unit's own process, or a stranger (named)."""

    listening: bool = False
    ours: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Signs:
    """What one look shows of the core. ``scrape`` None: this engine has no metrics page.

    ``health`` None: not asked this time. ``health_generates``: its 200 costs, and proves, a token. ``token``: the answer to
    our own request for one that has come since the last look; ``waited``: the seconds that such a request has had none;
    ``others``: so many connections to the engine beside ours there are, where nothing else tells whether it has work.
    ``within`` False: the counters move only when requests end, so their rest says nothing.
    """

    scrape: Scrape | None = None
    counters: Counters | None = None
    health: Health | None = None
    health_generates: bool = False
    token: Health | None = None
    waited: float | None = None
    others: int = 0
    within: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """One look: memory of the unit's own processes per claimed GPU (None: unknown), socket, health, processes."""

    memory: Mapping[str, int | None]
    socket: Socket
    health: Health
    workers: frozenset[Identity] = frozenset()  # processes of the unit that hold GPU memory or bear a worker's title
    alive: frozenset[Identity] = frozenset()  # all living processes of the unit
    nvml_error: str = ""
    model: str = ""
    generated: Health | None = None  # the answer to the request for one token; None: not asked for
    room: Mapping[str, int] = field(default_factory=dict)  # bytes that are left on each claimed GPU
    estimated: bool = False  # a figure of ``memory`` is the GPU's total less what was there before, not the driver's own
    unseen: Mapping[str, str] = field(default_factory=dict)  # claimed GPUs whose memory could not be read just now, and why
    signs: Signs = field(default_factory=Signs)  # of a ready engine's core; its health is the one above

    @property
    def bound_by_us(self) -> bool:
        return self.socket.listening and self.socket.ours

    @property
    def health_ok(self) -> bool:
        return self.health.ok


def blind(look: Look) -> str:
    """Why GPU memory, or that of a claimed GPU, could not be seen just now; "" where it could."""
    return look.nvml_error or next(iter(look.unseen.values()), "")


def unmet(look: Look, needs: Needs, *, blind_is_fine: bool = False) -> tuple[str, ...]:
    """Every condition that does not hold, each in its own words; empty means ready.

    ``blind_is_fine``: once ready, NVML's silence alone is no proof that the engine is dead.
    """
    reasons = list(out_of_place(look, needs, blind_is_fine=blind_is_fine))
    if not look.health.ok:
        reasons.append(f"the health endpoint says: {look.health.text}")
    elif look.generated is not None and not look.generated.ok:
        reasons.append(f"no token was generated: {look.generated.text}")
    return tuple(reasons)


def out_of_place(look: Look, needs: Needs, *, blind_is_fine: bool = False) -> tuple[str, ...]:
    """What does not hold of memory and socket, whatever the engine answers."""
    reasons: list[str] = []
    if look.nvml_error:
        if not blind_is_fine:
            reasons.append(f"GPU memory cannot be seen: {look.nvml_error}")
    else:
        reasons += _memory(look, needs, look.unseen if blind_is_fine else {})
    reasons += _socket(look.socket)
    return tuple(reasons)


def _memory(look: Look, needs: Needs, excused: Mapping[str, str]) -> list[str]:
    short = [
        f"GPU {label} has {'unknown' if amount is None else show_size(amount)}"
        for uuid, label in needs.gpus.items()
        if uuid not in excused and ((amount := look.memory.get(uuid)) is None or amount < needs.min_used)
    ]
    if not short:
        return []
    shown = ", ".join(short[:3]) + (f" and {len(short) - 3} more" if len(short) > 3 else "")
    return [f"this unit's own memory is below {show_size(needs.min_used)}: {shown}"]


def _socket(socket: Socket) -> list[str]:
    if not socket.listening:
        return ["nobody listens on the engine's port"]
    if not socket.ours:
        return [f"the engine's port is not this unit's: {socket.owner or 'somebody that cannot be seen'} listens there"]
    return []


def progress_of(look: Look) -> tuple[int, int, str]:
    """A mark that grows while a load makes progress: bound or not, memory in steps of 16 MiB, the health answer."""
    total = sum(amount or 0 for amount in look.memory.values())
    return (int(look.bound_by_us), total // (16 * 1024 * 1024), str(look.health.code or ""))
