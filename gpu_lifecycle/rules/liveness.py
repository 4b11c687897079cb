"""Whether a ready engine's core is alive, judged by what only the core can do: move its counters, or make a token.

A mere answer of its HTTP server proves nothing of the core, and silence of it nothing against one that works. So: what moves
is alive, whatever the health endpoint says; work in hand and nothing that moves is "stalled" after a grace; no work and
nothing that moves is idle, and now and then a token is asked for; explicit failures without any progress are strikes.
Time comes in as a value (seconds on the monotonic clock). Why so: docs/decisions/0030-liveness.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gpu_lifecycle.rules.metrics import Counters
from gpu_lifecycle.rules.quantity import show_count, show_duration
from gpu_lifecycle.rules.readiness import Health, Signs

QUIET_LOOKS = 6  # looks without a sign of the core before it is asked for one: a token each time costs little, and not nothing
AT_ONCE = 5.0  # seconds; a refusal that comes sooner is the HTTP server's own, a later one came of waiting for the core


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: between two looks, and how long work in hand may show no progress (watch.interval, watch.busy_grace)."""

    interval: float
    busy_grace: float

    @property
    def quiet(self) -> float:
        """How long the core may show nothing before it is asked: well within the grace, which is to see the answer."""
        return min(QUIET_LOOKS * self.interval, self.busy_grace / 2)


