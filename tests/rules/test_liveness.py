"""Busy, idle, or hung: hours of looks at engines whose core works, rests, or hangs, in simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_lifecycle.rules.engines import ENGINES
from gpu_lifecycle.rules.liveness import BEHIND_OTHERS, Ask, Finding, Heart, Pace, Pulse, asks, begun, health_wanted, judge
from gpu_lifecycle.rules.metrics import Answer, Counters, Scrape, counters, read
from gpu_lifecycle.rules.readiness import Health, Signs

PACE = Pace(interval=5, busy_grace=300)
TIMEOUT = 25.0
HOURS = 2 * 3600
OK = Health(200, "status 200")
DEAD = Health(503, "status 503")
LATE = Health(None, "no answer within 25 s", TIMEOUT, silent=True)
REFUSED = Health(None, "connection refused")
FULL = Health(503, "status 503")  # as Ollama says it of a full queue
HUNG = Signs(health=LATE, health_generates=True)
WELL = Signs(health=OK, health_generates=True)
READ = Scrape(Answer.READ)
FAILED = Scrape(Answer.FAILED, "status 500")


def counted(done: float, work: int | None = 0, **levels: float) -> Signs:
    return Signs(READ, Counters({"done": done}, work, None, levels))


UNKEYED = replace(counted(7), token=Health(401, "status 401"), health_generates=True)


def seen(*looks: tuple[float, Signs], heart: Heart | None = None, pace: Pace = PACE) -> Finding:
    """What the last of the looks says."""
    heart, finding = heart or begun(0), Finding(Pulse.ALIVE)
    for now, signs in looks:
        heart, finding = judge(heart, signs, pace, now)
    return finding


AT_WORK = (0.0, counted(7, work=3))


@pytest.mark.parametrize(
    ("looks", "pulse", "text"),
    [
        ([AT_WORK, (5, counted(8, 3))], Pulse.ALIVE, ""),
        ([AT_WORK, (300, replace(counted(7, 3), health=OK))], Pulse.STALLED, "stalled: 3 requests in hand and no progress"),
        ([AT_WORK, (299, counted(7, 3))], Pulse.BUSY, "no progress for 4min 59s; watch.busy_grace is 5min"),
        ([AT_WORK, (299, counted(7, 3)), (300, counted(7, 0))], Pulse.ALIVE, ""),
        ([AT_WORK, (299, counted(7, 3)), (300, counted(8, 3)), (305, counted(8, 3)), (599, counted(8, 3))],
         Pulse.BUSY, "no progress"),
        ([(0, counted(7)), (1e5, counted(7))], Pulse.ALIVE, ""),
        ([(0, counted(7, None)), (1e5, counted(7, None))], Pulse.ALIVE, ""),
        ([AT_WORK, (300, replace(counted(7, 3), within=False))], Pulse.ALIVE, ""),
        # counters that move at the end of requests accuse nobody, and excuse nobody for ever either
        ([AT_WORK, (9000, replace(counted(7, 3), within=False, health=OK))], Pulse.ALIVE, ""),
        ([AT_WORK, (9000, replace(counted(7, 3), within=False, health=DEAD))], Pulse.STRIKE, "status 503"),
        ([(0, replace(counted(7, 3), within=False, health=LATE)), (300, replace(counted(7, 3), within=False, health=LATE))],
         Pulse.STALLED, "no answer within 25 s"),
        ([(0, counted(7, 3, kv=0.1)), (300, counted(7, 3, kv=0.2))], Pulse.ALIVE, ""),
        ([(0, counted(7, 3, kv=0.1)), (300, counted(7, 3, kv=0.1))], Pulse.STALLED, ""),
        ([AT_WORK, (299, counted(7, 3)), (300, counted(0, 3)), (305, counted(0, 3)), (590, counted(0, 3))],
         Pulse.BUSY, ""),  # started again in place
        ([AT_WORK, (5, replace(counted(8, 3), health=DEAD))], Pulse.BUSY, "503, and the engine makes progress, 3 requests"),
        ([AT_WORK, (5, replace(counted(8, 0), health=LATE))], Pulse.BUSY, "within 25 s, and the engine makes progress"),
        ([AT_WORK, (5, replace(counted(7, 3), health=DEAD))], Pulse.STRIKE, "the health endpoint says: status 503"),
        ([AT_WORK, (5, Signs(FAILED, health=OK))], Pulse.ALIVE, ""),
        ([AT_WORK, (5, Signs(FAILED, health=DEAD))], Pulse.STRIKE, "status 503"),
        ([AT_WORK, (5, Signs(Scrape(Answer.REFUSED), health=REFUSED))], Pulse.STRIKE, "connection refused"),
        ([AT_WORK, (400, Signs(FAILED, health=OK))], Pulse.ALIVE, ""),  # not seen is not "no progress"
        ([AT_WORK, (400, Signs(FAILED, health=OK)), (405, counted(7, 3))], Pulse.STALLED, ""),
        ([(0, Signs(health=DEAD, health_generates=True))], Pulse.STRIKE, "status 503"),
        ([(0, HUNG)], Pulse.ALIVE, ""),
        ([(0, Signs(health=replace(DEAD, seconds=20), health_generates=True))], Pulse.ALIVE, ""),
        ([(0, Signs(health=LATE)), (5, Signs(health=OK))], Pulse.ALIVE, ""),
        ([(0, Signs(health=LATE)), (299, Signs(health=LATE))], Pulse.BUSY, "no answer within 25 s, and no sign of"),
        ([(0, Signs(health=LATE)), (300, Signs(health=LATE))], Pulse.STALLED, "no answer within 25 s, and no sign of"),
        ([(0, Signs(health=LATE)), (299, Signs(health=OK)), (300, Signs(health=LATE))], Pulse.ALIVE, ""),
        ([(0, Signs(FAILED, health=LATE)), (300, Signs(FAILED, health=LATE))], Pulse.STALLED, "(and its counters cannot be"),
        ([(0, Signs(health=replace(DEAD, seconds=0.5), health_generates=True))], Pulse.STRIKE, "status 503"),
        ([(0, Signs(health=replace(DEAD, seconds=1.1), health_generates=True))], Pulse.ALIVE, ""),  # it asked its core
        # one bad moment of page and endpoint, and then an idle engine whose key we do not have
        ([(0, Signs(FAILED, health=LATE, health_generates=True)), (5, UNKEYED), (301, UNKEYED)], Pulse.ALIVE, ""),
        ([(0, UNKEYED), (9000, UNKEYED)], Pulse.ALIVE, ""),
        ([(0, HUNG), (299, HUNG)], Pulse.BUSY, "core"),
        ([(0, HUNG), (300, HUNG)], Pulse.STALLED, "core"),
        ([(0, HUNG), (299, WELL),
          (300, HUNG)], Pulse.ALIVE, ""),
        ([(300, Signs(health=OK, waited=300))], Pulse.STALLED, "a request for one token has had no answer for 5min"),
        ([(900, Signs(health=OK, waited=900, others=2))], Pulse.BUSY,
         "no answer, beside 2 other connections, for 15min; 6 times watch.busy_grace is 30min"),
        ([(1800, Signs(health=OK, waited=1800, others=1))], Pulse.STALLED, "beside 1 other connection, for 30min"),
        ([(300, Signs(health=OK, waited=300, others=1)), (305, Signs(health=OK, waited=305))], Pulse.STALLED, "no answer for"),
        ([(300, replace(counted(7), waited=300, others=9))], Pulse.STALLED, "no answer for 5min"),
        ([(0, Signs(health=OK, token=FULL)), (299, Signs(health=OK, token=FULL))], Pulse.BUSY, "answered by status 503 for"),
        ([(0, Signs(health=OK, token=FULL)), (300, Signs(health=OK, token=FULL))], Pulse.STALLED, "answered by status 503 for"),
        ([(0, Signs(health=OK, token=FULL)), (300, Signs(health=OK, token=FULL, others=512))], Pulse.BUSY, "512 other"),
        ([(0, Signs(health=OK, token=FULL)), (299, Signs(health=OK, token=OK)), (300, Signs(health=OK, token=FULL))],
         Pulse.ALIVE, ""),
        ([(0, Signs(health=OK, token=FULL)), (5, Signs(health=OK, token=Health(401, "status 401"))),
          (300, Signs(health=OK, token=FULL))], Pulse.ALIVE, ""),
        ([(590, Signs(health=OK, waited=1)), (591, Signs(health=OK, token=LATE)), (890, Signs(health=OK, waited=1))],
         Pulse.STALLED, "no answer for 5min"),  # a request that was given up is no new beginning
        ([(5, Signs(health=OK, token=Health(424, "status 424")))], Pulse.STRIKE, "no token was generated: status 424"),
        ([(300, Signs(FAILED, health=OK, waited=300))], Pulse.STALLED, "its counters cannot be read: status 500"),
        ([(290, counted(7)), (295, counted(8)), (400, replace(counted(8), waited=390))], Pulse.BUSY, "one token"),
        ([(5, Signs(health=OK, token=Health(500, "status 500")))], Pulse.STRIKE, "no token was generated: status 500"),
        ([(5, Signs(health=OK, token=Health(302, "status 302")))], Pulse.STRIKE, "status 302"),
        ([(5, Signs(health=OK, token=Health(None, "the answer is not JSON")))], Pulse.STRIKE, "not JSON"),
        ([(5, Signs(health=OK, token=Health(401, "status 401")))], Pulse.ALIVE, ""),
        ([(5, Signs(health=OK, token=LATE))], Pulse.ALIVE, ""),
    ],
)  # fmt: skip
def test_what_a_look_says(looks: list[tuple[float, Signs]], pulse: Pulse, text: str) -> None:
    finding = seen(*looks)
    assert (finding.pulse, text in finding.text) == (pulse, True), finding


def test_the_cache_of_vllm_fills_while_a_long_prompt_is_read() -> None:
    """No token is counted before its end; in the page's own names, as the table of engines has them."""
    metrics = ENGINES["vllm"].metrics
    assert metrics

    def page(cache: float) -> Signs:
        text = f"vllm:generation_tokens_total 5\nvllm:kv_cache_usage_perc {cache}\nvllm:num_requests_running 1\n"
        return Signs(READ, counters(read(text, metrics.names), metrics))

    looks = [(float(at), page(at / 3600)) for at in range(0, 3600, 100)]
    assert seen(*looks).pulse is Pulse.ALIVE
    assert seen(*looks, *((at, page(3500 / 3600)) for at in (3505.0, 3805.0))).pulse is Pulse.STALLED


