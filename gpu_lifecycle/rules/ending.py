"""The end of a run: why it fails, how it is stopped, in which steps its processes are ended, and with which status it exits."""

from __future__ import annotations

from dataclasses import replace

from gpu_lifecycle.errors import Exit
from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.draining import cut
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.life import (
    EngineExited,
    Finish,
    Gather,
    Life,
    Notify,
    Result,
    RunBefore,
    SignalAll,
    SignalMain,
    Tell,
    extend,
)
from gpu_lifecycle.rules.quantity import show_count, show_duration
from gpu_lifecycle.rules.xid import KernelSays
from gpu_lifecycle.rules.xid_codes import Act

LOADING_STOP_GRACE = 3.0  # an engine that is still loading has nothing to drain, and its main process dies at once
PROVEN = 600.0  # seconds of being ready after which a failure is a new one, not the old one again


def fail(life: Life, why: str, now: float, verdict: str) -> Result:
    """The engine is no good: no drain, a short grace for its main process, then the rest.

    ``verdict`` is the kind of failure in a word of ``rules.cause``.
    """
    grace = min(life.limits.term_grace, LOADING_STOP_GRACE)
    event = Event("engine-failed", why)
    life, effects = _end(replace(life, failure=why, verdict=verdict), Phase.STOPPING, f"failed: {why}", grace, now, event)
    return life, (*effects[:-1], Gather(why), *effects[-1:])  # what is signalled has nothing to show any more


def kernel_says(life: Life, said: KernelSays, now: float) -> Result:
    """The evidence is told in every phase, and a broken GPU is remembered; the first that ends the run is its reason."""
    told = tuple(Tell(event) for event in said.events)
    if said.act is Act.REFUSE and not life.refusal:
        life = replace(life, refusal=said.text)
    if said.act is Act.LOG or life.stage:
        return life, told
    life, effects = fail(life, said.text, now, "gpu-error")
    return life, (*told, *effects)


def stop(life: Life, now: float) -> Result:
    if life.stopping:
        return _hurry(life, now)
    life = replace(life, stopping=True)
    if life.stage:
        return life, (Notify(("STOPPING=1",)),)
    if life.was_ready and life.limits.before:
        return _keep_away(life, now)
    if life.was_ready:
        text = f"draining: the engine has {show_duration(life.limits.drain)} to finish its requests"
        return _end(life, Phase.DRAINING, text, life.limits.drain, now, Event("stop-requested", f"stop requested, {text}"))
    text = "stopping: the engine was still loading"
    return _end(life, Phase.STOPPING, text, LOADING_STOP_GRACE, now, Event("stop-requested", f"stop requested, {text}"))


def _keep_away(life: Life, now: float) -> Result:
    """First what keeps new requests away, such as a load balancer that is told; then the engine."""
    limits = life.limits
    text = f"draining: stop.before has {show_duration(limits.before)} to keep new requests away"
    life = replace(life, before=True, phase=Phase.DRAINING, since=now, text=text, stage=1, deadline=now + limits.before)
    rest = limits.before + limits.drain + limits.term_grace + limits.exit_deadline
    event = Event("stop-requested", f"stop requested, {text}")
    return life, (Notify(("STOPPING=1", extend(rest)), text), Tell(event), RunBefore())


def drain(life: Life, now: float, trouble: str) -> Result:
    """stop.before is over: the engine's main process is told to end."""
    text = f"draining: the engine has {show_duration(life.limits.drain)} to finish its requests"
    life = replace(life, before=False, text=text, deadline=now + life.limits.drain)
    told = (Tell(Event("stop-requested", f"stop.before {trouble}; {text}")),) if trouble else ()
    return life, (Notify(status=text), *told, SignalMain())


def _hurry(life: Life, now: float) -> Result:
    """Asked to stop again: whoever asks does not want to wait for what is left of this stage."""
    if life.stage not in (1, 2):
        return life, ()
    text = f"stopping: asked again, so {'all get SIGTERM' if life.stage == 1 else 'all are killed'} now"
    event = Event("stop-requested", text)
    life, effects = _next_stage(replace(life, before=False, phase=Phase.STOPPING, text=text), now, life.stage + 1)
    return life, (Notify(status=text), Tell(event), *effects)


