"""The life of one run as a pure machine: ``step(state, event, now) -> (state, effects)``.

The loop in ``jobs/serve.py`` feeds it what was seen and does what it says. ``now`` is seconds on the monotonic clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.draining import followed
from gpu_lifecycle.rules.drift import notice
from gpu_lifecycle.rules.ending import drain, ended_tick, exited, fail, kernel_says, stop
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.life import (
    BeforeEnded,
    Effect,
    EngineExited,
    Finish,
    Gather,
    Heard,
    InFlight,
    Life,
    LifeEvent,
    Limits,
    Looked,
    Notify,
    Remember,
    Result,
    RunBefore,
    SignalAll,
    SignalMain,
    Started,
    StopRequested,
    Tell,
    Tick,
    enter,
    extend,
)
from gpu_lifecycle.rules.liveness import Finding, Pulse, begun, judge, useless
from gpu_lifecycle.rules.loading import (
    further,
    guess,
    has_read_on,
    in_load,
    loaded,
    loading_text,
    progress_words,
    stalled,
    steps_text,
    took,
)
from gpu_lifecycle.rules.phases import Load, Step
from gpu_lifecycle.rules.quantity import show_count, show_duration, show_size
from gpu_lifecycle.rules.readiness import NOT_ASKED, Look, blind, out_of_place, progress_of, unmet
from gpu_lifecycle.rules.xid import KernelSays

__all__ = [
    "BeforeEnded",
    "Effect",
    "EngineExited",
    "Finish",
    "Gather",
    "Heard",
    "InFlight",
    "KernelSays",
    "Life",
    "LifeEvent",
    "Limits",
    "Looked",
    "Notify",
    "Remember",
    "Result",
    "RunBefore",
    "SignalAll",
    "SignalMain",
    "Started",
    "StopRequested",
    "Tell",
    "Tick",
    "step",
]

EXTEND_EVERY = 5.0  # seconds between two EXTEND_TIMEOUT_USEC


def step(life: Life, event: LifeEvent, now: float) -> Result:
    """The next state, and what is to be done. Every event is answered in every phase."""
    if life.status is not None:
        return life, ()
    match event:
        case Started(pid):
            return _started(life, pid, now)
        case Looked(look, load):
            heard = _read_on(_heard(life, load, now), event, now)
            return (life, ()) if life.stage else _in_time(_looked(heard, look, now), now)
        case Heard(load):
            return (_heard(life, load, now) if life.engine else life), ()  # else before Started: the next look tells it again
        case EngineExited():
            return exited(life, event, now)
        case StopRequested():
            return stop(life, now)
        case BeforeEnded(text):
            return drain(life, now, text) if life.before else (life, ())
        case KernelSays():
            return kernel_says(life, event, now)
        case InFlight():
            return followed(life, event, now)
        case Tick(left):
            return ended_tick(life, left, now) if life.stage else _too_long(life, now)
        case _:
            assert_never(event)


def _started(life: Life, pid: int, now: float) -> Result:
    text = f"loading: engine started as process {pid}"
    begun = replace(life, engine=pid, began=now, since=now, step_since=now, progressed=now, looked=now, text=text)
    return begun, (
        Notify((extend(life.limits.stall),), text),
        Tell(Event("engine-started", f"engine started as process {pid}")),
    )


def _looked(life: Life, look: Look, now: float) -> Result:
    life = replace(life, memory=look.memory)
    life, effects = _watched(life, look, now) if life.was_ready else _loading(life, look, now)
    life, told = notice(life, look)
    return replace(life, looked=now), (*effects, *told)


# Loading


def _heard(life: Life, load: Load, now: float) -> Life:
    """What the engine says of itself counts as progress where it goes forward; that has an end, for it never goes back."""
    before = Load(Step(life.engine_step), life.done, life.total)
    if life.was_ready or (load.step, load.part) <= (before.step, before.part):
        return life
    since = life.step_since
    if load.step > before.step:
        life, since = replace(life, took=took(life, now)), now
    counted = f" {load.done} of {load.total}" if load.total else ""
    return replace(
        life, engine_step=int(load.step), step_since=since, done=load.done, total=load.total, progressed=now, said=True,
        last_progress=f"{load.step.words}{counted}, by its own words",
    )  # fmt: skip


def _read_on(life: Life, event: Looked, now: float) -> Life:
    """So does what its processes read, while the weights are loaded: a disk may be slow, and show in nothing else."""
    life = replace(life, doing=event.doing)
    if life.was_ready or event.read is None:
        return life
    on, read = has_read_on(life, event.read), max(life.read, event.read)
    if not on:
        return replace(life, read=read)
    return replace(life, read=read, progressed=now, said=True, last_progress=f"{show_size(read)} read by its processes")


def _loading(life: Life, look: Look, now: float) -> Result:
    reasons = unmet(look, life.limits.needs)
    if not reasons:
        learnt = Remember(loaded(life, look, now))
        life, ready = _ready(life, look, now)
        return life, (*ready, learnt)
    effects: list[Effect] = []
    mark = progress_of(look)
    if mark > life.mark or life.said:
        last = progress_words(look, life) if mark > life.mark else life.last_progress
        life = replace(life, mark=max(mark, life.mark), progressed=now, said=False, last_progress=last, doing="")
        if now - life.extended >= EXTEND_EVERY:
            life = replace(life, extended=now)
            effects.append(Notify((extend(life.limits.stall),)))
    seen = guess(life, look, now)
    life = replace(life, progress=further(life.progress, seen.progress), eta=seen.left)
    text = loading_text(look, reasons, life, now, seen)
    phase = Phase.WARMING if look.bound_by_us and not in_load(life.engine_step) else Phase.LOADING
    if phase is not life.phase:
        life, more = enter(life, phase, text, now)
        effects += more
    elif text != life.text:
        life = replace(life, text=text)
        effects.append(Notify(status=text))
    if look.health_ok and reasons[0] != life.said_unmet:
        life = replace(life, said_unmet=reasons[0])
        effects.append(Tell(Event("not-ready", f"health is 200, but not ready: {'; '.join(reasons)}")))
    return life, tuple(effects)


def _ready(life: Life, look: Look, now: float) -> Result:
    total = sum(amount or 0 for amount in look.memory.values())
    took = show_duration(round(now - life.began, 1))
    count = len(life.limits.needs.gpus)
    text = f"ready: {look.model or 'engine'} on {show_count(count, 'GPU')}, {show_size(total)} resident, loaded in {took}"
    if look.estimated:
        text += " (memory estimated from each GPU's total: the driver does not say what a process holds)"
    steps = steps_text(life, now)
    text += f" ({steps})" if steps else ""
    life = replace(
        life, was_ready=True, ready_at=now, workers=look.workers, phase=Phase.READY, since=now, text=text, ready_text=text,
        strikes=0, heart=begun(now),
    )  # fmt: skip
    return life, (Notify(("READY=1", "WATCHDOG=1"), text), Tell(Event("ready", text)))


# Ready


def _watched(life: Life, look: Look, now: float) -> Result:
    lost = life.workers - look.alive
    if lost:
        pids = ", ".join(str(identity.pid) for identity in sorted(lost, key=lambda item: item.pid))
        return fail(life, f"lost {len(lost)} of {len(life.workers)} workers (pid {pids})", now, "worker-lost")
    reasons = out_of_place(look, life.limits.needs, blind_is_fine=True)
    signs = replace(look.signs, health=None if look.health == NOT_ASKED else look.health)
    gap = now - life.looked > life.limits.gap
    if gap:  # we were frozen or suspended: what was seen first after it proves nothing, and no wait goes on over it
        life = replace(life, heart=begun(now, signs.counters))
    heart, finding = judge(life.heart, signs, life.limits.pace, now)
    life = replace(life, heart=heart)
    bad = (*reasons, finding.text) if finding.pulse is Pulse.STRIKE else reasons
    if bad and gap:
        return life, ()
    if finding.pulse is Pulse.STALLED:
        return fail(life, "; ".join((finding.text, *reasons)), now, "stalled")
    return _strike(life, bad, now) if bad else _well(life, look, finding, now)


def _well(life: Life, look: Look, finding: Finding, now: float) -> Result:
    """The only place that feeds systemd's watchdog, once the engine is ready."""
    life, blindness = _blindness(life, look)
    effects: list[Effect] = [Notify(("WATCHDOG=1",)), *blindness]
    if life.strikes:
        life, more = _recovering(life, finding, now)
        return life, (*effects, *more)
    text = f"ready, busy: {finding.text}" if finding.pulse is Pulse.BUSY else life.ready_text
    if text and text != life.text:
        life = replace(life, text=text)
        effects.append(Notify(status=text))
    return life, tuple(effects)


