"""Why runs have ended, read back from the history: by systemd, on a real machine, after real ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.systemd.site import CONFIG, UNIT, Site

pytestmark = pytest.mark.machine
HISTORY = "/var/lib/gpu-lifecycle/sglang-kimi/history.db"

# Rank 3 runs out of memory; the others say so in their own words, before and after it.
DOOMED = """
import sys, time
for rank in (0, 1):
    print(f"[2026-12-02 10:00:00 TP{rank}] RuntimeError: NCCL error: unhandled system error", file=sys.stderr)
print("[2026-12-02 10:00:00 TP3] Scheduler hit an exception: Traceback (most recent call last):", file=sys.stderr)
print('  File "scheduler.py", line 3120, in run_scheduler_process', file=sys.stderr)
print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB",
      file=sys.stderr)
for rank in range(8):
    print(f"[2026-12-02 10:00:01 TP{rank}] Connection closed by peer [127.0.0.1]:4711", file=sys.stderr)
print("Received sigquit from a child process. It usually means the child failed.", file=sys.stderr, flush=True)
time.sleep(1)
sys.exit(1)
"""


@pytest.fixture
def fresh(site: Site) -> Iterator[Site]:
    """With no history, and one try only."""
    site.machine.run(["rm", "-f", HISTORY])
    with site.drop_in("[Service]\nRestart=no\n"):
        yield site


def run_program(site: Site, code: str) -> None:
    """As the engine."""
    program = "/opt/gpu-lifecycle/standins/doomed.py"
    site.machine.write(program, code)
    text = site.machine.read(CONFIG)
    line = next(line for line in text.splitlines() if line.startswith("command"))
    site.machine.write(CONFIG, text.replace(line, f'command = ["/usr/bin/python3", "-I", "{program}"]'))


def why(site: Site, *words: str) -> dict[str, Any]:
    return site.cli("why", "sglang-kimi", *words, check=True)


def fail(site: Site) -> None:
    site.start_and_fail()
    site.wait_state("failed")


def test_an_engine_that_runs_out_of_gpu_memory(fresh: Site) -> None:
    run_program(fresh, DOOMED)
    fail(fresh)
    shown = why(fresh)
    assert shown["cause"]["code"] == "cuda-oom"
    assert shown["running"] is None
    assert shown["run"]["outcome"] == "failed"
    assert shown["run"]["systemd"] == "exit-code exited 75"
    assert shown["run"]["run"] == fresh.show("InvocationID")
    assert shown["run"]["phases"].keys() >= {"pre-start", "loading"}
    assert shown["run"]["phases"]["loading"] >= 1.0
    assert shown["evidence"][0].startswith("the engine exited with status 1")
    assert 'it said: "torch.OutOfMemoryError' in shown["evidence"][0]
    assert any("(cuda-oom)" in line and "GPU 3 has a total capacity" in line for line in shown["evidence"])
    assert shown["before"] == {"count": 0, "of": 0, "last": None}
    assert fresh.ask("ls", shown["incident"]).split() == ["incident.json", "output.txt"]
    (told,) = fresh.events("run-ended")
    assert told["GPU_LIFECYCLE_CAUSE"] == "cuda-oom"
    assert told["MESSAGE"].startswith("failed: the memory of a GPU ran out (cuda-oom): the engine exited with status 1")
    assert fresh.show("StatusText").startswith("failed: the memory of a GPU ran out (cuda-oom)")
    explained = fresh.ask("journalctl", "-x", "-b", "-n", "1", f"MESSAGE_ID={told['MESSAGE_ID']}")
    assert "What to do: see who else holds memory there: gpu-lifecycle holders" in explained
    fail(fresh)
    again = why(fresh)
    assert again["before"]["count"] == 1
    assert "(cuda-oom, 1 time before)" in fresh.events("run-ended")[-1]["MESSAGE"]


def test_ends_of_every_kind_stand_in_order(fresh: Site) -> None:
    fresh.start()
    run = fresh.show("InvocationID")
    shown = why(fresh)
    assert (shown["running"]["run"], shown["running"]["phase"], shown["run"]) == (run, "ready", None)
    fresh.stop()
    stopped = why(fresh)
    assert (stopped["cause"]["code"], stopped["run"]["run"]) == ("stopped", run)
    assert list(stopped["run"]["phases"])[:2] == ["pre-start", "loading"]
    assert {"ready", "draining"} <= stopped["run"]["phases"].keys()
    assert stopped["run"]["began"] < stopped["run"]["ready"] < stopped["run"]["ended"]

    fresh.service_holder_free("stranger", "--listen", "30000")
    fail(fresh)
    fresh.machine.run(["systemctl", "stop", "stranger"])
    refused = why(fresh)
    assert (refused["cause"]["code"], refused["run"]["outcome"]) == ("refused-75", "refused")
    assert "port 30000 of the engine is taken by" in refused["evidence"][0]
    assert list(refused["run"]["phases"]) == ["pre-start"]

    fresh.machine.write(CONFIG, "[server]\nengine = 'sglang'\ncomand = 1\n")
    fail(fresh)
    wrong = why(fresh)
    assert wrong["cause"]["code"] == "refused-78"
    assert "server.command" in wrong["evidence"][0]
    assert wrong["run"]["systemd"] == "exit-code exited 78"

    fresh.configure()
    fresh.start()
    fresh.kill(int(fresh.show("MainPID")))
    fresh.wait_state("failed")
    killed = why(fresh)
    assert (killed["cause"]["code"], killed["run"]["systemd"]) == ("daemon-killed", "signal killed KILL")
    assert "ready: kimi on 8 GPUs" in killed["evidence"][1]

    rows = fresh.cli("runs", "sglang-kimi")["runs"]
    assert [row["cause"] for row in rows] == ["daemon-killed", "refused-78", "refused-75", "stopped"]
    assert why(fresh, "--run", run[:10])["run"] == rows[-1]
    text = fresh.ask("gpu-lifecycle", "runs", "sglang-kimi")
    ids = [row["run"][:8] for row in rows]
    assert [line.split()[0] for line in text.splitlines() if line.startswith(tuple(ids))] == ids
    text = fresh.ask("gpu-lifecycle", "why", "sglang-kimi", "--run", run)
    for words in (f"run {run[:8]} was stopped at", "phases: pre-start", "cause: stopped (stopped)", "no earlier run is known"):
        assert words in text
    assert fresh.machine.run(["gpu-lifecycle", "why", "sglang-kimi", "--run", "nope"], check=False).returncode == 2


def test_a_killed_worker_and_a_run_that_goes_on(fresh: Site) -> None:
    fresh.start()
    fresh.kill(fresh.workers()[3])
    fresh.wait_state("failed", timeout=60)
    assert why(fresh)["cause"]["code"] in ("worker-lost", "worker-killed")
    fresh.start()
    text = fresh.ask("gpu-lifecycle", "why", "sglang-kimi")
    assert text.startswith(f"{UNIT} runs now: ready, run {fresh.show('InvocationID')[:8]}")
    assert "failed at" in text
    fresh.systemctl("reload")
    fresh.machine.wait(lambda: bool(fresh.events("reloaded")), 20, "the reload")
    fresh.stop()
    last = why(fresh)
    assert last["cause"]["code"] == "stopped"
    assert last["run"]["phases"]["loading"] >= 1.0, "what was before the reload is kept"


def test_the_file_is_the_units_users_and_a_link_in_its_place_leads_nowhere(fresh: Site) -> None:
    fresh.start()
    fresh.stop()
    user = fresh.ask("systemctl", "show", UNIT, "-P", "User").strip()
    assert fresh.ask("stat", "-c", "%U %a", HISTORY).split() == [user, "640"]
    assert fresh.ask("gpu-lifecycle", "why", "sglang-kimi", user=user).startswith("run ")
    other = fresh.machine.run(["gpu-lifecycle", "why", "sglang-kimi"], check=False, user="daemon")
    assert other.returncode == 77
    assert "may not be read by this user" in str(other.stderr)

    fresh.machine.run(["cp", HISTORY, "/root/precious"])
    before = fresh.ask("sha256sum", "/root/precious")
    fresh.machine.run(["ln", "-sf", "/root/precious", HISTORY])
    fresh.begin()
    fresh.start()
    fresh.stop()
    assert fresh.state() == "inactive"
    assert "no plain file" in fresh.messages("history-not-kept")
    assert fresh.ask("sha256sum", "/root/precious") == before


def test_a_damaged_history_is_never_in_the_way(fresh: Site) -> None:
    fresh.machine.write(HISTORY, "this is no database " * 500)
    user = fresh.ask("systemctl", "show", UNIT, "-P", "User").strip()
    fresh.machine.run(["chown", user, HISTORY])
    fresh.start()
    fresh.stop()
    assert "begins anew" in fresh.messages("history-not-kept")
    assert why(fresh)["cause"]["code"] == "stopped"


def test_a_power_cut_is_told_as_one(fresh: Site) -> None:
    """The row of a run whose machine went down: nobody wrote its end, and its boot is another one."""
    fresh.start()
    fresh.stop()
    code = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("insert into runs values ('cut', 9e9, null, null, null, ?)", ('{"boot": "before"}',))
db.commit()
"""
    fresh.machine.run(["python3", "-c", code, HISTORY], check=True)
    shown = why(fresh)
    assert (shown["run"]["run"], shown["cause"]["code"], shown["run"]["outcome"]) == ("cut", "vanished", "lost")