def test_what_is_asked_for() -> None:
    """A token only after a quiet while; and no health endpoint that costs one where the counters and a request tell it all."""
    counts = begun(0, Counters({"done": 1}))
    blind = begun(0)
    soon, later = 29, 30
    for generates, heart, now, expected in (
        (True, counts, soon, Ask(health=False)), (True, counts, later, Ask(health=False, token=True)),
        (True, blind, soon, Ask(health=False)), (True, blind, later, Ask()),
        (False, counts, soon, Ask()), (False, counts, later, Ask(token=True)),
        (False, blind, soon, Ask()), (False, blind, later, Ask(token=True)),
        (False, replace(blind, excused=25), later, Ask()), (True, Heart(), 0, Ask()),
        (True, replace(counts, excused=25), later, Ask(health=False)), (True, replace(counts, excused=25), 55, Ask()),
        (False, replace(counts, excused=25), 55, Ask(token=True)),
    ):  # fmt: skip
        assert asks(heart, PACE, now, can_generate=True, health_generates=generates) == expected
    assert asks(counts, PACE, later, can_generate=False, health_generates=True) == Ask()
    assert asks(counts, Pace(5, 20), 10, can_generate=True, health_generates=True).token, "well within the grace"
    assert health_wanted(Ask(health=False), counts, Signs(FAILED))
    assert not health_wanted(Ask(health=False), counts, counted(1))