def _blindness(life: Life, look: Look) -> Result:
    """What cannot be seen is told once, and again only after it could be seen."""
    effects: list[Effect] = []
    if blind(look) and not life.blind_said:
        text = f"GPU memory cannot be seen, health is judged without it: {blind(look)}"
        effects.append(Tell(Event("nvml-trouble", text)))
    why = useless(look.signs)
    if why and not life.useless_said:
        effects.append(Tell(Event("pulse-unseen", f"whether the engine's core works is judged without a token: {why}")))
    said = bool(why) if look.signs.token is not None else life.useless_said
    return replace(life, blind_said=bool(blind(look)), useless_said=said), tuple(effects)


def _recovering(life: Life, finding: Finding, now: float) -> Result:
    """As many good looks as it takes bad ones: an engine that fails every other look is not well.

    Progress of its core counts for all of them: a step that takes longer than an interval, beside an endpoint that fails
    meanwhile, would else add up to a verdict on an engine that works.
    """
    life = replace(life, passes=life.passes + (finding.pulse is Pulse.ALIVE))
    if life.passes < life.limits.failures and not finding.moved:
        return life, ()
    text = f"ready: healthy again after {show_count(life.strikes, 'failed check')}"
    life = replace(life, strikes=0, passes=0, phase=Phase.READY, since=now, text=text, ready_text=text)
    return life, (Notify(status=text), Tell(Event("healthy-again", text)))


