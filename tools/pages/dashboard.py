"""The Grafana dashboard for units under gpu-lifecycle, as JSON that Grafana imports (its own model, schemaVersion 39)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from gpu_lifecycle.facts import Phase

COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what it shows (expression and legend), how wide and high it is, in Grafana's grid of 24 columns."""

    title: str
    kind: str  # of Grafana's: stat, timeseries, bargauge, state-timeline
    queries: tuple[tuple[str, str], ...]
    unit: str = "none"
    width: int = 12
    height: int = 8
    text: str = ""
    look: dict[str, Any] = field(default_factory=dict)  # of each value: its colour, bounds, words
    many: bool = False  # more series than fit in a line: those that matter first
    custom: dict[str, Any] = field(default_factory=dict)


def _of(name: str, **labels: str) -> str:
    more = "".join(f",{key}{value}" for key, value in labels.items())
    return f'gpu_lifecycle_{name}{{unit=~"$unit"{more}}}'


def _quantile(share: float) -> str:
    rate = f"rate({_of('probe_duration_seconds_bucket')}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by (le) ({rate}))"


def _phase() -> str:
    """The phase of each unit as a number, its place in ``Phase``: Grafana has names for values, not for labels."""
    asked = [_of("phase", phase=f'="{phase}"') for phase in Phase]
    known = (f"{number} * ({of} == 1)" for number, of in enumerate(asked))
    return f"max by (unit) ({' or '.join(known)})"


def _words(**words: tuple[str, str]) -> list[dict[str, Any]]:
    """A text and a colour for a value: ``_words(_1=("yes", "green"))``."""
    known = {value[1:]: {"text": text, "color": color, "index": at} for at, (value, (text, color)) in enumerate(words.items())}
    return [{"type": "value", "options": known}]


def _levels(first: str, *more: tuple[float, str]) -> dict[str, Any]:
    """Colours from a value on. Without any, Grafana paints red what is 80 or more, seconds too."""
    steps = [{"value": None, "color": first}, *({"value": value, "color": color} for value, color in more)]
    return {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}