@dataclass(frozen=True, slots=True)
class Heart:
    """What is remembered between looks. ``proved``: when the core last gave a sign, or judging began anew.

    ``busy``: since when there is work in hand and nothing has moved; ``silent``: since when its health endpoint has waited for
    the core in vain; ``excused``: when our request for a token was last answered by words that say nothing of the core.
    """

    counters: Counters | None = None
    proved: float | None = None
    busy: float | None = None
    silent: float | None = None
    excused: float | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What the next look is to ask for, beside the counters."""

    health: bool = True
    token: bool = False


class Pulse(StrEnum):
    """What a look says. Only STRIKE and STALLED are against the engine."""

    ALIVE = "alive"
    BUSY = "busy"
    STRIKE = "strike"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Finding:
    pulse: Pulse
    text: str = ""


def begun(now: float, counters: Counters | None = None) -> Heart:
    """Judging begins anew: when the engine gets ready, after a gap in our own clock, or when its counters begin anew."""
    return Heart(counters, proved=now)


def asks(heart: Heart, pace: Pace, now: float, *, can_generate: bool, health_generates: bool) -> Ask:
    """What to ask for at ``now``. A token, or a health endpoint that costs one, only when nothing has moved for a while.

    With counters the token is our own request: a health endpoint that waits for a busy core in vain may call the engine
    unhealthy to everybody (SGLang: /ready turns 503, and a stop drops its requests).
    """
    since = max((at for at in (heart.proved, heart.excused) if at is not None), default=None)
    due = since is None or now - since >= pace.quiet
    own = can_generate and (heart.counters is not None or not health_generates)
    return Ask(health=not health_generates or (due and not own), token=due and own)


def health_wanted(ask: Ask, heart: Heart, signs: Signs) -> bool:
    """Whether the health endpoint is asked after all: counters that could be read before, and now cannot, leave no other."""
    return ask.health or (heart.counters is not None and signs.counters is None)


def judge(heart: Heart, signs: Signs, pace: Pace, now: float) -> tuple[Heart, Finding]:
    """What this look says of the core, and what is remembered."""
    before = heart.counters
    moved = before is not None and signs.counters is not None and _moved(before, signs.counters)
    heart = _remembered(heart, signs, moved, now)
    trouble = _trouble(signs)
    if moved:
        work = _work(signs.counters)
        busy = f"{trouble or _silence(signs)}, and the engine makes progress{work}" if trouble or _silence(signs) else ""
        return heart, Finding(Pulse.BUSY if busy else Pulse.ALIVE, busy)
    waiting, words = _longest(heart, signs, now)
    if waiting >= pace.busy_grace and words:
        return heart, Finding(Pulse.STALLED, f"stalled: {words} for {show_duration(round(waiting))} (watch.busy_grace)")
    if trouble:
        return heart, Finding(Pulse.STRIKE, trouble)
    if words and waiting >= min(pace.quiet, pace.interval * 2):
        left = f"watch.busy_grace is {show_duration(pace.busy_grace)}"
        return heart, Finding(Pulse.BUSY, f"{words} for {show_duration(round(waiting))}; {left}")
    return heart, Finding(Pulse.ALIVE)


def _remembered(heart: Heart, signs: Signs, moved: bool, now: float) -> Heart:
    """The memory after this look. What could not be read leaves it as it was."""
    counters = signs.counters if signs.counters is not None else heart.counters
    if moved or _token(signs):
        return begun(now, counters)
    if heart.counters is not None and signs.counters is not None and _anew(heart.counters, signs.counters):
        return begun(now, counters)
    if heart.proved is None:
        heart = replace(heart, proved=now)
    if signs.counters is not None:
        resting = bool(signs.counters.work) and signs.within
        heart = replace(heart, busy=(now if heart.busy is None else heart.busy) if resting else None)
    if signs.health is not None and not signs.health.ok:
        heart = replace(heart, silent=(now if heart.silent is None else heart.silent) if _silence(signs) else None)
    if signs.token and _excuse(signs.token):
        heart = replace(heart, excused=now)
    return replace(heart, counters=counters)


def _moved(before: Counters, after: Counters) -> bool:
    """True where the core has worked in between."""
    if _anew(before, after):
        return False
    grown = any(value > before.progress.get(name, 0.0) for name, value in after.progress.items())
    return grown or any(value != before.levels[name] for name, value in after.levels.items() if name in before.levels)


def _anew(before: Counters, after: Counters) -> bool:
    """A counter that falls, or is gone, is one of another process: the engine was started again in place."""
    now: Mapping[str, float] = after.progress
    return any(name not in now or now[name] < value for name, value in before.progress.items())


def _token(signs: Signs) -> bool:
    """True where a token was made for us."""
    by_health = signs.health_generates and signs.health is not None and signs.health.ok
    return by_health or (signs.token is not None and signs.token.ok)


def _excuse(answer: Health) -> bool:
    """A refusal by the HTTP server (no key, too many requests, a name that is not served) never got to the core."""
    return answer.code is not None and 400 <= answer.code < 500


def _silence(signs: Signs) -> str:
    """How a health endpoint that asks the core says that it waits for it in vain; "" where it does not."""
    health = signs.health
    if health is None or health.ok or not signs.health_generates:
        return ""
    late = health.late or (health.code is not None and health.code >= 500 and health.seconds >= AT_ONCE)
    return f"the health endpoint says: {health.text}" if late else ""


def _trouble(signs: Signs) -> str:
    """What speaks against the engine where nothing has moved; "" for nothing."""
    health, token = signs.health, signs.token
    if health is not None and not health.ok and not _silence(signs):
        return f"the health endpoint says: {health.text}"
    if token is not None and not token.ok and not _excuse(token) and not token.late:
        return f"no token was generated: {token.text}"
    return ""


def _longest(heart: Heart, signs: Signs, now: float) -> tuple[float, str]:
    """The longest of the waits for the core, and which; (0, "") where nothing is waited for."""
    waits: list[tuple[float, str]] = []
    if heart.busy is not None and signs.counters is not None:
        waits.append((now - heart.busy, f"{_requests(signs.counters)} in hand and no progress"))
    unseen = _unseen(signs)
    if heart.silent is not None:
        waits.append((now - heart.silent, f"no sign of the engine's core through its health endpoint{unseen}"))
    if signs.waited is not None:
        proved = heart.proved if heart.proved is not None else now
        waits.append((min(signs.waited, now - proved), f"a request for one token has had no answer{unseen}"))
    return max(waits, default=(0.0, ""))


def _unseen(signs: Signs) -> str:
    if signs.scrape is not None and signs.counters is None:
        return f" (and its counters cannot be read: {signs.scrape.text or 'none of them is on the page'})"
    return ""


def _requests(counters: Counters) -> str:
    return show_count(counters.work or 0, "request")


def _work(counters: Counters | None) -> str:
    return f", {_requests(counters)} in hand" if counters is not None and counters.work else ""


def useless(signs: Signs) -> str:
    """Why nothing can be learned from the token that was asked for; "" where something can."""
    if signs.token is None or not _excuse(signs.token):
        return ""
    return f"the request for one token is answered by {signs.token.text}"
