"""Every metric that the daemon shows to Prometheus: its kind, its labels, and what it means. All have the label ``unit``, too.

Names and units: https://prometheus.io/docs/practices/naming/. A name is for ever: alerts and dashboards of others hang on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

BUCKETS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)  # seconds of an answer of the health endpoint


class Shape(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; a counter's name ends in ``_total``, and it begins anew with each run unless its text says otherwise."""

    shape: Shape
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, under the labels in the order of its entry; of a histogram all observations."""

    name: str
    value: float | Distribution
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many observations were at most each of ``BUCKETS``, one more for all above, and their sum in seconds."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    total: float = 0.0

    def plus(self, seconds: float) -> Distribution:
        at = next((n for n, most in enumerate(BUCKETS) if seconds <= most), len(BUCKETS))
        return Distribution(tuple(count + (n == at) for n, count in enumerate(self.counts)), self.total + seconds)


_G, _C, _H = Shape.GAUGE, Shape.COUNTER, Shape.HISTOGRAM

METRICS: Mapping[str, Metric] = {
    f"gpu_lifecycle_{name}": metric
    for name, metric in {
        "info": Metric(_G, "Always 1; the version of the daemon, and the kind of its engine.", ("version", "engine")),
        "phase": Metric(_G, "1 for the phase that the unit is in, 0 for all others.", ("phase",)),
        "ready": Metric(_G, "1 while the unit is ready: its phase is ready, and no check has failed since."),
        "phase_seconds_total": Metric(_C, "How long the run has been in each phase.", ("phase",)),
        "run_start_time_seconds": Metric(_G, "When the run began, in seconds since 1970."),
        "last_update_time_seconds": Metric(_G, "When these values were seen, in seconds since 1970."),
        "load_progress_ratio": Metric(_G, "How far the load is, from 0 to 1. Missing where it is not known."),
        "load_remaining_seconds": Metric(_G, "How long the load may still take, a guess. Missing where there is none."),
        "load_seconds": Metric(_G, "How long this run's load has taken until it was ready."),
        "strikes": Metric(_G, "Failed health checks in a row; at watch.failures the engine is restarted."),
        "failed_runs_in_a_row": Metric(_G, "Runs of one chain of restarts that have failed, without this one."),
        "failed_runs_total": Metric(
            _C, "Runs that have failed or were refused, and so were mostly restarted, by cause, since boot.", ("reason",)
        ),
        "events_total": Metric(
            _C, "Events of the daemon by their word (gpu-lifecycle-events(7)); errors and warnings from 0 on.", ("event",)
        ),
        "holders": Metric(
            _G, "Processes that held a GPU in the last sweep by a hook, by what was to happen to them.", ("verdict",)
        ),
        "gpu_memory_bytes": Metric(
            _G,
            "Used memory of a claimed GPU by whose it is: the unit's own, another process's, or unexplained: nobody's that can"
            " be seen. Missing where it is not known.",
            ("gpu", "index", "owner"),
        ),
        "gpu_memory_used_bytes": Metric(_G, "Used memory of a claimed GPU, above the driver's own share.", ("gpu", "index")),
        "gpu_memory_size_bytes": Metric(_G, "All memory of a claimed GPU.", ("gpu", "index")),
        "probe_seconds": Metric(_G, "How long the last answer took, by what was asked (health, token).", ("probe",)),
        "probe_success": Metric(_G, "1 where the last answer was good, by what was asked.", ("probe",)),
        "probe_duration_seconds": Metric(_H, "How long answers of the health endpoint took.", ("probe",)),
        "sight_full": Metric(
            _G, "1 where all could be seen, 0 where sight was partial: of GPU memory (gpus), of the kernel log.", ("source",)
        ),
        "requests_in_flight": Metric(_G, "Requests that the engine works on or holds in its queue, where it says so."),
        "requests_queued": Metric(_G, "Requests that wait in the engine's queue, where it says so."),
        "notices_total": Metric(_C, "Runs of notify.command by how they ended: done, failed or dropped.", ("result",)),
        "scrapes_refused_total": Metric(_C, "Connections to the metrics page that were turned away, too many or too slow."),
    }.items()
}
