"""What the life of one run is made of: its times, the events that are fed to it, the effects that it asks for, its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpu_lifecycle.errors import Exit
from gpu_lifecycle.facts import Identity, Phase
from gpu_lifecycle.rules.budget import Budget
from gpu_lifecycle.rules.config import Watch
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.liveness import Heart, Pace
from gpu_lifecycle.rules.loads import NOTHING_LEARNED, Learned, Loaded
from gpu_lifecycle.rules.phases import NOTHING_SAID, Load
from gpu_lifecycle.rules.readiness import Look, Needs
from gpu_lifecycle.rules.xid import KernelSays

EXTEND_MARGIN = 30.0
SLOW_LOOK = 20.0  # seconds that NVML and the metrics page may add to a look


@dataclass(frozen=True, slots=True)
class Limits:
    """All times in seconds; from the config."""

    needs: Needs
    stall: float
    ceiling: float
    interval: float
    probe_timeout: float
    failures: int
    drain: float
    term_grace: float
    exit_deadline: float
    busy_grace: float = Watch.busy_grace
    weights: int = 0  # bytes of them on each GPU; 0: not known
    before: float = 0.0  # for stop.before, which keeps new requests away; 0: there is none
    learned: Learned = NOTHING_LEARNED  # of earlier loads of the same kind

    @property
    def pace(self) -> Pace:
        return Pace(self.interval, self.busy_grace)

    @property
    def gap(self) -> float:
        """Between two looks: more shows that we stood still ourselves. A slow NVML is no gap, unless the grace is short."""
        usual = 3 * self.interval + 2 * self.probe_timeout
        return min(usual + SLOW_LOOK, max(usual, self.busy_grace / 2))


# Events


@dataclass(frozen=True, slots=True)
class Started:
    pid: int


@dataclass(frozen=True, slots=True)
class Looked:
    """``load``: how far the engine is by its own lines.

    ``read``: bytes that its processes have read, None: not seen. ``doing``: what they do, looked at where nothing moves.
    """

    look: Look
    load: Load = NOTHING_SAID
    read: int | None = None
    doing: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """By its own lines the engine has come to another step of its load."""

    load: Load


@dataclass(frozen=True, slots=True)
class EngineExited:
    """``status`` as subprocess gives it: negative for a signal.

    ``oom``: how many of the unit's processes the kernel has ended for memory in this run. ``words``: the first telling line
    of the engine's own output.
    """

    status: int
    oom: int = 0
    words: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    pass


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; ``left`` is how many of the unit's processes live."""

    left: int


@dataclass(frozen=True, slots=True)
class BeforeEnded:
    """The command of stop.before has ended; ``text`` says how, "" for well."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class InFlight:
    """How many requests a draining engine still has; None: it cannot be told, and ``why``."""

    count: int | None
    why: str = ""


LifeEvent = Started | Looked | Heard | EngineExited | StopRequested | BeforeEnded | KernelSays | InFlight | Tick

# Effects


@dataclass(frozen=True, slots=True)
class Notify:
    """Lines for the service manager; a STATUS line is made from ``status``."""

    lines: tuple[str, ...] = ()
    status: str = ""


@dataclass(frozen=True, slots=True)
class Tell:
    event: Event


@dataclass(frozen=True, slots=True)
class SignalMain:
    """SIGTERM to the engine's main process."""


@dataclass(frozen=True, slots=True)
class SignalAll:
    """A signal to all of the unit's processes but the daemon and its helper: SIGKILL if ``kill``, else SIGTERM."""

    kill: bool


@dataclass(frozen=True, slots=True)
class RunBefore:
    """The command of stop.before is to be started; BeforeEnded tells its end."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Evidence is to be kept before anything is signalled: ``why`` the run fails."""

    why: str


@dataclass(frozen=True, slots=True)
class Remember:
    """The load has become ready: how it went is to be kept for the next one."""

    loaded: Loaded


@dataclass(frozen=True, slots=True)
class Finish:
    status: Exit


Effect = Notify | Tell | SignalMain | SignalAll | RunBefore | Gather | Remember | Finish


@dataclass(frozen=True, slots=True)
class Life:
    """Where one run is. ``text`` is what ``systemctl status`` shows."""

    limits: Limits
    phase: Phase = Phase.LOADING
    began: float = 0.0
    since: float = 0.0
    text: str = "starting the engine"
    engine: int = 0
    engine_gone: bool = False
    # progress while loading
    progressed: float = 0.0
    mark: tuple[int, int, str] = (0, 0, "")
    extended: float = 0.0
    engine_step: int = 0  # rules.phases.Step
    step_since: float = 0.0
    took: str = ""  # the steps that are over, and how long each took: rules.loading.durations
    done: int = 0  # ... of the ``total`` shards or graphs of that step
    total: int = 0
    said: bool = False  # the engine's own lines show progress that has not been told yet
    said_unmet: str = ""
    read: int = 0  # bytes
    last_progress: str = ""
    doing: str = ""  # what the processes do while nothing moves
    progress: float | None = None  # 0..1
    eta: float | None = None  # seconds
    # health once ready
    was_ready: bool = False
    ready_at: float = 0.0
    workers: frozenset[Identity] = frozenset()
    ready_text: str = ""  # what was said then, and is said again after a busy time
    strikes: int = 0
    passes: int = 0  # good looks in a row since the last strike
    looked: float = 0.0
    heart: Heart = field(default_factory=Heart)
    useless_said: bool = False
    blind_said: bool = False
    memory: Mapping[str, int | None] = field(default_factory=dict)
    resident: Mapping[str, int] = field(default_factory=dict)  # the most that each GPU has held since READY=1
    shrunk: frozenset[str] = frozenset()  # GPUs of which it was said that memory has vanished
    tight: frozenset[str] = frozenset()  # ... that their memory is used up
    # the end
    failure: str = ""
    alike: str = ""  # what makes another failure the same one, where the words of this one are not it
    verdict: str = ""  # what kind of failure that is, in one word of rules.cause
    refusal: str = ""  # why no restart can help, with what the host has to do
    stopping: bool = False
    before: bool = False  # stop.before is running, the engine has not been signalled yet
    stage: int = 0  # 0 not ending, 1 main has SIGTERM, 2 all have SIGTERM, 3 all have SIGKILL
    deadline: float | None = None
    in_flight: int | None = None  # requests, as last seen in the drain
    least: int | None = None  # ... the fewest
    empty_since: float | None = None  # since when there is none
    empty_said: bool = False
    budget: Budget = field(default_factory=Budget)
    status: Exit | None = None


Result = tuple[Life, tuple[Effect, ...]]


def enter(life: Life, phase: Phase, text: str, now: float) -> Result:
    """Changes the phase and says so; the STATUS line is always overwritten, for the last one would stay."""
    changed = replace(life, phase=phase, since=now, text=text)
    event = Event("phase-changed", text, {"GPU_LIFECYCLE_PHASE": str(phase)})
    return changed, (Notify(status=text), Tell(event))


def extend(seconds: float) -> str:
    """Asks systemd for time: from now, so much and a margin, in microseconds (sd_notify(3)). Our own deadlines end sooner."""
    return f"EXTEND_TIMEOUT_USEC={round((seconds + EXTEND_MARGIN) * 1e6)}"
