"""The stand-in engine keeps what its command line promises: real processes, free ports, no GPU."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.standins.sglang_standin.harness import PROGRAM, Engine, free_port, living, wait_for

GIB = 1 << 30
FAST = ("--load-seconds", "0.2", "--warmup-seconds", "0")

Start = Callable[..., Engine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    engines: list[Engine] = []

    def launch(*arguments: str, port: int | None = None) -> Engine:
        engines.append(Engine(tmp_path, *arguments, port=port))
        return engines[-1]

    yield launch
    for engine in engines:
        engine.end()


def counter(engine: Engine, name: str) -> float:
    lines = engine.ask("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"sglang:{name}"))


# the ordinary life


def test_memory_grows_while_loading_and_http_is_refused_then_503_then_200(start: Start) -> None:
    engine = start("--tp", "2", "--load-seconds", "1", "--warmup-seconds", "0.5", "--memory-per-gpu", "10GiB")
    wait_for(lambda: len(engine.holdings()) == 2)
    first = max(size for _, size in engine.holdings().values())
    assert 0 < first < 10 * GIB
    assert engine.health() == 0
    wait_for(lambda: engine.health() == 503)
    wait_for(lambda: engine.health() == 200)
    pids = engine.pids()
    assert engine.holdings() == {pids["scheduler0"]: (0, 10 * GIB), pids["scheduler1"]: (1, 10 * GIB)}


def test_log_lines_come_in_the_order_of_the_real_server(start: Start) -> None:
    log = start("--tp", "2", *FAST, "--unknown-thing", "3", "--speculative-algorithm", "EAGLE3").ready().log
    marks = ["server_args=", "TP0] Init parallel begin", "TP0] Init parallel ends", "TP0] Load weight begin"]
    marks += ["\rMulti-thread loading shards: 100%", "TP0] Load weight end", "TP0] KV Cache is allocated"]
    marks += ["TP0] Capture cuda graph begin", "TP0] Capture cuda graph end", "TP0] max_total_num_tokens="]
    marks += ["Uvicorn running on http://", '"GET /model_info', '"POST /generate', "The server is fired up"]
    positions = [log.index(mark) for mark in marks]
    assert positions == sorted(positions)
    assert "Ignored unknown option --unknown-thing" in log
    assert "speculative" not in log


def test_titles_and_sessions(start: Start) -> None:
    pids = start("--tp", "2", *FAST).ready().pids()
    titles = {name: Path(f"/proc/{pid}/cmdline").read_bytes() for name, pid in pids.items()}
    assert titles["scheduler1"].rstrip(b"\0") == b"sglang::scheduler_TP1"
    assert titles["detokenizer"].rstrip(b"\0") == b"sglang::detokenizer"
    assert b"from multiprocessing.resource_tracker" in titles["tracker"]
    assert Path(f"/proc/{pids['scheduler0']}/comm").read_text() == "sglang::schedul\n"
    assert os.getsid(pids["scheduler0"]) == pids["scheduler0"]
    assert not Path(f"/proc/{pids['scheduler0']}/environ").read_bytes().strip(b"\0")


def test_shared_session_and_kept_environ(start: Start) -> None:
    engine = start("--worker-sessions", "shared", "--keep-environ", *FAST).ready()
    worker = engine.pids()["scheduler0"]
    assert os.getsid(worker) == engine.process.pid
    assert b"NVML_STANDIN_DIR=" in Path(f"/proc/{worker}/environ").read_bytes()


def test_pages_and_key(start: Start) -> None:
    engine = start("--api-key", "k1", "--served-model-name", "kimi", "--enable-metrics", *FAST).ready()
    assert engine.ask("/v1/models")[0] == 401
    assert engine.ask("/nowhere")[0] == 401
    assert engine.ask("/nowhere", key="k1")[0] == 404
    assert engine.ask("/ping")[0] == 401
    assert [engine.ask(path)[0] for path in ("/health", "/health_generate", "/ready", "/metrics")] == [
        200
    ] * 4
    assert json.loads(engine.ask("/v1/models", key="k1")[1])["data"][0]["id"] == "kimi"
    assert json.loads(engine.ask("/server_info", key="k1")[1])["api_key"] == "k1"
    assert json.loads(engine.ask("/v1/loads", key="k1")[1])["loads"][0]["num_running_reqs"] == 0


def test_generation_moves_the_counters(start: Start) -> None:
    engine = start("--enable-metrics", *FAST).ready()
    status, text = engine.ask("/v1/completions", {"prompt": "one two three", "max_tokens": 4})
    assert status == 200
    assert json.loads(text)["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    asked = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
    assert json.loads(engine.ask("/generate", asked)[1])["meta_info"]["completion_tokens"] == 1
    assert engine.ask("/generate", {})[0] == 400
    assert counter(engine, "generation_tokens_total") == 5
    assert counter(engine, "prompt_tokens_total") == 4
    before = counter(engine, "realtime_tokens_total")
    engine.health()
    assert counter(engine, "realtime_tokens_total") == before + 2
    assert counter(engine, "generation_tokens_total") == 5


def test_no_metrics_unless_enabled(start: Start) -> None:
    assert start(*FAST).ready().ask("/metrics")[0] == 404


def test_many_connections_at_once(start: Start) -> None:
    engine = start("--log-level-http", "warning", *FAST).ready()
    socks = [socket.create_connection(("127.0.0.1", engine.port), timeout=5) for _ in range(300)]
    try:
        for sock in socks:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert all(sock.recv(12) == b"HTTP/1.1 200" for sock in socks)
    finally:
        for sock in socks:
            sock.close()


# ends


def test_sigterm_idle_ends_clean_and_leaves_nothing(start: Start) -> None:
    engine = start("--tp", "2", *FAST).ready()
    engine.process.terminate()
    assert engine.wait() == 0
    engine.all_gone()
    assert engine.holdings() == {}


def test_sigterm_drains_requests_in_flight(start: Start) -> None:
    engine = start("--token-seconds", "0.05", *FAST).ready()
    with socket.create_connection(("127.0.0.1", engine.port), timeout=5) as sock:
        body = b'{"prompt":"a","max_tokens":15}'
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        time.sleep(0.2)
        engine.process.terminate()
        engine.logged("SIGTERM received")
        assert engine.health() == 503
        assert engine.ask("/v1/models")[0] == 200
        assert sock.recv(12) == b"HTTP/1.1 200"
    assert engine.wait() == 0


def test_sigterm_while_loading_leaves_the_children(start: Start) -> None:
    engine = start("--tp", "2", "--load-seconds", "30")
    wait_for(lambda: len(engine.holdings()) == 2)
    engine.process.terminate()
    assert engine.wait() == -signal.SIGTERM
    time.sleep(0.2)
    children = {name: pid for name, pid in engine.pids().items() if name != "launcher"}
    assert all(living(pid) for pid in children.values())


def test_sigkill_of_main_when_ready_takes_the_children(start: Start) -> None:
    engine = start("--tp", "2", *FAST).ready()
    engine.process.kill()
    engine.wait()
    engine.all_gone()


def test_without_death_signal_they_are_orphans(start: Start) -> None:
    engine = start("--tp", "2", "--no-pdeathsig", *FAST).ready()
    engine.process.kill()
    engine.wait()
    time.sleep(0.2)
    assert all(living(engine.pids()[name]) for name in ("scheduler0", "scheduler1"))
    assert len(engine.holdings()) == 2


def test_a_killed_worker_takes_the_server_down(start: Start) -> None:
    engine = start("--tp", "2", "--crash-wait", "0.3", *FAST).ready()
    victim = engine.pids()["scheduler1"]
    os.kill(victim, signal.SIGKILL)
    assert engine.wait() == -signal.SIGKILL
    engine.all_gone()
    assert f"Subprocess sglang::scheduler_TP1 (pid={victim}) crashed with exit code -9" in engine.log
    assert "SIGQUIT received" in engine.log


def test_a_zombie_service_answers_health_without_its_worker(start: Start) -> None:
    engine = start("--tp", "2", "--crash-wait", "never", *FAST).ready()
    os.kill(engine.pids()["scheduler1"], signal.SIGKILL)
    engine.logged("crashed with exit code")
    assert engine.health() == 200
    with pytest.raises(TimeoutError):
        engine.ask("/generate", {"text": "a"}, timeout=0.3)


def test_orphan_life_is_bounded(start: Start) -> None:
    engine = start("--no-pdeathsig", "--orphan-life", "0.2", *FAST).ready()
    engine.process.kill()
    engine.wait()
    engine.all_gone()
    assert engine.holdings() == {}


def test_missing_devices_fail_as_cuda_does(tmp_path: Path) -> None:
    environment = {**os.environ, "NVML_STANDIN_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "240"}
    command = [sys.executable, "-I", str(PROGRAM), "--port", str(free_port())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5, check=False)
    assert done.returncode == -signal.SIGKILL
    assert "Scheduler hit an exception" in done.stderr
    assert "Received sigquit from a child process" in done.stderr


# misbehaviours


def test_leave_orphans(start: Start) -> None:
    engine = start("--tp", "2", "--misbehave", "leave-orphans", *FAST).ready()
    engine.process.terminate()
    assert engine.wait() == 0
    orphans = [engine.pids()[name] for name in ("scheduler0", "scheduler1")]
    for pid in orphans:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    assert all(living(pid) for pid in orphans)
    assert sorted(engine.holdings()) == sorted(orphans)
    assert {os.getsid(pid) for pid in orphans} == set(orphans)


def test_hang(start: Start) -> None:
    arguments = ("--misbehave", "hang-after=0", "--health-timeout", "0.5", "--crash-wait", "0")
    engine = start("--enable-metrics", *arguments, *FAST).ready()
    time.sleep(0.1)
    before = counter(engine, "realtime_tokens_total")
    with pytest.raises(TimeoutError):
        engine.ask("/generate", {"text": "a"}, timeout=0.3)
    assert engine.ask("/ready")[0] == 200
    assert engine.health() == 503
    assert engine.ask("/ready")[0] == 503
    assert counter(engine, "realtime_tokens_total") == before
    engine.process.terminate()
    assert engine.wait() == -signal.SIGKILL
    assert "Force exiting" in engine.log


def test_a_stopped_scheduler_is_a_hang_and_a_continued_one_recovers(start: Start) -> None:
    engine = start("--tp", "2", "--health-timeout", "0.3", *FAST).ready()
    victim = engine.pids()["scheduler1"]
    os.kill(victim, signal.SIGSTOP)
    assert engine.health() == 503
    os.kill(victim, signal.SIGCONT)
    wait_for(lambda: engine.health() == 200)


def test_health_lies(start: Start) -> None:
    engine = start("--misbehave", "health-lies", *FAST).ready()
    assert engine.health() == 200
    with pytest.raises(TimeoutError):
        engine.ask("/v1/completions", {"prompt": "a"}, timeout=0.3)


def test_exit_codes(start: Start) -> None:
    assert start("--misbehave", "exit-at-once=3").wait() == 3
    assert start("--misbehave", "exit-while-loading=4", "--load-seconds", "0.4").wait() == 4
    engine = start("--misbehave", "term-status=kill", *FAST).ready()
    engine.process.terminate()
    assert engine.wait() == -signal.SIGKILL
    assert start("--misbehave", "crash-after=0", *FAST).wait() == 0
    assert start("--misbehave", "no-such-thing").wait() == 2


def test_memory_that_does_not_come(start: Start) -> None:
    engine = start("--tp", "2", "--misbehave", "skip-gpu=1", *FAST).ready()
    assert list(engine.holdings()) == [engine.pids()["scheduler0"]]


def test_stall(start: Start) -> None:
    engine = start("--misbehave", "stall-at=40", "--memory-per-gpu", "1000", "--load-seconds", "0.2")
    wait_for(lambda: bool(engine.holdings()))
    time.sleep(0.4)
    assert 0 < next(iter(engine.holdings().values()))[1] < 500
    assert engine.health() == 0


def test_port_taken(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = int(stranger.getsockname()[1])
        engine = start("--bind-fail-wait", "0.1", *FAST, port=port)
        assert engine.wait() == -signal.SIGKILL
        text = f"error while attempting to bind on address ('127.0.0.1', {port}): address already in use"
        assert text in engine.log
        mover = start("--misbehave", "port-moves", *FAST, port=port).ready()
        assert f"Uvicorn running on http://127.0.0.1:{port} " not in mover.log


def test_odd_health_answers(start: Start) -> None:
    with pytest.raises(http.client.BadStatusLine):
        start("--misbehave", "garbage-health", *FAST).ready().ask("/health")
    assert start("--misbehave", "redirect-health", *FAST).ready().health() == 302
    early = start("--misbehave", "early-health", "--load-seconds", "30")
    wait_for(lambda: early.health() == 200)
    never = start("--misbehave", "unhealthy-forever", *FAST).ready()
    assert (never.health(), never.ask("/ready")[0]) == (503, 503)


def test_huge_health(start: Start) -> None:
    engine = start("--misbehave", "huge-health", *FAST).ready()
    with socket.create_connection(("127.0.0.1", engine.port), timeout=5) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert sum(len(sock.recv(65536)) for _ in range(100)) > 1_000_000
    assert engine.ask("/v1/models")[0] == 200


def test_an_asker_holds_up_the_end(start: Start) -> None:
    engine = start("--misbehave", "awaits-askers", *FAST).ready()
    with socket.create_connection(("127.0.0.1", engine.port), timeout=5) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        time.sleep(0.2)
        os.kill(engine.pids()["launcher"], signal.SIGTERM)
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    assert engine.wait() == 0


def test_ignored_sigterm(start: Start) -> None:
    engine = start("--misbehave", "ignore-term", *FAST).ready()
    pids = engine.pids()
    for pid in (pids["launcher"], pids["scheduler0"]):
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    assert engine.health() == 200


def test_stubborn_workers_are_killed_after_the_wait(start: Start) -> None:
    engine = start("--misbehave", "workers-ignore-term", "--shutdown-wait", "0.3", *FAST).ready()
    engine.process.terminate()
    assert engine.wait() == 0
    engine.all_gone()


def test_user_signals_switch_health(start: Start) -> None:
    engine = start(*FAST).ready()
    engine.process.send_signal(signal.SIGUSR1)
    wait_for(lambda: engine.health() == 503)
    engine.process.send_signal(signal.SIGUSR2)
    wait_for(lambda: engine.health() == 200)


def test_hostile_title(start: Start) -> None:
    engine = start("--misbehave", "hostile-title", *FAST).ready()
    title = Path(f"/proc/{engine.pids()['scheduler0']}/cmdline").read_bytes()
    assert all(byte in title for byte in (b"\n", b"\x1b", b"\xff"))