def _strike(life: Life, reasons: tuple[str, ...], now: float) -> Result:
    strikes = life.strikes + 1
    if strikes >= life.limits.failures:
        return fail(life, f"{show_count(strikes, 'check')} failed without a recovery: {'; '.join(reasons)}", now, "unhealthy")
    text = f"suspect: check {strikes} of {life.limits.failures} failed: {reasons[0]}"
    since = life.since if life.phase is Phase.SUSPECT else now
    life = replace(life, strikes=strikes, passes=0, phase=Phase.SUSPECT, since=since, text=text)
    return life, (Notify(status=text), Tell(Event("suspect", text)))


# Time


def _in_time(result: Result, now: float) -> Result:
    """Looks come so often that no tick may fall between them: the budgets count at each of them, too."""
    life, effects = result
    late, more = _too_long(life, now)
    return late, (*effects, *more)


def _too_long(life: Life, now: float) -> Result:
    if life.was_ready or not life.engine or life.stage:
        return life, ()
    if now - life.began > life.limits.ceiling:
        why = f"not ready within ready.ceiling, {show_duration(life.limits.ceiling)}: {life.text}"
        return fail(life, why, now, "load-too-long")
    if now - life.progressed > life.limits.stall:
        why, alike = stalled(life, now)
        return fail(replace(life, alike=alike), why, now, "load-stalled")
    return life, ()
