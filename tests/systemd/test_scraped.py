"""Metrics and notices of a real unit: scraped over loads, failures and reloads, also by a real Prometheus."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.prometheus import program
from tests.systemd.site import CONFIG, UNIT, Site

pytestmark = pytest.mark.machine

SOCKET = "/run/gpu-lifecycle/sglang-kimi/metrics.sock"
FOLDER = "/var/lib/gpu-lifecycle/sglang-kimi"
WATCH = '[watch]\ninterval = "500ms"\ntimeout = "2s"\n[stop]\ndrain = "5s"\n'
PORT = '[metrics]\nlisten = "127.0.0.1:9400"\n'
TELL = "/usr/local/bin/tell"
TOLD = f"{FOLDER}/told"
ASK = """
import http.client
line = http.client.HTTPConnection("127.0.0.1", 9400, timeout=10)
line.request("GET", "/metrics")
print(line.getresponse().read().decode(), end="")
"""
ASK_SOCKET = f"""
import socket
line = socket.socket(socket.AF_UNIX)
line.connect({SOCKET!r})
line.sendall(b"GET /metrics HTTP/1.1\\r\\n\\r\\n")
text = b""
while piece := line.recv(65536):
    text += piece
print(text.decode().partition("\\r\\n\\r\\n")[2], end="")
"""
# Whoever may connect holds the server's places, asks without an end, and reads nothing.
HOSTILE = """
import socket, threading, time
def busy(number):
    while True:
        try:
            with socket.create_connection(("127.0.0.1", 9400), timeout=5) as line:
                line.sendall(b"GET /metrics HTTP/1.1\\r\\n" + (b"\\r\\n" if number % 2 else b"X: y"))
                time.sleep(0.02 if number < 10 else 9)
        except OSError:
            time.sleep(0.01)
for number in range(40):
    threading.Thread(target=busy, args=(number,), daemon=True).start()
