"""What is seen of a unit becomes samples, exactly: what is not known gives none, and nobody's file adds labels."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.errors import Exit
from gpu_lifecycle.facts import ErrorClass, Gpu, GpuError, GpuProcess, GpuView, Identity, Phase
from gpu_lifecycle.rules.events import EVENTS, WARNING
from gpu_lifecycle.rules.life import Life, Limits
from gpu_lifecycle.rules.measured import Seen, Tally, samples
from gpu_lifecycle.rules.metric_names import BUCKETS, METRICS, Distribution, Shape
from gpu_lifecycle.rules.metrics import Counters
from gpu_lifecycle.rules.readiness import NOT_ASKED, Health, Look, Needs, Signs, Socket

GIB = 1 << 30
LIMITS = Limits(
    Needs({"GPU-a": "0"}), stall=600, ceiling=3600, interval=5, probe_timeout=5, failures=3, drain=120, term_grace=10,
    exit_deadline=30,
)  # fmt: skip
LOADING = Life(LIMITS, began=100.0, progress=0.25, eta=60.0)
READY = replace(LOADING, phase=Phase.READY, was_ready=True, ready_at=175.5)
GPU = Gpu("GPU-a", 3, 3, "0000:01:00.0", "H200", 80 * GIB, 50 * GIB, (GpuProcess(7, 40 * GIB), GpuProcess(9, 4 * GIB)))
LOOK = Look({"GPU-a": 40 * GIB}, Socket(True, True), Health(200, "status 200", 0.25), alive=frozenset({Identity("b", 7, 1)}))
ACCOUNT = {"began": 1000.5, "seconds_loading": 75.5, "seconds_ready": 9.0}
SEEN = Seen("1.2.3", "sglang", 2000.25, READY, LOOK, GpuView((GPU,)), (GPU,), ACCOUNT)
PLACE = ("GPU-a", "3")


def found(seen: Seen, tally: Tally | None = None) -> dict[tuple[str, ...], Any]:
    """Every sample by its name, without the common prefix, and labels."""
    made = samples(seen, tally or Tally())
    by_key = {(item.name.removeprefix("gpu_lifecycle_"), *item.labels): item.value for item in made}
    assert len(by_key) == len(made), "a sample twice"
    for item in made:
        assert len(item.labels) == len(METRICS[item.name].labels)
        assert isinstance(item.value, Distribution) is (METRICS[item.name].shape is Shape.HISTOGRAM)
    return by_key


def test_a_ready_unit() -> None:
    shown = found(SEEN)
    assert shown["ready",] == 1
    assert {phase: shown["phase", phase] for phase in Phase} == {phase: phase is Phase.READY for phase in Phase}
    assert (shown["phase_seconds_total", "loading"], shown["phase_seconds_total", "ready"]) == (75.5, 9.0)
    assert ("phase_seconds_total", "draining") not in shown
    assert (shown["run_start_time_seconds",], shown["last_update_time_seconds",]) == (1000.5, 2000.25)
    assert (shown["load_seconds",], shown["strikes",]) == (75.5, 0)
    assert ("load_progress_ratio",) not in shown
    assert shown["info", "1.2.3", "sglang"] == 1
    assert (shown["probe_seconds", "health"], shown["probe_success", "health"]) == (0.25, 1)
    assert (shown["sight_full", "gpus"], shown["sight_full", "kernel-log"]) == (1, 1)


def test_memory_by_owner() -> None:
    shown = found(SEEN)
    shares = {owner: shown["gpu_memory_bytes", *PLACE, owner] // GIB for owner in ("own", "other", "unexplained")}
    assert shares == {"own": 40, "other": 4, "unexplained": 6}
    assert (shown["gpu_memory_used_bytes", *PLACE], shown["gpu_memory_size_bytes", *PLACE]) == (50 * GIB, 80 * GIB)


HIDDEN = replace(GPU, processes=(GpuProcess(7, 40 * GIB), GpuProcess(9, None)))
ERROR = GpuError("999", "lost", ErrorClass.RETRY)


@pytest.mark.parametrize(
    ("change", "owners"),
    [
        ({"view": GpuView((HIDDEN,))}, ["own"]),
        ({"view": GpuView((replace(GPU, processes=None),))}, ["own"]),
        ({"look": replace(LOOK, estimated=True)}, ["own"]),
        ({"look": replace(LOOK, memory={"GPU-a": None})}, []),
        ({"look": None}, []),
        ({"view": None}, []),
        ({"view": GpuView((), error=ERROR)}, []),
        ({"view": GpuView((replace(GPU, error=ERROR),))}, []),
        ({"view": GpuView((replace(GPU, used=None),))}, []),
        ({"view": GpuView((replace(GPU, used=41 * GIB),))}, ["own", "other", "unexplained"]),  # never less than nothing
    ],
)
def test_memory_that_is_not_known_is_missing_and_not_zero(change: dict[str, Any], owners: list[str]) -> None:
    shown = found(replace(SEEN, **change))
    assert [key[3] for key in shown if key[0] == "gpu_memory_bytes"] == owners
    assert all(shown[key] >= 0 for key in shown if key[0] == "gpu_memory_bytes")
    assert shown["gpu_memory_size_bytes", *PLACE] == 80 * GIB


@pytest.mark.parametrize(
    ("life", "names"),
    [
        (LOADING, {"load_progress_ratio", "load_remaining_seconds"}),
        (replace(LOADING, progress=None, eta=None), set()),
        (replace(LOADING, stage=1), set()),
        (READY, {"load_seconds"}),
    ],
)
def test_a_load(life: Life, names: set[str]) -> None:
    assert {key[0] for key in found(replace(SEEN, life=life)) if key[0].startswith("load_")} == names


@pytest.mark.parametrize(
    ("signs", "life", "total", "queued"),
    [
        (Signs(counters=Counters({}, 3, 4)), READY, 7, 4),
        (Signs(counters=Counters({}, 3, None)), READY, 3, None),
        (Signs(counters=Counters({}, None, None)), READY, None, None),
        (Signs(), READY, None, None),
        (Signs(counters=Counters({}, 3, 4)), replace(READY, stage=1, in_flight=2), 2, None),
        (Signs(counters=Counters({}, 3, 4)), replace(READY, stage=1), None, None),
    ],
)
def test_requests(signs: Signs, life: Life, total: int | None, queued: int | None) -> None:
    shown = found(replace(SEEN, life=life, look=replace(LOOK, signs=signs)))
    assert (shown.get(("requests_in_flight",)), shown.get(("requests_queued",))) == (total, queued)


def test_answers_that_were_not_asked_for_are_none() -> None:
    shown = found(replace(SEEN, look=replace(LOOK, health=NOT_ASKED, generated=Health(200, "a token", 0.5))))
    assert ("probe_seconds", "health") not in shown
    assert (shown["probe_seconds", "token"], shown["probe_success", "token"]) == (0.5, 1)


def test_partial_sight() -> None:
    shown = found(replace(SEEN, look=replace(LOOK, nvml_error="timeout"), blind="not permitted"))
    assert (shown["sight_full", "gpus"], shown["sight_full", "kernel-log"]) == (0, 0)


def test_counts() -> None:
    state = {"ends": {"host-oom": 2, "refused-75": 1, "stopped": 5}, "holders": {"ignore": 0, "spare": 3, "reap": 1}}
    tally = Tally(events={"ready": 1, "suspect": 2}, notices={"done": 3, "failed": 0, "dropped": 0}, refused=4)
    shown = found(replace(SEEN, state=state), tally)
    assert {key[1]: shown[key] for key in shown if key[0] == "failed_runs_total"} == {"host-oom": 2, "refused-75": 1}
    assert {key[1]: shown[key] for key in shown if key[0] == "holders"} == {"ignore": 0, "spare": 3, "reap": 1}
    assert (shown["events_total", "ready"], shown["events_total", "suspect"], shown["events_total", "xid-seen"]) == (1, 2, 0)
    assert ("events_total", "reloaded") not in shown
    assert (shown["notices_total", "done"], shown["scrapes_refused_total",]) == (3, 4)
    assert sum(key[0] == "events_total" for key in shown) == 1 + sum(kind.priority <= WARNING for kind in EVENTS.values())


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.text(max_size=4)),
    lambda inner: st.dictionaries(st.sampled_from(["spare", "host-oom", "x\n{", "stopped"]), inner, max_size=3),
)


@given(JUNK, JUNK)
def test_a_state_file_of_junk_adds_no_label_of_its_own(ends: object, holders: object) -> None:
    for key, value in found(replace(SEEN, state={"ends": ends, "holders": holders})).items():
        assert key[1:] not in (("x\n{",), ("stopped",)) or key[0] != "failed_runs_total"
        if key[0] in ("failed_runs_total", "holders"):
            assert key[1] in ("spare", "host-oom")
            assert value >= 0


@given(st.lists(st.floats(0, 60)))
def test_a_distribution(seconds: list[float]) -> None:
    made = Distribution()
    for value in seconds:
        made = made.plus(value)
    assert sum(made.counts) == len(seconds)
    for most, below in zip(BUCKETS, range(1, len(BUCKETS) + 1), strict=True):
        assert sum(made.counts[:below]) == sum(value <= most for value in seconds)


def test_the_last_page_of_a_file_is_quiet() -> None:
    ended = replace(READY, status=Exit.OK, phase=Phase.DOWN, stage=1)
    shown = found(replace(SEEN, life=ended, look=None, view=None))
    assert (shown["ready",], shown["phase", "down"]) == (0, 1)


@pytest.mark.parametrize("name", METRICS)
def test_names_keep_to_the_conventions(name: str) -> None:
    metric = METRICS[name]
    assert re.fullmatch("gpu_lifecycle(_[a-z]+)+", name)
    assert name.endswith("_total") is (metric.shape is Shape.COUNTER)
    assert metric.text.endswith(".")
    assert metric.text.isascii()
    assert not {"unit", "job", "instance", "le"} & set(metric.labels)
