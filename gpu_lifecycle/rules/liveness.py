"""Whether a ready engine's core is alive, judged by what only the core can do: move its counters, or make a token.

A mere answer of its HTTP server proves nothing of the core, and silence of it nothing against one that works. So: what moves
is alive, whatever the health endpoint says; work in hand and nothing that moves is "stalled" after a grace; no work and
nothing that moves is idle, and now and then a token is asked for; explicit failures without any progress are strikes.
Silence is no explicit failure, whoever is silent: the same grace counts for it.
Time comes in as a value (seconds on the monotonic clock). Why so: docs/decisions/0030-liveness.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from gpu_lifecycle.rules.metrics import Counters
from gpu_lifecycle.rules.quantity import show_count, show_duration
from gpu_lifecycle.rules.readiness import Health, Signs

QUIET_LOOKS = 6  # looks without a sign of the core before it is asked for one: a token each time costs little, and not nothing
AT_ONCE = 0.9  # seconds; a refusal that comes sooner is the HTTP server's own, a later one came of waiting for the core
BEHIND_OTHERS = 6  # graces for a token that may wait behind requests of others, where no counter tells of their progress
NOT_NOW = (408, 503)  # statuses of a server that has no room, or waited for its core in vain: that is silence, too
FAILED_THERE = 424  # what TGI says where its core has failed; of the other 4xx the core knows nothing


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

    ``busy``: since when there is work in hand and nothing has moved; ``silent``: since when its health endpoint has been
    silent; ``asked``: since when a token has been asked for in vain; ``excused``: when our request for one was last answered
    by words that say nothing of the core.
    """

    counters: Counters | None = None
    proved: float | None = None
    busy: float | None = None
    silent: float | None = None
    asked: float | None = None
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
    """``moved``: the core's counters have, which is more than a good answer."""

    pulse: Pulse
    text: str = ""
    moved: bool = False


class _Wait(NamedTuple):
    """Something that the core owes a sign for; ``patience`` in seconds like ``waited``."""

    waited: float
    patience: float
    words: str


def begun(now: float, counters: Counters | None = None) -> Heart:
    """Judging begins anew: when the engine gets ready, after a gap in our own clock, or when its counters begin anew."""
    return Heart(counters, proved=now)


def asks(heart: Heart, pace: Pace, now: float, *, can_generate: bool, health_generates: bool) -> Ask:
    """What to ask for at ``now``. A token, or a health endpoint that costs one, only when nothing has moved for a while.

    With counters the token is our own request: a health endpoint that waits for a busy core in vain may call the engine
    unhealthy to everybody (SGLang: /ready turns 503, and a stop drops its requests). Where our request is refused before it
    gets to the core, as without the key, there is only the endpoint.
    """
    since = max((at for at in (heart.proved, heart.excused) if at is not None), default=None)
    due = since is None or now - since >= pace.quiet
    useful = heart.counters is not None and heart.excused is None
    own = can_generate and (useful or not health_generates)
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
        return heart, Finding(Pulse.BUSY if busy else Pulse.ALIVE, busy, moved=True)
    wait = max(_waits(heart, signs, pace, now), key=lambda wait: wait.waited / wait.patience, default=None)
    if wait and wait.waited >= wait.patience:
        said = f"{wait.words} for {show_duration(round(wait.waited))} ({_named(wait.patience, pace)})"
        return heart, Finding(Pulse.STALLED, f"stalled: {said}")
    if trouble:
        return heart, Finding(Pulse.STRIKE, trouble)
    if wait and wait.waited >= min(pace.quiet, pace.interval * 2):
        left = f"{_named(wait.patience, pace)} is {show_duration(wait.patience)}"
        return heart, Finding(Pulse.BUSY, f"{wait.words} for {show_duration(round(wait.waited))}; {left}")
    return heart, Finding(Pulse.ALIVE)


def _named(patience: float, pace: Pace) -> str:
    return "watch.busy_grace" if patience == pace.busy_grace else f"{BEHIND_OTHERS} times watch.busy_grace"


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
    if signs.health is not None or signs.counters is not None:
        heart = replace(heart, silent=(now if heart.silent is None else heart.silent) if _silence(signs) else None)
    return _remembered_asking(replace(heart, counters=counters), signs, now)


def _remembered_asking(heart: Heart, signs: Signs, now: float) -> Heart:
    if signs.token and _excuse(signs.token):
        return replace(heart, excused=now, asked=None)
    if not _unanswered(signs) or heart.asked is not None:
        return heart
    asked = now - (signs.waited or 0.0)
    return replace(heart, asked=asked if heart.proved is None else max(asked, heart.proved))


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
    return answer.code is not None and 400 <= answer.code < 500 and answer.code not in (*NOT_NOW, FAILED_THERE)


def _unanswered(signs: Signs) -> bool:
    """True where a token is asked for, and there is neither one nor a refusal."""
    token = signs.token
    return signs.waited is not None or (token is not None and (token.silent or token.code in NOT_NOW))


def _silence(signs: Signs) -> str:
    """How the health endpoint is silent, or waits for the core in vain; "" where it does not."""
    health = signs.health
    if health is None or health.ok:
        return ""
    waited = signs.health_generates and health.code is not None and health.code >= 500 and health.seconds >= AT_ONCE
    return f"the health endpoint says: {health.text}" if health.silent or waited else ""


def _trouble(signs: Signs) -> str:
    """What speaks against the engine where nothing has moved; "" for nothing."""
    health, token = signs.health, signs.token
    if health is not None and not health.ok and not _silence(signs):
        return f"the health endpoint says: {health.text}"
    if token is not None and not token.ok and not _excuse(token) and not _unanswered(signs):
        return f"no token was generated: {token.text}"
    return ""


def _waits(heart: Heart, signs: Signs, pace: Pace, now: float) -> Iterator[_Wait]:
    """What this look shows to be waited for."""
    if heart.busy is not None and signs.counters is not None:
        yield _Wait(now - heart.busy, pace.busy_grace, f"{_requests(signs.counters)} in hand and no progress")
    if heart.silent is not None and (silence := _silence(signs)):
        yield _Wait(now - heart.silent, pace.busy_grace, f"{silence}{_unseen(signs)}, and no sign of the engine's core")
    if heart.asked is not None and _unanswered(signs):
        behind = signs.others if signs.counters is None else 0
        patience = pace.busy_grace * (BEHIND_OTHERS if behind else 1)
        yield _Wait(now - heart.asked, patience, f"{_in_vain(signs, behind)}{_unseen(signs)}")


def _in_vain(signs: Signs, behind: int) -> str:
    told = f"is answered by {signs.token.text}" if signs.token else "has had no answer"
    more = f", beside {show_count(behind, 'other connection')}," if behind else ""
    return f"a request for one token {told}{more}"


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
