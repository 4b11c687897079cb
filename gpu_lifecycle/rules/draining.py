"""What a drain shows: how many requests are in flight, that they get fewer, and that an engine stays although there is none."""

from __future__ import annotations

from dataclasses import replace

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.life import InFlight, Life, Notify, Result, Tell, extend
from gpu_lifecycle.rules.quantity import show_count, show_duration

EMPTY = 20.0  # seconds; SGLang looks for the end of its requests every 5 s, and waits 15 s for its schedulers


def followed(life: Life, seen: InFlight, now: float) -> Result:
    """One look at a draining engine. stop.drain ends the drain whatever is seen here: this only tells, and asks for time."""
    if life.phase is not Phase.DRAINING or life.stage != 1 or life.before or life.engine_gone or life.deadline is None:
        return life, ()
    if seen.count is None and life.empty_since is None:
        return _said(life, f"how many requests are in flight cannot be seen: {seen.why}")
    if seen.count:
        return _counted(life, seen.count, now)
    return _empty(life, now)  # who has none any more may close its port, too


def _counted(life: Life, count: int, now: float) -> Result:
    fewer = life.least is None or count < life.least
    life = replace(life, in_flight=count, least=min(count, life.least or count), empty_since=None)
    life, effects = _said(life, f"{show_count(count, 'request')} in flight")
    return life, (*effects, Notify((_time(life, now),))) if fewer else effects


def _empty(life: Life, now: float) -> Result:
    fewer = life.in_flight != 0
    since = now if life.empty_since is None else life.empty_since
    life = replace(life, in_flight=0, least=0, empty_since=since)
    if now - since < max(1.0, min(EMPTY, life.limits.drain / 3)):
        life, effects = _said(life, "no request is in flight")
        return life, (*effects, Notify((_time(life, now),))) if fewer else effects
    stays = f"no request has been in flight for {show_duration(round(now - since))}, and its main process has not ended"
    if life.empty_said:
        return life, ()
    life, effects = _said(replace(life, empty_said=True), stays)
    return life, (*effects, Tell(Event("drain-idle", f"the drain goes on: {stays} (process {life.engine})")))


def _said(life: Life, what: str) -> Result:
    """The text changes with what is seen, not with time: it is shown for as long as it is true."""
    text = f"draining: {what}; the engine has {show_duration(life.limits.drain)} to finish its requests"
    return (life, ()) if text == life.text else (replace(life, text=text), (Notify(status=text),))


def _time(life: Life, now: float) -> str:
    """systemd's time, renewed while the requests get fewer: what is left of the drain, and of all that may follow it."""
    left = max(0.0, (life.deadline or now) - now)
    return extend(left + life.limits.term_grace + life.limits.exit_deadline)


def cut(life: Life) -> tuple[Tell, ...]:
    """Told when stop.drain is over: who was cut off."""
    if not life.in_flight:
        return ()
    many = show_count(life.in_flight, "request")
    text = f"stop.drain, {show_duration(life.limits.drain)}, is over: {many} in flight cut off"
    return (Tell(Event("drain-cut", text)),)
