"""The Grafana dashboard for units under gpu-lifecycle, as JSON that Grafana imports (its own model, schemaVersion 39)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what it shows (expression and legend), how wide and high it is, in Grafana's grid of 24 columns."""

    title: str
    kind: str  # of Grafana's: stat, timeseries, bargauge, state-timeline
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 12
    height: int = 8
    text: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    custom: dict[str, Any] = field(default_factory=dict)


def _of(name: str, **labels: str) -> str:
    more = "".join(f",{key}{value}" for key, value in labels.items())
    return f'gpu_lifecycle_{name}{{unit=~"$unit"{more}}}'


def _quantile(share: float) -> str:
    rate = f"rate({_of('probe_duration_seconds_bucket')}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by (le) ({rate}))"


_ONE_LINE = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
_STACK = {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}

PANELS: tuple[Panel, ...] = (
    Panel("Ready", "stat", ((_of("ready"), "{{unit}}"),), "bool_yes_no", 4, 4, options=_ONE_LINE),
    Panel("Run began", "stat", ((f"time() - {_of('run_start_time_seconds')}", "{{unit}}"),), "s", 4, 4, options=_ONE_LINE),
    Panel("Load took", "stat", ((_of("load_seconds"), "{{unit}}"),), "s", 4, 4, options=_ONE_LINE),
    Panel("Load: how far", "stat", ((_of("load_progress_ratio"), "{{unit}}"),), "percentunit", 4, 4, options=_ONE_LINE),
    Panel("Load: time left", "stat", ((_of("load_remaining_seconds"), "{{unit}}"),), "s", 4, 4, options=_ONE_LINE),
    Panel("Failed checks in a row", "stat", ((_of("strikes"), "{{unit}}"),), width=4, height=4, options=_ONE_LINE),
    Panel(
        "Phase", "state-timeline", ((f"{_of('phase')} == 1", "{{unit}} {{phase}}"),), width=24, height=6,
        text="The phase that each unit was in.",
    ),
    Panel(
        "Memory by GPU, the unit's own", "timeseries", ((_of("gpu_memory_bytes", owner='="own"'), "GPU {{index}}"),), "bytes",
    ),
    Panel(
        "Memory that is not the unit's", "timeseries",
        ((_of("gpu_memory_bytes", owner='=~"other|unexplained"'), "GPU {{index}} {{owner}}"),), "bytes", custom=_STACK,
        text="Other processes', and what nobody that can be seen holds.",
    ),
    Panel(
        "Memory used, by GPU", "bargauge",
        ((f"{_of('gpu_memory_used_bytes')} / {_of('gpu_memory_size_bytes')}", "GPU {{index}}"),),
        "percentunit", options={"reduceOptions": {"calcs": ["lastNotNull"]}, "displayMode": "basic"},
    ),
    Panel(
        "Health endpoint: seconds to answer", "timeseries",
        (
            (_quantile(0.5), "half"),
            (_quantile(0.95), "95%"),
            (_of("probe_seconds"), "last {{probe}}"),
        ), "s",
    ),
    Panel(
        "Requests", "timeseries",
        ((_of("requests_in_flight"), "in flight"), (_of("requests_queued"), "waiting")),
        text="As the engine's own metrics say.",
    ),
    Panel("Seconds per phase of this run", "timeseries", ((_of("phase_seconds_total"), "{{phase}}"),), "s"),
    Panel("Failed runs by cause, since boot", "timeseries", ((_of("failed_runs_total"), "{{reason}}"),), custom=_STACK),
    Panel(
        "Warnings and errors", "timeseries", ((f"increase({_of('events_total')}[$__rate_interval]) > 0", "{{event}}"),),
        custom={"drawStyle": "bars", "fillOpacity": 60},
    ),
    Panel("Holders in the last sweep", "bargauge", ((_of("holders"), "{{verdict}}"),), width=8),
    Panel("Sight", "stat", ((_of("sight_full"), "{{source}}"),), "bool_yes_no", 8, options=_ONE_LINE),
    Panel("People told", "timeseries", ((_of("notices_total"), "{{result}}"),), width=8),
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
        "definition": query, "refresh": 2, "multi": True, "includeAll": True, "sort": 1,
    }  # fmt: skip


def _starts() -> dict[str, Any]:
    expr = f"changes({_of('run_start_time_seconds')}[1m]) > 0"
    look = {"enable": True, "iconColor": "blue", "titleFormat": "{{unit}}"}
    return {"name": "A run begins", "datasource": SOURCE, "expr": expr, **look}


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
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": panel.custom}, "overrides": []},
        "options": panel.options,
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for at, (expr, legend) in enumerate(panel.queries)
        ],
    }
