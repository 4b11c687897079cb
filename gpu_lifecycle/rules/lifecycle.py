"""The life of one run as a pure machine: ``step(state, event, now) -> (state, effects)``.

The loop in ``jobs/serve.py`` feeds it what was seen and does what it says. ``now`` is seconds on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from gpu_lifecycle.errors import Exit
from gpu_lifecycle.facts import Identity, Phase
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.quantity import show_count, show_duration, show_size
from gpu_lifecycle.rules.readiness import Look, Needs, blind, progress_of, unmet
from gpu_lifecycle.rules.xid import KernelSays
from gpu_lifecycle.rules.xid_codes import Act

LOADING_STOP_GRACE = 3.0  # an engine that is still loading has nothing to drain, and its main process dies at once
EXTEND_EVERY = 5.0  # seconds between two EXTEND_TIMEOUT_USEC
EXTEND_MARGIN = 30.0
PROVEN = 600.0  # seconds of being ready after which a failure is a new one, not the old one again
MAX_FAILED_STARTS = 5  # in one chain of automatic restarts; loads take minutes, so systemd's own limit never trips


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


# Events


@dataclass(frozen=True, slots=True)
class Started:
    pid: int


@dataclass(frozen=True, slots=True)
class Looked:
    look: Look


@dataclass(frozen=True, slots=True)
class EngineExited:
    """``status`` as subprocess gives it: negative for a signal."""

    status: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    pass


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; ``left`` is how many of the unit's processes live."""

    left: int


LifeEvent = Started | Looked | EngineExited | StopRequested | KernelSays | Tick

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
class Finish:
    status: Exit


Effect = Notify | Tell | SignalMain | SignalAll | Finish


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
    said_unmet: str = ""
    # health once ready
    was_ready: bool = False
    ready_at: float = 0.0
    workers: frozenset[Identity] = frozenset()
    strikes: int = 0
    looked: float = 0.0
    blind_said: bool = False
    memory: Mapping[str, int | None] = field(default_factory=dict)
    # the end
    failure: str = ""
    refusal: str = ""  # why no restart can help, with what the host has to do
    stopping: bool = False
    stage: int = 0  # 0 not ending, 1 main has SIGTERM, 2 all have SIGTERM, 3 all have SIGKILL
    deadline: float | None = None
    failed_starts: int = 0
    status: Exit | None = None


Result = tuple[Life, tuple[Effect, ...]]


def step(life: Life, event: LifeEvent, now: float) -> Result:
    """The next state, and what is to be done. Every event is answered in every phase."""
    if life.status is not None:
        return life, ()
    match event:
        case Started(pid):
            return _started(life, pid, now)
        case Looked(look):
            return (life, ()) if life.stage else _in_time(_looked(life, look, now), now)
        case EngineExited(status):
            return _exited(life, status, now)
        case StopRequested():
            return _stop(life, now)
        case KernelSays():
            return _kernel_says(life, event, now)
        case Tick(left):
            return _tick(life, left, now)
        case _:
            assert_never(event)


def _enter(life: Life, phase: Phase, text: str, now: float) -> Result:
    """Changes the phase and says so; the STATUS line is always overwritten, for the last one would stay."""
    changed = replace(life, phase=phase, since=now, text=text)
    event = Event("phase-changed", text, {"GPU_LIFECYCLE_PHASE": str(phase)})
    return changed, (Notify(status=text), Tell(event))


def _extend(seconds: float) -> str:
    """Asks systemd for time: from now, so much and a margin, in microseconds (sd_notify(3)). Our own deadlines end sooner."""
    return f"EXTEND_TIMEOUT_USEC={round((seconds + EXTEND_MARGIN) * 1e6)}"


def _started(life: Life, pid: int, now: float) -> Result:
    text = f"loading: engine started as process {pid}"
    begun = replace(life, engine=pid, began=now, since=now, progressed=now, looked=now, text=text)
    return begun, (
        Notify((_extend(life.limits.stall),), text),
        Tell(Event("engine-started", f"engine started as process {pid}")),
    )


def _looked(life: Life, look: Look, now: float) -> Result:
    life = replace(life, memory=look.memory)
    result = _watched(life, look, now) if life.was_ready else _loading(life, look, now)
    return replace(result[0], looked=now), result[1]


# Loading