time.sleep(120)
"""


def page(site: Site, code: str = ASK) -> str:
    """The page as it is now; empty where nobody answers."""
    return site.ask("/usr/bin/python3", "-I", "-c", code)


def values(text: str, name: str) -> dict[str, float]:
    """The values of one metric by their labels but the unit."""
    found = re.findall(rf"^gpu_lifecycle_{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
    assert all(f'unit="{UNIT}"' in labels for labels, _ in found)
    return {re.sub(f',?unit="{UNIT}",?', "", labels): float(value) for labels, value in found}


def phase(text: str) -> str:
    (found,) = [labels for labels, value in values(text, "phase").items() if value == 1] or [""]
    return found.removeprefix('phase="').removesuffix('"')


@pytest.fixture
def told(site: Site) -> Iterator[None]:
    """A program that keeps what it is told."""
    site.machine.write(TELL, f"#!/bin/sh\ncat >> {TOLD}\necho told by $(id -un)\n", 0o755)
    site.ask("rm", "-f", TOLD)
    yield
    site.ask("rm", "-f", TELL, TOLD)


def heard(site: Site) -> list[dict[str, Any]]:
    return [json.loads(line) for line in site.ask("sh", "-c", f"cat {TOLD} 2>/dev/null").splitlines()]


def test_a_run_from_its_load_over_a_failure_to_ready_again(site: Site) -> None:
    site.configure("--load-seconds", "4", "--enable-metrics", extra=WATCH + PORT)
    site.start(wait=False)
    site.machine.wait(lambda: phase(page(site)) == "loading", 40, "the load to be shown")
    site.wait_state("active", timeout=60)
    site.machine.wait(lambda: phase(page(site)) == "ready", 10, "ready to be shown")
    site.machine.run(["sleep", "1.5"])
    text = page(site)
    assert values(text, "ready") == {"": 1}
    assert values(text, "load_seconds")[""] >= 4
    assert values(text, "phase_seconds_total")['phase="loading"'] > 1
    own = {key: value for key, value in values(text, "gpu_memory_bytes").items() if 'owner="own"' in key}
    assert len(own) == 8
    assert min(own.values()) == 72 << 30
    assert all(value == 0 for key, value in values(text, "gpu_memory_bytes").items() if 'owner="own"' not in key)
    assert values(text, "holders") == {f'verdict="{word}"': 0 for word in ("ignore", "spare", "reap", "conflict")}
    assert values(text, "requests_in_flight") == {"": 0}
    assert values(text, "sight_full")['source="gpus"'] == 1
    assert values(text, "failed_runs_in_a_row") == {"": 0}
    began = values(text, "run_start_time_seconds")[""]
    before = sum(values(text, "failed_runs_total").values())

    site.kill(site.workers()[3])

    def again() -> bool:
        shown = page(site)
        return phase(shown) == "ready" and values(shown, "run_start_time_seconds")[""] > began

    site.machine.wait(again, 90, "another run")
    text = page(site)
    assert sum(values(text, "failed_runs_total").values()) == before + 1
    assert values(text, "failed_runs_in_a_row") == {"": 1}
    site.stop()
    assert (site.state(), site.show("Result"), page(site)) == ("inactive", "success", "")


def test_a_reload_opens_it_again_and_follows_the_config(site: Site) -> None:
    site.configure(extra=WATCH + PORT)
    site.start()
    site.machine.wait(lambda: phase(page(site)) == "ready", 10, "ready to be shown")
    main, loaded = site.show("MainPID"), values(page(site), "load_seconds")
    site.systemctl("reload", timeout=90)
    site.machine.wait(lambda: phase(page(site)) == "ready", 10, "the page after a reload")
    assert values(page(site), "load_seconds") == loaded
    assert values(page(site), "phase_seconds_total")['phase="loading"'] > 0
    site.machine.write(CONFIG, site.machine.read(CONFIG).replace('"127.0.0.1:9400"', f'"unix:{SOCKET}"'))
    site.systemctl("reload", timeout=90)
    site.machine.wait(lambda: phase(page(site, ASK_SOCKET)) == "ready", 10, "the page on a socket")
    assert page(site) == ""
    site.systemctl("reload", timeout=90)
    site.machine.wait(lambda: phase(page(site, ASK_SOCKET)) == "ready", 10, "the socket's file to be taken over")
    assert site.show("MainPID") == main
    assert not site.events("metrics-failed")
    site.kill(int(main))
    site.machine.wait(lambda: site.show("MainPID") not in (main, "0"), 60, "a restart")
    site.wait_state("active", timeout=60)
    site.machine.wait(lambda: phase(page(site, ASK_SOCKET)) == "ready", 10, "the socket's file of one that was killed")


def test_a_taken_port_is_told_once_and_is_in_nobodys_way(site: Site) -> None:
    site.configure(extra=WATCH + PORT)
    site.service_holder_free("squatter", "--listen", "9400")
    site.start()
    site.machine.wait(lambda: bool(site.events("metrics-failed")), 20, "it to be told")
    assert "127.0.0.1:9400: Address already in use" in site.messages("metrics-failed")
    assert site.state() == "active"
    site.stop()
    assert len(site.events("metrics-failed")) == 1


def test_hostile_scrapers_delay_neither_the_watchdog_nor_a_stop(site: Site) -> None:
    site.configure(extra=WATCH + PORT)
    with site.drop_in("[Service]\nWatchdogSec=10s\n"):
        site.start()
        site.machine.write("/run/hostile.py", HOSTILE)
        with site.machine.popen(["/usr/bin/python3", "-I", "/run/hostile.py"]) as process:
            site.machine.run(["sleep", "15"])
            assert (site.state(), site.show("NRestarts")) == ("active", "0")
            fed = int(site.show("WatchdogTimestampMonotonic"))
            site.machine.wait(lambda: int(site.show("WatchdogTimestampMonotonic")) > fed, 3, "the watchdog to be fed")
            began = time.monotonic()
            site.stop()
            assert time.monotonic() - began < 15
            process.terminate()
            process.communicate(timeout=30)
        assert site.show("Result") == "success"


def test_a_real_prometheus_and_node_exporter_read_it(site: Site) -> None:
    site.configure(extra=f'{WATCH}{PORT}textfile = "{FOLDER}"\n')
    for name in ("prometheus", "prometheus-node-exporter"):
        site.machine.copy(program(name), f"/opt/prometheus/{name}")
    target = '{"scrape_configs": [{"job_name": "gpu-lifecycle", "static_configs": [{"targets": ["127.0.0.1:9400"]}]}],'
    site.machine.write("/opt/prometheus/config.yml", target + '"global": {"scrape_interval": "1s"}}')
    words = "/opt/prometheus/prometheus --config.file=/opt/prometheus/config.yml --storage.tsdb.path=/run/tsdb"
    site.machine.run_in_unit("prom", [*words.split(), "--web.listen-address=127.0.0.1:9090"])
    exporter = ["/opt/prometheus/prometheus-node-exporter", "--web.listen-address=127.0.0.1:9100"]
    site.machine.run_in_unit("node", [*exporter, "--collector.disable-defaults", "--collector.textfile",
                                      f"--collector.textfile.directory={FOLDER}"])  # fmt: skip
    try:
        site.start()
        ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:{}').read().decode())"
        query = ask.format("9090/api/v1/query?query=gpu_lifecycle_ready==1")
        site.machine.wait(lambda: '"unit":"sglang-kimi.service"' in page(site, query), 40, "Prometheus to have it")
        query = ask.format("9090/api/v1/query?query=count(gpu_lifecycle_gpu_memory_bytes)")
        site.machine.wait(lambda: '"24"' in page(site, query), 20, "Prometheus to have the memory by GPU and owner")
        metrics = ask.format("9100/metrics")
        site.machine.wait(lambda: phase(page(site, metrics)) == "ready", 20, "node_exporter to have it")
        assert "node_textfile_scrape_error 0" in page(site, metrics)
        site.kill(site.workers()[1])
        site.machine.wait(lambda: phase(page(site, metrics)) == "failed", 30, "the file's last word to be that it has failed")
        site.wait_state("active", timeout=60)
        site.machine.wait(lambda: phase(page(site, metrics)) == "ready", 20, "the next run to write it")
        site.stop()
        assert phase(page(site, metrics)) == "down"
    finally:
        site.machine.run(["systemctl", "stop", "prom", "node"], check=False)


def test_a_folder_that_is_closed_is_told_with_the_cure(site: Site) -> None:
    site.configure(extra=f'{WATCH}[metrics]\ntextfile = "/var/lib"\n')
    site.start()
    site.machine.wait(lambda: bool(site.events("metrics-failed")), 20, "it to be told")
    assert "ReadWritePaths= makes it so" in site.messages("metrics-failed")
    site.stop()
    assert (len(site.events("metrics-failed")), site.show("Result")) == (1, "success")


@pytest.mark.usefixtures("told")
def test_people_are_told_of_a_failure_by_the_units_user(site: Site) -> None:
    site.configure(extra=f'{WATCH}[notify]\ncommand = ["{TELL}"]\nevents = ["engine-failed", "ready", "run-ended"]\n')
    site.start()
    site.machine.wait(lambda: "ready" in [item["event"] for item in heard(site)], 10, "ready to be told")
    site.machine.run(["sed", "-i", '/"event": "run-ended"/d', TOLD])  # of a run before this test, handed on
    run = site.show("InvocationID")
    site.kill(site.workers()[3])
    site.machine.wait(lambda: len(heard(site)) >= 4, 60, "the failure, its cause and the next run to be told")
    first, failed, *rest = heard(site)
    assert (failed["event"], failed["priority"], failed["unit"], failed["run"]) == ("engine-failed", "error", UNIT, run)
    assert "lost 1 of " in failed["message"]
    assert failed["explanation"]
    assert sorted(item["event"] for item in rest) == ["ready", "run-ended"]
    ended = next(item for item in rest if item["event"] == "run-ended")
    assert (ended["run"], bool(ended["fields"]["GPU_LIFECYCLE_CAUSE"])) == (run, True)
    assert first["run"] == run
    lines = [str(line["MESSAGE"]) for line in site.machine.journal(UNIT, "-b", *site.since)]
    assert lines.count("told by gpu-lifecycle") >= 4


@pytest.mark.usefixtures("told")
def test_a_refused_start_is_told_before_there_is_a_daemon(site: Site) -> None:
    site.configure(extra=f'{WATCH}[notify]\ncommand = ["{TELL}"]\n')
    site.machine.write(CONFIG, site.machine.read(CONFIG).replace("count = 8", "count = 5"))
    site.start_and_fail()
    site.machine.wait(lambda: bool(heard(site)), 20, "the refusal to be told")
    assert [item["event"] for item in heard(site)] == ["start-refused"]
    assert "78" in heard(site)[0]["message"] or "69" in heard(site)[0]["message"]


@pytest.mark.usefixtures("told")
def test_a_command_that_hangs_delays_no_stop_and_is_told_once(site: Site) -> None:
    site.machine.write(TELL, "#!/bin/sh\ntrap '' TERM\nsleep 600 & sleep 600\n", 0o755)
    more = f'[notify]\ncommand = ["{TELL}"]\nevents = ["ready"]\nlimit = "1h"\n'
    site.configure(extra=WATCH + more)
    site.start()
    site.machine.wait(lambda: "sleep 600" in site.ask("ps", "-eo", "args"), 10, "the command to run")
    began = time.monotonic()
    site.stop()
    assert time.monotonic() - began < 15
    assert (site.show("Result"), site.events("engine-killed")) == ("success", [])
    assert "sleep 600" not in site.ask("ps", "-eo", "args")

    site.configure(extra=WATCH + more.replace("1h", "1s"))
    site.start()
    site.machine.wait(lambda: bool(site.events("notify-failed")), 20, "the failure to be told")
    assert "took longer than 1s (notify.limit)" in site.messages("notify-failed")
    site.systemctl("reload", timeout=90)
    assert site.state() == "active"
    site.stop()
    assert len(site.events("notify-failed")) == 1
