"""Eight minutes of a unit on a test machine, as a real Prometheus saw them: what the dashboard's picture is drawn from.

    python -m tools.dashboard.record FOLDER

As root. Writes FOLDER/answers.json: to each panel's queries, what Prometheus answered.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.machine import Machine
from tests.machine.nvml import RESERVED, TOTAL
from tests.prometheus import program
from tests.systemd.conftest import new_site
from tests.systemd.site import GIB, HOLDER, Site

DASHBOARD = Path(__file__).parents[2] / "docs/prometheus/dashboard.json"
STEP = 5  # seconds between scrapes, and between the points that Grafana asks for
RATE = f"{4 * STEP}s"  # what Grafana makes of $__rate_interval
TELL = "/usr/local/bin/tell"
PERSISTENCED = "/usr/bin/nvidia-persistenced"
EXTRA = f"""
[watch]
interval = "2s"
timeout = "2s"
failures = 8
[stop]
drain = "20s"
[metrics]
listen = "127.0.0.1:9400"
[notify]
command = ["{TELL}"]
"""
ENGINE = ("--load-seconds", "45", "--warmup-seconds", "8", "--enable-metrics", "--max-running-requests", "24")
# Clients, as many as the clock says; each asks again once it is answered, or a second after it is not.
CLIENTS = """
import http.client, json, threading, time
def client(number):
    while True:
        wave = time.monotonic() % 75
        if number > (36 if 30 < wave < 50 else 9 + wave / 8):
            time.sleep(1)
            continue
        try:
            line = http.client.HTTPConnection("127.0.0.1", 30000, timeout=60)
            asked = {"text": "hello", "sampling_params": {"max_new_tokens": 40 + number * 7}}
            line.request("POST", "/generate", json.dumps(asked), {"Content-Type": "application/json"})
            line.getresponse().read()
        except OSError:
            time.sleep(1)
for number in range(40):
    threading.Thread(target=client, args=(number,), daemon=True).start()
time.sleep(3600)
"""
ASK = "import sys, urllib.request as r; print(r.urlopen('http://127.0.0.1:9090/api/v1/' + sys.argv[1]).read().decode())"


@contextmanager
def scraped(site: Site) -> Iterator[None]:
    """A Prometheus in the machine, for as long as the block lasts."""
    site.machine.copy(program("prometheus"), "/opt/prometheus/prometheus")
    scrape = {"job_name": "gpu-lifecycle", "static_configs": [{"targets": ["127.0.0.1:9400"]}]}
    config = {"global": {"scrape_interval": f"{STEP}s"}, "scrape_configs": [scrape]}
    site.machine.write("/opt/prometheus/config.yml", json.dumps(config))
    words = "/opt/prometheus/prometheus --config.file=/opt/prometheus/config.yml --storage.tsdb.path=/run/tsdb"
    site.machine.run_in_unit("prom", [*words.split(), "--web.listen-address=127.0.0.1:9090"])
    try:
        yield
    finally:
        site.machine.run(["systemctl", "stop", "prom"], check=False)


def story(site: Site) -> None:
    """A start over leftovers, requests, a stranger on a GPU, one that fills up, workers that stop, one lost in a load."""
    site.configure(*ENGINE, extra=EXTRA)
    site.machine.write(TELL, "#!/bin/sh\nexec cat > /dev/null\n", 0o755)
    site.machine.write("/run/clients.py", CLIENTS)
    site.machine.run(["cp", HOLDER, PERSISTENCED])
    site.service_holder("nvidia-persistenced", "--gpu", "0", "--gpu", "1", "--ctl", program=PERSISTENCED)
    site.orphan(gpu=2, gib=40)
    site.machine.nvml.set("linger 2500")
    time.sleep(20)
    site.start(wait=False)
    site.wait_state("active", timeout=120)
    site.machine.nvml.clear("linger")
    clients(site, 80)
    stranger = site.plant("stranger", "--gpu", "5", "--uvm", "--memory", f"5={30 * GIB}", "--daemonize")
    clients(site, 50)
    site.kill(stranger)
    site.machine.nvml.set(f"hidden 6 {TOTAL - RESERVED - 72 * GIB - (100 << 20)}")
    clients(site, 40)
    site.machine.nvml.clear("hidden")
    site.kill(*site.workers().values(), number="STOP")
    clients(site, 70)
    site.machine.wait(lambda: len(site.workers()) == 8, 60, "the workers of the next run")
    site.kill(site.workers()[3])
    time.sleep(30)
    site.wait_state("active", timeout=120)
    clients(site, 80)


def clients(site: Site, seconds: float) -> None:
    """Requests, for so long."""
    site.machine.run(["timeout", str(seconds), "/usr/bin/python3", "-I", "/run/clients.py"], check=False, timeout=seconds + 30)


def answers(site: Site, begin: float, end: float) -> dict[str, Any]:
    """What Prometheus says to the queries of each panel, by panel and letter; the marks of the annotations, too."""
    board = json.loads(DASHBOARD.read_text())
    asked = {f"{panel['id']}{target['refId']}": target for panel in board["panels"] for target in panel["targets"]}
    asked |= {f"mark{at}": mark for at, mark in enumerate(board["annotations"]["list"]) if "expr" in mark}
    found = {key: _ask(site, target, begin, end) for key, target in asked.items()}
    return {"begin": begin, "end": end, "step": STEP, "answers": found}


def _ask(site: Site, target: dict[str, Any], begin: float, end: float) -> Any:
    query = target["expr"].replace("$unit", ".*").replace("$__rate_interval", RATE)
    if target.get("instant"):
        words = f"query?{urlencode({'query': query, 'time': end})}"
    else:
        words = f"query_range?{urlencode({'query': query, 'start': begin, 'end': end, 'step': STEP})}"
    answer = json.loads(site.ask("/usr/bin/python3", "-I", "-c", ASK, words))
    return answer["data"]["result"]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with Machine(folder / "machine", gpus=8) as machine:
        site = new_site(machine)
        with scraped(site):
            begin = time.time() // STEP * STEP
            story(site)
            made = answers(site, begin, time.time() // STEP * STEP)
    (folder / "answers.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
