"""What the daemon has seen of a unit, as samples of the metrics of rules/metric_names.py. What is not known gives no sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_lifecycle.facts import Gpu, GpuView, Phase, Verdict
from gpu_lifecycle.rules.account import number, phases
from gpu_lifecycle.rules.cause import CAUSES
from gpu_lifecycle.rules.events import EVENTS, WARNING
from gpu_lifecycle.rules.life import Life
from gpu_lifecycle.rules.metric_names import Distribution, Sample
from gpu_lifecycle.rules.readiness import NOT_ASKED, Look, blind

PREFIX = "gpu_lifecycle_"
Samples = Iterator[Sample]


@dataclass(frozen=True, slots=True)
class Tally:
    """What is counted beside the life: answers of the health endpoint, events by word, notices by result, scrapes refused."""

    probes: Distribution = field(default_factory=Distribution)
    events: Mapping[str, int] = field(default_factory=dict)
    notices: Mapping[str, int] = field(default_factory=dict)
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One moment. ``at``: seconds since 1970; ``state``: the state file's document, ``account``: the run's row in it."""

    version: str
    engine: str
    at: float
    life: Life
    look: Look | None = None
    view: GpuView | None = None
    gpus: tuple[Gpu, ...] = ()
    account: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    blind: str = ""  # why the kernel log is not seen


def samples(seen: Seen, tally: Tally) -> list[Sample]:
    """All samples of one moment."""
    found = [*_run(seen), *_load(seen.life), *_counts(seen, tally), *_memory(seen), *_probe(seen, tally), *_requests(seen)]
    return [Sample(PREFIX + item.name, item.value, item.labels) for item in found]


def _run(seen: Seen) -> Samples:
    life = seen.life
    yield Sample("info", 1, (seen.version, seen.engine))
    yield Sample("ready", life.phase is Phase.READY)
    for phase in Phase:
        yield Sample("phase", phase is life.phase, (str(phase),))
    for name, seconds in phases(seen.account).items():
        yield Sample("phase_seconds_total", seconds, (name,))
    began = number(seen.account, "began")
    if began is not None:
        yield Sample("run_start_time_seconds", began)
    yield Sample("last_update_time_seconds", round(seen.at, 3))
    yield Sample("strikes", life.strikes)
    yield Sample("failed_runs_in_a_row", life.budget.failed)


def _load(life: Life) -> Samples:
    if life.was_ready:
        yield Sample("load_seconds", round(life.ready_at - life.began, 3))
    elif not life.stage and life.progress is not None:
        yield Sample("load_progress_ratio", life.progress)
    if not life.was_ready and not life.stage and life.eta is not None:
        yield Sample("load_remaining_seconds", life.eta)


def _counts(seen: Seen, tally: Tally) -> Samples:
    """Labels are of our own lists only: the state file is the unit's user's to write."""
    for reason, count in _whole(seen.state, "ends").items():
        if reason in CAUSES and reason != "stopped":
            yield Sample("failed_runs_total", count, (reason,))
    holders = _whole(seen.state, "holders")
    for verdict in Verdict:
        if verdict in holders:
            yield Sample("holders", holders[verdict], (str(verdict),))
    for word, kind in EVENTS.items():
        if kind.priority <= WARNING or word in tally.events:
            yield Sample("events_total", tally.events.get(word, 0), (word,))
    for result in ("done", "failed", "dropped"):
        if result in tally.notices:
            yield Sample("notices_total", tally.notices[result], (result,))
    yield Sample("scrapes_refused_total", tally.refused)


def _whole(row: Mapping[str, Any], key: str) -> dict[str, int]:
    found = row.get(key)
    items = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in items if isinstance(value, int) and not isinstance(value, bool) and value >= 0}


def _memory(seen: Seen) -> Samples:
    current = {gpu.uuid: gpu for gpu in seen.view.gpus} if seen.view and not seen.view.error else {}
    for claimed in seen.gpus:
        place = (claimed.uuid, claimed.label)
        gpu = current.get(claimed.uuid)
        if claimed.total is not None:
            yield Sample("gpu_memory_size_bytes", claimed.total, place)
        if gpu is None or gpu.error or gpu.used is None:
            continue
        yield Sample("gpu_memory_used_bytes", gpu.used, place)
        for owner, amount in _shares(gpu, seen).items():
            yield Sample("gpu_memory_bytes", amount, (*place, owner))


def _shares(gpu: Gpu, seen: Seen) -> dict[str, int]:
    """Whose the used memory is. With an estimate for the own part nothing is known of the rest."""
    look = seen.look
    own = look.memory.get(gpu.uuid) if look else None
    if look is None or own is None or gpu.used is None:
        return {}
    pids = {identity.pid for identity in look.alive}
    others = [entry.memory for entry in gpu.processes or () if entry.pid not in pids]
    if look.estimated or gpu.processes is None or None in others:
        return {"own": own}
    other = sum(amount or 0 for amount in others)
    return {"own": own, "other": other, "unexplained": max(0, gpu.used - own - other)}


def _probe(seen: Seen, tally: Tally) -> Samples:
    """The last answers; a busy engine's health endpoint is not asked at each look."""
    look = seen.look
    if look and look.health is not NOT_ASKED:
        yield Sample("probe_seconds", round(look.health.seconds, 6), ("health",))
        yield Sample("probe_success", look.health.ok, ("health",))
    token = look.signs.token or look.generated if look else None
    if token and token.code is not None:
        yield Sample("probe_seconds", round(token.seconds, 6), ("token",))
        yield Sample("probe_success", token.ok, ("token",))
    if look:
        yield Sample("sight_full", not blind(look), ("gpus",))
    yield Sample("sight_full", not seen.blind, ("kernel-log",))
    yield Sample("probe_duration_seconds", tally.probes, ("health",))


def _requests(seen: Seen) -> Samples:
    """From the engine's own counters; in a drain, as last asked there."""
    counters = seen.look.signs.counters if seen.look else None
    total = seen.life.in_flight if seen.life.stage else counters.work if counters else None
    if total is not None:
        yield Sample("requests_in_flight", total)
    if counters and counters.queued is not None and not seen.life.stage:
        yield Sample("requests_queued", counters.queued)