def _loading(life: Life, look: Look, now: float) -> Result:
    reasons = unmet(look, life.limits.needs)
    if not reasons:
        return _ready(life, look, now)
    effects: list[Effect] = []
    mark = progress_of(look)
    if mark > life.mark:
        life = replace(life, mark=mark, progressed=now)
        if now - life.extended >= EXTEND_EVERY:
            life = replace(life, extended=now)
            effects.append(Notify((_extend(life.limits.stall),)))
    text = loading_text(look, reasons, life, now)
    phase = Phase.WARMING if look.bound_by_us else Phase.LOADING
    if phase is not life.phase:
        life, more = _enter(life, phase, text, now)
        effects += more
    elif text != life.text:
        life = replace(life, text=text)
        effects.append(Notify(status=text))
    if look.health_ok and reasons[0] != life.said_unmet:
        life = replace(life, said_unmet=reasons[0])
        effects.append(Tell(Event("not-ready", f"health is 200, but not ready: {'; '.join(reasons)}")))
    return life, tuple(effects)


def loading_text(look: Look, reasons: tuple[str, ...], life: Life, now: float) -> str:
    """One line on how far a load is: what is resident, and what is still missing."""
    amounts = [amount or 0 for amount in look.memory.values()]
    count = len(life.limits.needs.gpus)
    held = f"{_span(amounts)} on each of {show_count(count, 'GPU')}" if any(amounts) else "no GPU memory yet"
    word = "warming up" if look.bound_by_us else "loading"
    return f"{word} for {show_duration(round(now - life.began))}: {held}; not ready: {reasons[0]}"


def _span(amounts: list[int]) -> str:
    low, high = show_size(min(amounts)), show_size(max(amounts))
    return low if low == high else f"{low} to {high}"


def _ready(life: Life, look: Look, now: float) -> Result:
    total = sum(amount or 0 for amount in look.memory.values())
    took = show_duration(round(now - life.began, 1))
    count = len(life.limits.needs.gpus)
    text = f"ready: {look.model or 'engine'} on {show_count(count, 'GPU')}, {show_size(total)} resident, loaded in {took}"
    life = replace(life, was_ready=True, ready_at=now, workers=look.workers, phase=Phase.READY, since=now, text=text, strikes=0)
    return life, (Notify(("READY=1", "WATCHDOG=1"), text), Tell(Event("ready", text)))


# Ready


def _watched(life: Life, look: Look, now: float) -> Result:
    lost = life.workers - look.alive
    if lost:
        pids = ", ".join(str(identity.pid) for identity in sorted(lost, key=lambda item: item.pid))
        return _fail(life, f"lost {len(lost)} of {len(life.workers)} workers (pid {pids})", now)
    reasons = unmet(look, life.limits.needs, blind_is_fine=True)
    gap = now - life.looked > 3 * life.limits.interval + 2 * life.limits.probe_timeout
    if reasons and gap:
        return life, ()  # we were frozen or suspended: what was seen first after it proves nothing
    if reasons:
        return _strike(life, reasons, now)
    effects: list[Effect] = [Notify(("WATCHDOG=1",))]
    if blind(look) and not life.blind_said:
        life = replace(life, blind_said=True)
        effects.append(
            Tell(Event("nvml-trouble", f"GPU memory cannot be seen, health is judged without it: {look.nvml_error}"))
        )
    elif not blind(look):
        life = replace(life, blind_said=False)
    if life.strikes:
        text = f"ready: healthy again after {show_count(life.strikes, 'failed check')}"
        life = replace(life, strikes=0, phase=Phase.READY, since=now, text=text)
        effects += [Notify(status=text), Tell(Event("healthy-again", text))]
    return life, tuple(effects)


def _strike(life: Life, reasons: tuple[str, ...], now: float) -> Result:
    strikes = life.strikes + 1
    if strikes >= life.limits.failures:
        return _fail(life, f"{show_count(strikes, 'check')} in a row failed: {'; '.join(reasons)}", now)
    text = f"suspect: check {strikes} of {life.limits.failures} failed: {reasons[0]}"
    since = life.since if life.phase is Phase.SUSPECT else now
    life = replace(life, strikes=strikes, phase=Phase.SUSPECT, since=since, text=text)
    return life, (Notify(status=text), Tell(Event("suspect", text)))


# The end


def _fail(life: Life, why: str, now: float) -> Result:
    """The engine is no good: no drain, a short grace for its main process, then the rest."""
    grace = min(life.limits.term_grace, LOADING_STOP_GRACE)
    return _end(replace(life, failure=why), Phase.STOPPING, f"failed: {why}", grace, now, Event("engine-failed", why))


def _kernel_says(life: Life, said: KernelSays, now: float) -> Result:
    """The evidence is told in every phase, and a broken GPU is remembered; the first that ends the run is its reason."""
    told = tuple(Tell(event) for event in said.events)
    if said.act is Act.REFUSE and not life.refusal:
        life = replace(life, refusal=said.text)
    if said.act is Act.LOG or life.stage:
        return life, told
    life, effects = _fail(life, said.text, now)
    return life, (*told, *effects)


