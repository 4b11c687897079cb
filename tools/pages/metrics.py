"""docs/metrics.md: every metric, from the table that the daemon shows them by."""

from __future__ import annotations

from gpu_lifecycle.rules.metric_names import METRICS

HEAD = """# Metrics

```toml
[metrics]
listen = "127.0.0.1:9400"                              # or "unix:/run/gpu-lifecycle/NAME/metrics.sock", or "[::1]:9400"
textfile = "/var/lib/prometheus/node-exporter"         # one of the two is enough
```

Off unless one of them is set; `systemctl reload UNIT` takes a change over. The page is for this machine alone: a Prometheus
elsewhere asks a proxy, or node_exporter by `textfile`. For that folder the unit needs `systemctl edit UNIT` with `[Service]`
and `ReadWritePaths=/var/lib/prometheus/node-exporter`, and its user write permission there. Each unit needs a port of its own.
While the unit is down the scrape fails (`up` is 0); the file then says `down` or `failed`.

[alerts.yml](prometheus/alerts.yml) are alert rules, [dashboard.json](prometheus/dashboard.json) is a dashboard for Grafana. All
metrics have the label `unit`. What is not known is missing, never 0. Counters begin anew with each run, but for
`gpu_lifecycle_failed_runs_total`. This page is made from `gpu_lifecycle/rules/metric_names.py` by `make docs`.

![The dashboard over eight minutes of a unit](prometheus/dashboard.png)

Drawn from dashboard.json with Grafana's own components (@grafana/ui and @grafana/data 10.4.19; only the Phase panel and the
marks of a run's begin by ours) over the answers of a real Prometheus; not a screenshot of a Grafana server. The unit and its
GPUs are those of the tests: requests, memory of others, an NVML that fails, and a worker that is killed while it loads. (An
NVML that fails restarted a unit when this was recorded; it does not any more: the script has workers that stop in its place.)
[How it is made](../tools/dashboard/README.md).

| metric | kind | labels | what it is |
| --- | --- | --- | --- |
"""


def page() -> str:
    rows = [
        f"| `{name}` | {metric.shape} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |"
        for name, metric in METRICS.items()
    ]
    return HEAD + "\n".join(rows) + "\n"
