"""Alert rules and dashboard: true to the metrics that there are, by Prometheus' own tool."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.rules.metric_names import METRICS, Shape
from tests.prometheus import program

ROOT = Path(__file__).parent.parent
ALERTS = ROOT / "docs/prometheus/alerts.yml"
TESTS = ROOT / "tests/promrules/alerts_test.yml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs/prometheus/dashboard.json").read_text())
SERIES = {
    f"{name}{end}": metric
    for name, metric in METRICS.items()
    for end in (("_bucket", "_sum", "_count") if metric.shape is Shape.HISTOGRAM else ("",))
}
SELECTOR = re.compile(r"(gpu_lifecycle_[a-z_]+)(?:\{([^}]*)\})?")


def promtool(*words: str | Path) -> str:
    done = subprocess.run([program("promtool"), *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expressions() -> list[str]:
    variables = [item["query"]["query"] for item in DASHBOARD["templating"]["list"] if item["type"] == "query"]
    marks = [item["expr"] for item in DASHBOARD["annotations"]["list"]]
    return [*variables, *marks, *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])]


def alert_expressions() -> list[str]:
    text = re.sub(r">-\n\s+(.*)\n\s+(.*)", r"\1 \2", ALERTS.read_text())
    return re.findall(r"^\s+expr: (.*)$", text, re.MULTILINE)


def test_the_alerts_fire_where_they_should_and_only_there() -> None:
    promtool("check", "rules", ALERTS)
    assert "SUCCESS" in promtool("test", "rules", TESTS)


def test_each_alert_is_tested_to_fire_and_not_to() -> None:
    names = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    text = TESTS.read_text()
    assert names
    for name in names:
        assert re.search(rf"alertname: {name}\n\s+exp_alerts:", text), f"{name} is never shown to fire"
        assert re.search(rf"alertname: {name}\}}", text), f"{name} is never shown not to"


@pytest.mark.parametrize("expression", [*expressions(), *alert_expressions()])
def test_an_expression_names_what_there_is(expression: str) -> None:
    found = SELECTOR.findall(expression)
    assert found or expression.startswith("up{")
    for name, labels in found:
        assert name in SERIES, f"there is no metric {name}"
        named = re.findall(r'(\w+)(?:=~|!~|!=|=)"', labels)
        assert set(named) <= {"unit", "job", "instance", *SERIES[name].labels}


def test_promtool_reads_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    known = [item.replace("$__rate_interval", "5m") for item in expressions() if not item.startswith("label_values(")]
    rules = [{"record": f"a:b{number}", "expr": item} for number, item in enumerate(known)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "x", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")


def test_every_metric_is_somewhere_to_be_seen() -> None:
    said = " ".join([*expressions(), *alert_expressions()])
    unseen = {name.removeprefix("gpu_lifecycle_") for name in METRICS if name not in said}
    assert unseen <= {"failed_runs_in_a_row", "scrapes_refused_total", "probe_success"}