def _stop(life: Life, now: float) -> Result:
    if life.stopping:
        return life, ()
    life = replace(life, stopping=True)
    if life.stage:
        return life, (Notify(("STOPPING=1",)),)
    if life.was_ready:
        text = f"draining: the engine has {show_duration(life.limits.drain)} to finish its requests"
        return _end(life, Phase.DRAINING, text, life.limits.drain, now, Event("stop-requested", f"stop requested, {text}"))
    text = "stopping: the engine was still loading"
    return _end(life, Phase.STOPPING, text, LOADING_STOP_GRACE, now, Event("stop-requested", f"stop requested, {text}"))


def _end(life: Life, phase: Phase, text: str, grace: float, now: float, event: Event) -> Result:
    life = replace(life, phase=phase, since=now, text=text, stage=1, deadline=now + grace)
    rest = grace + life.limits.term_grace + life.limits.exit_deadline
    lines = ("STOPPING=1", _extend(rest)) if life.stopping else ()
    return life, (Notify(lines, text), Tell(event), SignalMain())


def _exited(life: Life, status: int, now: float) -> Result:
    life = replace(life, engine_gone=True)
    how = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
    if life.stage == 0:
        when = "after it was ready" if life.was_ready else f"{show_duration(round(now - life.began, 1))} into the load"
        life = replace(life, failure=f"the engine {how}, {when}")
        text = f"failed: {life.failure}"
        life, effects = _next_stage(replace(life, phase=Phase.STOPPING, since=now, text=text), now, 2)
        return life, (Notify(status=text), Tell(Event("engine-failed", life.failure)), *effects)
    return _next_stage(life, now, 2) if life.stage == 1 else (life, ())


def _next_stage(life: Life, now: float, stage: int) -> Result:
    if stage == 2:
        return replace(life, stage=2, deadline=now + life.limits.term_grace), (SignalAll(kill=False),)
    return replace(life, stage=3, deadline=now + life.limits.exit_deadline), (SignalAll(kill=True),)


def _tick(life: Life, left: int, now: float) -> Result:
    if life.stage == 0:
        return _too_long(life, now)
    if left == 0 and life.engine_gone:
        return _finish(life, "all processes of the engine have ended", now)
    if life.deadline is None or now < life.deadline:
        return life, ()
    if life.stage == 3:
        return _finish(life, f"{show_count(left, 'process')} left for the post-stop hook", now)
    loading_or_failed = life.stage == 1 and life.phase is not Phase.DRAINING
    stage = 3 if loading_or_failed or life.stage == 2 else 2
    life, effects = _next_stage(life, now, stage)
    if stage == 3:
        text = f"killing {show_count(left, 'process')} that did not end in time"
        return replace(life, text=text), (Notify(status=text), Tell(Event("engine-killed", text)), *effects)
    return life, effects


def _in_time(result: Result, now: float) -> Result:
    """Looks come so often that no tick may fall between them: the budgets count at each of them, too."""
    life, effects = result
    late, more = _too_long(life, now)
    return late, (*effects, *more)


def _too_long(life: Life, now: float) -> Result:
    if life.was_ready or not life.engine or life.stage:
        return life, ()
    if now - life.began > life.limits.ceiling:
        return _fail(life, f"not ready within ready.ceiling, {show_duration(life.limits.ceiling)}: {life.text}", now)
    if now - life.progressed > life.limits.stall:
        return _fail(life, f"no progress for ready.stall, {show_duration(life.limits.stall)}: {life.text}", now)
    return life, ()


def _proven(life: Life, now: float) -> bool:
    return life.was_ready and now - life.ready_at >= PROVEN


def _finish(life: Life, text: str, now: float) -> Result:
    """Chooses the exit status: what was asked for is a clean end, whatever the engine's own status claims."""
    if life.stopping or not life.failure:
        status, text = Exit.OK, f"stopped: {text}"
        life = replace(life, phase=Phase.STOPPING)
    else:
        failed = 1 if _proven(life, now) else life.failed_starts + 1
        status = Exit.UNAVAILABLE if failed >= MAX_FAILED_STARTS or life.refusal else Exit.TEMPFAIL
        text = f"failed: {life.failure}; {text}"
        if life.refusal:
            text = f"failed: {life.refusal}"
        elif status is Exit.UNAVAILABLE:
            text += f"; {failed} runs in a row failed, none ready for {show_duration(PROVEN)}: mend the cause, then start it"
        life = replace(life, phase=Phase.FAILED, failed_starts=failed)
    life = replace(life, status=status, text=text, since=now)
    return life, (Notify(status=text), Tell(Event("stopped", text)), Finish(status))