@dataclass
class Simulated:
    """An engine, its clients, and the daemon's looks at it; ``gauges`` is how many requests the page shows."""

    generates: bool = True  # its health endpoint costs a token
    counters: bool = True
    tokens: bool = True  # we may ask for one
    work: Callable[[float], int] = lambda _: 0
    works: Callable[[float], bool] = lambda _: True  # whether the core works
    step: float = 1.0  # seconds of one step of the core
    lies: bool = False  # its health is green with a dead core
    turn: float = 0.0  # one request at a time, each of so many seconds: ours comes between two of them
    now: float = 0.0
    done: float = 0.0
    asked: float | None = None
    heart: Heart = field(default_factory=lambda: begun(0.0))
    strikes: int = 0

    def run(self, until: float) -> tuple[float, str] | None:
        """Looks until then; when and why the run was ended."""
        while self.now < until:
            ended = self._look()
            if ended:
                return self.now, ended
            self._pass(PACE.interval)
        return None

    def _pass(self, seconds: float) -> None:
        """Steps that end in that time; our own request is answered by the first."""
        end = self.now + seconds
        while self.now < end:
            step = min(self.step, end - self.now)
            self.now += step
            busy = self.work(self.now) or self.asked is not None
            if self.works(self.now) and busy and int(self.now / self.step) > int((self.now - step) / self.step):
                self.done += 1

    def _look(self) -> str:
        ask = asks(self.heart, PACE, self.now, can_generate=self.tokens, health_generates=self.generates)
        before = self.done
        signs = Signs(health_generates=self.generates)
        if self.counters:
            signs = replace(signs, scrape=READ, counters=Counters({"done": self.done}, self.work(self.now)))
        if health_wanted(ask, self.heart, signs):
            signs = replace(signs, health=self._health())
        if ask.token and self.asked is None:
            self.asked, self._at = self.now, self.done
        if self.asked is not None:
            answered = self._answered(self.asked)
            others = 0 if self.counters else self.work(self.now)
            waited = None if answered else self.now - self.asked
            signs = replace(signs, token=OK if answered else None, waited=waited, others=others)
            self.asked = None if answered else self.asked
            self.done += answered and self.done == before
        self.heart, finding = judge(self.heart, signs, PACE, self.now)
        self.strikes = self.strikes + 1 if finding.pulse is Pulse.STRIKE else 0
        return finding.text if finding.pulse is Pulse.STALLED or self.strikes >= 3 else ""

    _at: float = 0.0

    def _answered(self, asked: float) -> bool:
        if self.turn:
            return self.works(self.now) and (not self.work(self.now) or self.now // self.turn > asked // self.turn)
        return self.done > self._at or (self.works(self.now) and self.step <= PACE.interval)

    def _health(self) -> Health:
        if not self.generates or self.lies:
            return OK if self.lies or self.works(self.now) else DEAD
        if self.works(self.now) and self.step <= TIMEOUT:
            self.done += 1
            return OK
        self._pass(20)
        return Health(503, "status 503", 20)


def bursts(seed: int) -> Callable[[float], int]:
    chance = random.Random(seed)
    spans = [(start := at + chance.uniform(0, 500), start + chance.uniform(1, 400)) for at in range(0, HOURS, 900)]
    return lambda now: sum(begin <= now < end for begin, end in spans)


def long_prefill(now: float) -> int:
    return 1 if now % 1200 < 180 else 0


KINDS = [(generates, counters) for generates in (True, False) for counters in (True, False)]


@pytest.mark.parametrize(("generates", "counters"), KINDS)
@pytest.mark.parametrize("work", [lambda _: 0, lambda _: 5, bursts(1), bursts(2), long_prefill], ids=str)
@pytest.mark.parametrize(("step", "pause"), [(1, 0), (12, 0), (1, 70), (1, 180)])
def test_two_hours_of_a_well_engine_are_left_alone(
    generates: bool, counters: bool, work: Callable[[float], int], step: float, pause: float
) -> None:
    """Idle, steady load, bursts, long prefill; long steps, and a core that compiles, or reads one long piece, meanwhile."""
    core = Simulated(
        generates, counters, work=work, works=lambda now: not 600 <= now % 1800 < 600 + pause, step=step, lies=not generates
    )
    assert core.run(HOURS) is None


@pytest.mark.parametrize(
    ("generates", "counters", "lies"),
    # where a health endpoint that asks the core is the only source, it is believed
    [(*kind, lies) for kind in KINDS for lies in (False, True) if not (lies and kind == (True, False))],
)
@pytest.mark.parametrize("work", [lambda _: 4, lambda _: 0], ids=["loaded", "idle"])
@pytest.mark.parametrize("at", [600.0, 3333.0])
def test_every_planted_hang_is_found_in_time(
    generates: bool, counters: bool, work: Callable[[float], int], at: float, lies: bool
) -> None:
    """With work in hand and counters: within the grace and two intervals. Else the token is asked for first.

    Without any counter a token may only wait behind the requests of others: then some graces are given.
    """
    ended = Simulated(generates, counters, work=work, works=lambda now: now < at, lies=lies).run(HOURS)
    assert ended, "never found"
    first = 0.0 if work(0) and counters else PACE.quiet + TIMEOUT
    blind = work(0) and not counters and not generates and lies  # it may be busy with others' requests, by all that is seen
    grace = PACE.busy_grace * (BEHIND_OTHERS if blind else 1)
    assert at < ended[0] <= at + grace + 2 * PACE.interval + first


@pytest.mark.parametrize("turn", [400.0, 1200.0, 1750.0])
def test_a_token_that_waits_its_turn_ends_nobody(turn: float) -> None:
    """Ollama, and llama.cpp without --metrics: one long answer after the other, each to somebody else."""
    assert Simulated(generates=False, counters=False, work=lambda _: 1, turn=turn, lies=True).run(HOURS) is None


@pytest.mark.parametrize(("leave", "latest"), [(HOURS, 1000 + 6 * 300 + 145), (1600, 1605), (1100, 1000 + 300 + 145)])
def test_a_hang_behind_which_others_wait_is_found_later_and_sooner_once_they_have_gone(leave: int, latest: int) -> None:
    def clients(now: float) -> int:
        return int(now < leave)

    core = Simulated(generates=False, counters=False, work=clients, works=lambda now: now < 1000, turn=100, lies=True)
    ended = core.run(HOURS)
    assert ended
    assert 1200 <= ended[0] <= latest


signs_of = st.builds(
    Signs,
    st.sampled_from([None, READ, FAILED, Scrape(Answer.REFUSED)]),
    st.builds(lambda done, work: counted(done, work).counters if done else None, st.integers(0, 5), st.sampled_from([None, 3])),
    st.sampled_from([None, OK, DEAD, LATE, REFUSED, replace(DEAD, seconds=20)]),
    st.booleans(),
    st.sampled_from([None, OK, Health(500, "status 500"), FULL, LATE, Health(401, "status 401")]),
    st.sampled_from([None, None, 1.0, 400.0]),
    st.sampled_from([0, 3]),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([0.1, 5, 30, 200]), signs_of), max_size=60))
@settings(max_examples=300)
def test_no_looks_end_an_engine_that_moved_just_now(looks: list[tuple[float, Signs]]) -> None:
    heart, now, last = begun(0), 0.0, None
    sign = 0.0  # when the core last gave one
    for gap, signs in looks:
        now += gap
        heart, finding = judge(heart, signs, PACE, now)
        moved = last is not None and signs.counters is not None and signs.counters.progress["done"] > last
        last = signs.counters.progress["done"] if signs.counters else last
        token = (signs.token is not None and signs.token.ok) or (signs.health_generates and signs.health == OK)
        sign = now if moved or token else sign
        if finding.pulse is Pulse.STALLED:
            assert now - sign >= PACE.busy_grace
        if moved:
            assert finding.pulse in (Pulse.ALIVE, Pulse.BUSY)
        if finding.pulse is Pulse.STRIKE:
            assert (signs.health and not signs.health.ok) or (signs.token and not signs.token.ok)
            assert [answer for answer in (signs.health, signs.token) if answer and not answer.ok and not answer.silent]
        assert bool(finding.text) is (finding.pulse is not Pulse.ALIVE)
