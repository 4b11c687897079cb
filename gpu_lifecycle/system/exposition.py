"""The door to prometheus-client: samples as the text that Prometheus reads (text format 0.0.4).

The library costs a tenth of a second and some megabytes: it is imported where metrics are on, and not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.rules.metric_names import BUCKETS, METRICS, Distribution, Metric, Sample, Shape

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def load() -> None:
    """Imports the library; may be done in a thread. Raises LifecycleError where it is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise LifecycleError(
            f"cannot show metrics: the library prometheus-client cannot be used ({error})",
            hint="install it beside gpu-lifecycle: pip install prometheus-client",
        ) from None


def render(unit: str, samples: Iterable[Sample]) -> bytes:
    """The page. A sample that is in no entry of ``METRICS`` is a defect: KeyError."""
    from prometheus_client import generate_latest

    pages: Any = _Page(list(_families(unit, samples)))
    return bytes(generate_latest(pages))


class _Page:
    """What prometheus-client calls a registry: it is asked for its families."""

    def __init__(self, families: list[Any]) -> None:
        self.families = families

    def collect(self) -> list[Any]:
        return self.families


def _families(unit: str, samples: Iterable[Sample]) -> Iterator[Any]:
    sorted_out: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for sample in samples:
        sorted_out[sample.name].append(sample)
    for name, found in sorted_out.items():
        if found:
            yield _family(unit, name, METRICS[name], found)


def _family(unit: str, name: str, metric: Metric, samples: list[Sample]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds: dict[Shape, Any] = {
        Shape.GAUGE: GaugeMetricFamily, Shape.COUNTER: CounterMetricFamily, Shape.HISTOGRAM: HistogramMetricFamily,
    }  # fmt: skip
    family: Any = kinds[metric.shape](name, metric.text, labels=("unit", *metric.labels))
    for sample in samples:
        labels = (unit, *sample.labels)
        if isinstance(sample.value, Distribution):
            family.add_metric(labels, _buckets(sample.value), sample.value.total)
        else:
            family.add_metric(labels, float(sample.value))
    return family


def _buckets(found: Distribution) -> list[tuple[str, int]]:
    """Each bucket holds all that are below it, too."""
    names = [*map(str, BUCKETS), "+Inf"]
    return [(name, sum(found.counts[: at + 1])) for at, name in enumerate(names)]