def _end(life: Life, phase: Phase, text: str, grace: float, now: float, event: Event) -> Result:
    life = replace(life, phase=phase, since=now, text=text, stage=1, deadline=now + grace)
    rest = grace + life.limits.term_grace + life.limits.exit_deadline
    lines = ("STOPPING=1", extend(rest)) if life.stopping else ()
    return life, (Notify(lines, text), Tell(event), SignalMain())


def exited(life: Life, ended: EngineExited, now: float) -> Result:
    life = replace(life, engine_gone=True, before=False)
    if life.stage == 0:
        life = replace(life, failure=_how(life, ended, now), verdict="engine-exited")
        text = f"failed: {life.failure}"
        life, effects = _next_stage(replace(life, phase=Phase.STOPPING, since=now, text=text), now, 2)
        return life, (Notify(status=text), Tell(Event("engine-failed", life.failure)), Gather(life.failure), *effects)
    return _next_stage(life, now, 2) if life.stage == 1 else (life, ())


def _how(life: Life, ended: EngineExited, now: float) -> str:
    """An end that nobody asked for, in words; an exit status of 0 makes it no better."""
    how = f"was ended by signal {-ended.status}" if ended.status < 0 else f"exited with status {ended.status}"
    if ended.oom:
        how += f", and the kernel has ended {show_count(ended.oom, 'process')} of this unit for memory (OOM)"
    when = "after it was ready" if life.was_ready else f"{show_duration(round(now - life.began, 1))} into the load"
    return f"the engine {how}, {when}" + (f'; it said: "{ended.words}"' if ended.words else "")


def _next_stage(life: Life, now: float, stage: int) -> Result:
    if stage == 2:
        return replace(life, stage=2, deadline=now + life.limits.term_grace), (SignalAll(kill=False),)
    return replace(life, stage=3, deadline=now + life.limits.exit_deadline), (SignalAll(kill=True),)


def ended_tick(life: Life, left: int, now: float) -> Result:
    if left == 0 and life.engine_gone:
        return _finish(life, "all processes of the engine have ended", now)
    if life.deadline is None or now < life.deadline:
        return life, ()
    if life.before:
        return drain(life, now, f"took longer than {show_duration(life.limits.before)}")
    if life.stage == 3:
        return _finish(life, f"{_left(left)} left for the post-stop hook", now)
    loading_or_failed = life.stage == 1 and life.phase is not Phase.DRAINING
    stage = 3 if loading_or_failed or life.stage == 2 else 2
    told = cut(life) if life.stage == 1 else ()
    life, effects = _next_stage(life, now, stage)
    if stage == 3:
        text = f"killing {_left(left)} that did not end in time"
        return replace(life, text=text), (Notify(status=text), Tell(Event("engine-killed", text)), *effects)
    return life, (*told, *effects)


def _left(count: int) -> str:
    """Of a Tick: fewer than none is not known."""
    return "an unknown number of processes" if count < 0 else show_count(count, "process")


def _proven(life: Life, now: float) -> bool:
    return life.was_ready and now - life.ready_at >= PROVEN


def _finish(life: Life, text: str, now: float) -> Result:
    """Chooses the exit status: what was asked for is a clean end, whatever the engine's own status claims."""
    if life.stopping or not life.failure:
        status, text = Exit.OK, f"stopped: {text}"
        life = replace(life, phase=Phase.STOPPING)
    else:
        budget = life.budget.after(life.alike or life.failure, proven=_proven(life, now))
        status = Exit.UNAVAILABLE if budget.spent or life.refusal else Exit.TEMPFAIL
        text = f"failed: {life.failure}; {text}"
        if life.refusal:
            text = f"failed: {life.refusal}"
        elif budget.spent:
            text += f"; {budget.spent}, none ready for {show_duration(PROVEN)}: mend the cause, then start it"
        life = replace(life, phase=Phase.FAILED, budget=budget)
    life = replace(life, status=status, text=text, since=now)
    return life, (Notify(status=text), Tell(Event("stopped", text)), Finish(status))