_PHASES = {
    Phase.DOWN: "#6e6e6e", Phase.PRE_START: "purple", Phase.LOADING: "blue", Phase.WARMING: "light-blue",
    Phase.READY: "green", Phase.SUSPECT: "orange", Phase.DRAINING: "yellow", Phase.STOPPING: "dark-yellow",
    Phase.POST_STOP: "dark-purple", Phase.FAILED: "red",
}  # fmt: skip
_REDUCED = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "orientation": "auto"}
_BARS = {**_REDUCED, "orientation": "horizontal", "displayMode": "basic", "valueMode": "color", "showUnfilled": True}
_LEGEND = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
_TABLE = {**_LEGEND, "displayMode": "table", "placement": "right", "calcs": ["max"], "sortBy": "Max", "sortDesc": True}
_HOVER = {"mode": "multi", "sort": "desc"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "stat": {**_REDUCED, "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "textMode": "auto"},
    "bargauge": {**_BARS, "namePlacement": "left", "minVizHeight": 16, "minVizWidth": 8},
    "timeseries": {"legend": _LEGEND, "tooltip": _HOVER},
    "state-timeline": {
        "showValue": "auto", "mergeValues": True, "rowHeight": 0.9, "alignValue": "left",
        "legend": {**_LEGEND, "showLegend": False}, "tooltip": {"mode": "single", "sort": "none"},
    },
}  # fmt: skip
_STACK = {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}
_STEPS = {"lineInterpolation": "stepAfter"}
_COUNT = {"min": 0, "decimals": 0}
_LINES = {"color": {"mode": "palette-classic"}}
_PLAIN = _levels("text")
_BLUE = _levels("blue")
_NOW = ("stat", "bargauge")  # they show what is, not what was last heard of a unit that is gone

PANELS: tuple[Panel, ...] = (
    Panel(
        "Ready", "stat", ((_of("ready"), "{{unit}}"),), width=4, height=4,
        look={**_PLAIN, "mappings": _words(_0=("no", "red"), _1=("yes", "green")), "noValue": "down"},
    ),
    Panel(
        "Age of this run", "stat", ((f"time() - {_of('run_start_time_seconds')}", "{{unit}}"),), "s", 4, 4,
        look={**_PLAIN, "noValue": "–"},
    ),
    Panel("Load took", "stat", ((_of("load_seconds"), "{{unit}}"),), "s", 4, 4, look={**_PLAIN, "noValue": "–"}),
    Panel(
        "Load: how far", "stat", ((_of("load_progress_ratio"), "{{unit}}"),), "percentunit", 4, 4,
        look={**_BLUE, "min": 0, "max": 1, "noValue": "–"}, text="While one goes on, and as far as it is known.",
    ),
    Panel(
        "Load: time left", "stat", ((_of("load_remaining_seconds"), "{{unit}}"),), "s", 4, 4,
        look={**_BLUE, "noValue": "–"}, text="While one goes on, and as far as it is known.",
    ),
    Panel(
        "Failed checks in a row", "stat", ((_of("strikes"), "{{unit}}"),), width=4, height=4,
        look={**_levels("green", (1, "orange")), "noValue": "–"},
    ),
    Panel(
        "Phase", "state-timeline", ((_phase(), "{{unit}}"),), width=24, height=4,
        look={
            **_PLAIN,
            "mappings": _words(**{f"_{at}": (str(phase), _PHASES[phase]) for at, phase in enumerate(Phase)}),
        },
        custom={"fillOpacity": 80, "lineWidth": 0}, text="The phase that each unit was in; a gap where no daemon answered.",
    ),
    Panel(
        "Memory by GPU, the unit's own", "timeseries", ((_of("gpu_memory_bytes", owner='="own"'), "GPU {{index}}"),), "bytes",
        look={**_LINES, "min": 0}, custom=_STACK,
    ),
    Panel(
        "Memory that is not the unit's", "timeseries",
        ((_of("gpu_memory_bytes", owner='=~"other|unexplained"'), "GPU {{index}} {{owner}}"),), "bytes",
        look={**_LINES, "min": 0}, custom=_STACK, many=True,
        text="Other processes', and what nobody that can be seen holds.",
    ),
    Panel(
        "Memory used, by GPU", "bargauge",
        ((f"{_of('gpu_memory_used_bytes')} / {_of('gpu_memory_size_bytes')}", "GPU {{index}}"),),
        "percentunit", look={**_BLUE, "min": 0, "max": 1, "noValue": "–"},
    ),
    Panel(
        "Checks: seconds to answer", "timeseries",
        (
            (_quantile(0.5), "half within"),
            (_quantile(0.95), "95% within"),
            (_of("probe_seconds"), "last {{probe}}"),
        ), "s", look={**_LINES, "min": 0},
        text="Of the health endpoint; the last of each kind. An engine that shows its counters is seldom asked.",
    ),
    Panel(
        "Requests", "timeseries",
        ((_of("requests_in_flight"), "in flight"), (_of("requests_queued"), "waiting")),
        look={**_LINES, **_COUNT}, text="As the engine's own metrics say.",
    ),
    Panel(
        "Seconds per phase of this run", "bargauge", ((_of("phase_seconds_total"), "{{phase}}"),), "s",
        look={**_BLUE, "min": 0, "noValue": "–"},
    ),
    Panel(
        "Failed runs by cause, since boot", "timeseries", ((_of("failed_runs_total"), "{{reason}}"),),
        look={**_LINES, **_COUNT}, custom={**_STACK, **_STEPS},
    ),
    Panel(
        "Events", "timeseries", ((f"increase({_of('events_total')}[$__rate_interval]) > 0", "{{event}}"),),
        look={**_LINES, **_COUNT}, custom={"drawStyle": "bars", "fillOpacity": 60},
        text="Warnings and errors; other events from their second time in a run on.",
    ),
    Panel(
        "Holders in the last sweep", "bargauge", ((_of("holders"), "{{verdict}}"),), width=8,
        look={**_BLUE, **_COUNT, "noValue": "–"},
    ),
    Panel(
        "Sight", "stat", ((_of("sight_full"), "{{source}}"),), width=8,
        look={**_PLAIN, "mappings": _words(_0=("partial", "orange"), _1=("full", "green")), "noValue": "–"},
        text="Whether all could be seen: of GPU memory, of the kernel log.",
    ),
    Panel(
        "People told", "timeseries", ((_of("notices_total"), "{{result}}"),), width=8,
        look={**_LINES, **_COUNT}, custom=_STEPS,
    ),
)  # fmt: skip


def page() -> str:
    """The dashboard's JSON."""
    return json.dumps(_dashboard(), indent=1, ensure_ascii=False) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "uid": "gpu-lifecycle",
        "title": "gpu-lifecycle",
        "description": "Inference servers under gpu-lifecycle. Made from tools/pages/dashboard.py.",
        "tags": ["gpu", "inference"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "templating": {"list": [_source(), _unit()]},
        "annotations": {"list": [_starts()]},
        "panels": _panels(),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}


def _unit() -> dict[str, Any]:
    query = "label_values(gpu_lifecycle_info, unit)"
    return {
        "name": "unit", "label": "Unit", "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": "units"},
        "refresh": 2, "multi": True, "includeAll": True, "sort": 1,
    }  # fmt: skip


def _starts() -> dict[str, Any]:
    expr = f"changes({_of('run_start_time_seconds')}[1m]) > 0"
    look = {"enable": True, "iconColor": "blue", "titleFormat": "{{unit}}"}
    # Newer Grafanas have an expression in the target, older ones beside it.
    target = {"refId": "mark", "datasource": SOURCE, "expr": expr}
    return {"name": "A run begins", "datasource": SOURCE, "expr": expr, "target": target, **look}


def _panels() -> list[dict[str, Any]]:
    """One after the other, from left to right, in rows."""
    made, x, y, high = [], 0, 0, 0
    for number, panel in enumerate(PANELS, 1):
        if x + panel.width > COLUMNS:
            x, y, high = 0, y + high, 0
        made.append(_panel(number, panel, x, y))
        x, high = x + panel.width, max(high, panel.height)
    return made


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, **panel.look, "custom": panel.custom}, "overrides": []},
        "options": _OPTIONS[panel.kind] | ({"legend": _TABLE} if panel.many else {}),
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expr, "legendFormat": legend, **_when(panel.kind)}
            for at, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _when(kind: str) -> dict[str, bool]:
    return {"instant": kind in _NOW, "range": kind not in _NOW}
