"""What a dashboard must be for Grafana to show it as it is meant: its shape, and what no schema can say.

Grafana's import takes anything and keeps silent; a word it does not know does nothing. The shape is ours: the part of Grafana's
that our dashboard uses, as the TypeScript types of @grafana/schema 10.4.19 and 13.2.3 have it (``tools/dashboard/check.mjs``
holds the dashboard against them). A key that is new to the dashboard is added here once it has passed there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator

COLUMNS = 24
UNITS = ("none", "short", "s", "ms", "dtdurations", "bytes", "percent", "percentunit", "bool_yes_no", "reqps")
CALCS = ("lastNotNull", "last", "max", "min", "mean", "sum", "count")  # of Grafana's reducers
COLOR = r"^(#[0-9a-f]{6}|text|transparent|((super-light|light|semi-dark|dark)-)?(red|orange|yellow|green|blue|purple))$"
NOW = ("stat", "bargauge")  # kinds that show one value of each series
Shape = dict[str, Any]


def _object(needed: Shape, more: Shape | None = None) -> Shape:
    every = {**needed, **(more or {})}
    return {"type": "object", "properties": every, "required": sorted(needed), "additionalProperties": False}


def _list(items: Shape, least: int = 1) -> Shape:
    return {"type": "array", "items": items, "minItems": least}


def _one(*words: object) -> Shape:
    return {"enum": list(words)}


TEXT: Shape = {"type": "string"}
SAID: Shape = {"type": "string", "minLength": 1}
YES_NO: Shape = {"type": "boolean"}
NUMBER: Shape = {"type": "number"}
PAINT: Shape = {"type": "string", "pattern": COLOR}
SOURCE = _object({"type": _one("prometheus"), "uid": _one("${source}")})
PLACE = _object({
    "x": {"type": "integer", "minimum": 0},
    "y": {"type": "integer", "minimum": 0},
    "w": {"type": "integer", "minimum": 1, "maximum": COLUMNS},
    "h": {"type": "integer", "minimum": 2},
})  # fmt: skip
QUERY = _object({
    "refId": SAID, "datasource": SOURCE, "expr": SAID, "legendFormat": SAID, "instant": YES_NO, "range": YES_NO,
})  # fmt: skip
WORDS = _object({"text": SAID, "color": PAINT, "index": {"type": "integer"}})
MAPPING = _object({"type": _one("value"), "options": {"type": "object", "minProperties": 1, "additionalProperties": WORDS}})
STEPS = _list(_object({"value": {"type": ["number", "null"]}, "color": PAINT}))
LEVELS = _object({"mode": _one("absolute", "percentage"), "steps": STEPS})
LOOK: Shape = {
    "min": NUMBER, "max": NUMBER, "decimals": {"type": "integer", "minimum": 0}, "noValue": SAID,
    "mappings": _list(MAPPING), "thresholds": LEVELS,
}  # fmt: skip
STACKING = _object({"mode": _one("none", "normal", "percent"), "group": SAID})
FILL: Shape = {"fillOpacity": {"type": "number", "minimum": 0, "maximum": 100}, "lineWidth": NUMBER}
GRAPH = _object({}, {
    **FILL, "stacking": STACKING, "drawStyle": _one("line", "bars", "points"),
    "lineInterpolation": _one("linear", "smooth", "stepBefore", "stepAfter"),
})  # fmt: skip
CALCULATED = _list(_one(*CALCS), 0)
LEGEND = _object({
    "showLegend": YES_NO, "displayMode": _one("list", "table"), "placement": _one("bottom", "right"), "calcs": CALCULATED,
}, {"sortBy": SAID, "sortDesc": YES_NO})  # fmt: skip
HOVER = _object({"mode": _one("single", "multi", "none"), "sort": _one("none", "asc", "desc")})
REDUCED: Shape = {
    "reduceOptions": _object({"calcs": {**CALCULATED, "minItems": 1}}, {"values": YES_NO, "fields": TEXT}),
    "orientation": _one("auto", "horizontal", "vertical"),
}
STAT = _object(REDUCED, {
    "colorMode": _one("value", "background", "background_solid", "none"), "graphMode": _one("none", "line", "area"),
    "justifyMode": _one("auto", "center"), "textMode": _one("auto", "value", "value_and_name", "name", "none"),
})  # fmt: skip
BARS = _object(REDUCED, {
    "displayMode": _one("basic", "lcd", "gradient"), "valueMode": _one("color", "text", "hidden"), "showUnfilled": YES_NO,
    "namePlacement": _one("auto", "top", "left", "hidden"), "minVizHeight": NUMBER, "minVizWidth": NUMBER,
})  # fmt: skip
LINES = _object({"legend": LEGEND, "tooltip": HOVER})
STATES = _object({
    "showValue": _one("auto", "always", "never"), "rowHeight": NUMBER, "legend": LEGEND, "tooltip": HOVER,
}, {"mergeValues": YES_NO, "alignValue": _one("left", "center", "right")})  # fmt: skip


def _panel(kind: str, options: Shape, custom: Shape, colors: Shape, *needed: str) -> Shape:
    known = {"unit": _one(*UNITS), "custom": custom, "color": _object({"mode": colors})}
    look = _object({**known, **{key: LOOK[key] for key in needed}}, LOOK)
    return _object({
        "id": {"type": "integer", "minimum": 1}, "type": _one(kind), "title": SAID, "description": TEXT, "datasource": SOURCE,
        "gridPos": PLACE, "fieldConfig": _object({"defaults": look, "overrides": {"type": "array", "maxItems": 0}}),
        "options": options, "targets": _list(QUERY),
    })  # fmt: skip


# Without levels of its own a panel that colours by them has Grafana's: green, and red from 80 on.
PANELS: dict[str, Shape] = {
    "stat": _panel("stat", STAT, _object({}), _one("thresholds"), "thresholds", "noValue"),
    "bargauge": _panel("bargauge", BARS, _object({}), _one("thresholds"), "thresholds", "noValue", "min"),
    "timeseries": _panel("timeseries", LINES, GRAPH, _one("palette-classic", "palette-classic-by-name")),
    "state-timeline": _panel("state-timeline", STATES, _object({}, FILL), _one("thresholds"), "thresholds", "mappings"),
}
SOURCES = _object({"name": SAID, "label": SAID, "type": _one("datasource"), "query": _one("prometheus")})
UNITS_KNOWN = _object({
    "name": SAID, "label": SAID, "type": _one("query"), "datasource": SOURCE, "query": _object({"query": SAID, "refId": SAID}),
    "refresh": _one(1, 2), "multi": YES_NO, "includeAll": YES_NO, "sort": {"type": "integer", "minimum": 0, "maximum": 8},
})  # fmt: skip
MARK = _object({
    "name": SAID, "datasource": SOURCE, "expr": SAID, "enable": YES_NO, "iconColor": PAINT, "titleFormat": SAID,
    "target": _object({"refId": SAID, "datasource": SOURCE, "expr": SAID}),
})  # fmt: skip
DASHBOARD = _object({
    "uid": {"type": "string", "pattern": r"^[a-zA-Z0-9_-]{1,40}$"}, "title": SAID, "description": TEXT, "tags": _list(SAID, 0),
    "schemaVersion": {"type": "integer", "minimum": 36}, "version": {"type": "integer"}, "editable": YES_NO,
    "refresh": {"type": "string", "pattern": r"^\d+[smh]$"}, "timezone": _one("browser", "utc"), "graphTooltip": _one(0, 1, 2),
    "time": _object({"from": {"type": "string", "pattern": r"^now-\d+[smhdw]$"}, "to": _one("now")}),
    "templating": _object({"list": _list({"anyOf": [SOURCES, UNITS_KNOWN]})}), "annotations": _object({"list": _list(MARK)}),
    "panels": _list({
        "type": "object", "properties": {"type": _one(*PANELS)}, "required": ["type"],
        "allOf": [{"if": {"properties": {"type": _one(kind)}}, "then": shape} for kind, shape in PANELS.items()],
    }),
})  # fmt: skip


def problems(board: dict[str, Any]) -> list[str]:
    """What is wrong with a dashboard, each with its place; none where it is as it should be."""
    shape = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(DASHBOARD).iter_errors(board)]
    return shape or [*_double(board), *_overlaps(board), *_variables(board), *_values(board)]


def _double(board: dict[str, Any]) -> Iterator[str]:
    for key in ("id", "title"):
        seen = [panel[key] for panel in board["panels"]]
        yield from (f"two panels have the {key} {value}" for value in sorted({item for item in seen if seen.count(item) > 1}))
    for panel in board["panels"]:
        if len({target["refId"] for target in panel["targets"]}) < len(panel["targets"]):
            yield f"{panel['title']}: two queries have one refId"


def _overlaps(board: dict[str, Any]) -> Iterator[str]:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        if cells & taken:
            yield f"{panel['title']} lies on another panel"
        if place["x"] + place["w"] > COLUMNS:
            yield f"{panel['title']} is out of the grid"
        taken |= cells


def _variables(board: dict[str, Any]) -> Iterator[str]:
    known = {item["name"] for item in board["templating"]["list"]}
    asked = [query["expr"] for query in [*(t for p in board["panels"] for t in p["targets"]), *board["annotations"]["list"]]]
    used = set(re.findall(r"\$\{?(\w+)\}?", " ".join(asked))) - {"__rate_interval"}
    yield from (f"there is no variable {name}" for name in sorted({*used, "source"} - known))
    yield from (f"the variable {name} is not used" for name in sorted(known - used - {"source"}))


def _values(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        now = panel["type"] in NOW
        if any((target["instant"], target["range"]) != (now, not now) for target in panel["targets"]):
            yield f"{panel['title']}: {'an old value would pass for that of now' if now else 'a graph of one moment'}"
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        known = [step["value"] for step in steps]
        if steps and (known[0] is not None or None in known[1:] or known[1:] != sorted(set(known[1:]))):
            yield f"{panel['title']}: levels begin with null and rise"
