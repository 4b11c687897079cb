"""Signs of life of each kind of engine, asked over real HTTP of a program with that engine's surface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_lifecycle.jobs.keys import EngineKey
from gpu_lifecycle.jobs.look import Looker
from gpu_lifecycle.jobs.pulse import Pulse
from gpu_lifecycle.rules.config import Config, Server
from gpu_lifecycle.rules.engines import MODEL
from gpu_lifecycle.rules.life import Life, Limits
from gpu_lifecycle.rules.liveness import Finding, begun, judge
from gpu_lifecycle.rules.liveness import Pulse as Kind
from gpu_lifecycle.rules.metrics import Answer
from gpu_lifecycle.rules.readiness import NOT_ASKED, Health, Look, Needs, Signs, out_of_place
from gpu_lifecycle.system.engine import Family
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.procfs import Proc
from tests.standins.sglang_standin.harness import free_port, wait_for

PROGRAM = Path(__file__).parent.parent / "standins" / "engines_standin"
LIMITS = Limits(Needs({}), 600, 3600, interval=0.2, probe_timeout=2, failures=3, drain=1, term_grace=1, exit_deadline=1,
                busy_grace=2)  # fmt: skip
WITH_COUNTERS = ["vllm", "llama.cpp", "tgi"]
WITH_TOKENS = [*WITH_COUNTERS, "tensorrt-llm", "ollama"]


class Served:
    """One stand-in, and the daemon's way to ask it."""

    def __init__(self, engine: str, folder: Path, *more: str, key_file: str | None = None) -> None:
        self.state = folder / "state"
        self.port, aside = free_port(), free_port()
        words = ["--port", str(self.port), "--metrics-port", str(aside)] if engine == "triton" else ["--port", str(self.port)]
        words += ["--metrics"] if engine == "llama.cpp" else []
        command = [sys.executable, "-I", str(PROGRAM), "--engine", engine, "--state", str(self.state), *words, *more]
        self.process = subprocess.Popen(command)
        url = f"http://127.0.0.1:{self.port}"
        shown = tuple(word for word in command if key_file is None or not word.startswith("--api-key"))
        self.config = Config(Server(shown, engine, url=url, model="m", api_key_file=key_file))
        self.pulse: Pulse | None = None
        self.life = Life(LIMITS, was_ready=True)

    def now(self, state: str) -> None:
        (self.state.parent / "new").write_text(state)
        (self.state.parent / "new").rename(self.state)

    def judged(self, seconds: float, until: tuple[Kind, ...] = (), *, ours: bool = True) -> list[tuple[Health, Signs, Finding]]:
        """Looks for so long, or until a look says one of these."""
        return asyncio.run(self._judged(seconds, until, ours))

    async def _judged(self, seconds: float, until: tuple[Kind, ...], ours: bool) -> list[tuple[Health, Signs, Finding]]:
        pulse = Pulse(self.config, EngineKey(self.config.server, os.environ), Proc())
        life = replace(self.life, heart=begun(time.monotonic()))
        looks: list[tuple[Health, Signs, Finding]] = []
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end and not (looks and looks[-1][2].pulse in until):
                health, signs = await pulse.take(life, 2, lambda: ours)
                signs = replace(signs, health=None if health == NOT_ASKED else health)
                heart, finding = judge(life.heart, signs, LIMITS.pace, time.monotonic())
                life = replace(life, heart=heart)
                looks.append((health, signs, finding))
                await asyncio.sleep(LIMITS.interval)
        finally:
            await pulse.close()
        return looks

    def load(self, tokens: int) -> None:
        """A request for so many tokens, in the background."""
        request = self.config.server.preset.generate
        assert request
        body = json.dumps({k: "m" if v == MODEL else v for k, v in (request.body or {}).items()})
        for name in ("max_tokens", "n_predict", "max_new_tokens", "num_predict"):
            body = body.replace(f'"{name}": 1', f'"{name}": {tokens}')
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{request.path}", body.encode(), method=request.method)
        threading.Thread(target=_ask, args=(asked,), daemon=True).start()


def _ask(request: urllib.request.Request) -> None:
    with contextlib.suppress(OSError):  # the stand-in is ended meanwhile
        urllib.request.urlopen(request, timeout=30).read()


@contextlib.contextmanager
def served(engine: str, folder: Path, *more: str, key_file: str | None = None) -> Iterator[Served]:
    server = Served(engine, folder, *more, key_file=key_file)
    try:
        wait_for(lambda: _answers(server.port))
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/none", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
    return True


def kinds(looks: list[tuple[Health, Signs, Finding]]) -> set[Kind]:
    return {finding.pulse for _, _, finding in looks}


@pytest.mark.parametrize("engine", [*WITH_TOKENS, "triton"])
def test_an_idle_engine_is_well(engine: str, tmp_path: Path) -> None:
    with served(engine, tmp_path) as server:
        looks = server.judged(2.2)
    assert kinds(looks) == {Kind.ALIVE}
    assert any(signs.token and signs.token.ok for _, signs, _ in looks) is (engine != "triton")
    pages = {signs.scrape.answer if signs.scrape else None for _, signs, _ in looks}
    assert pages == {Answer.READ if engine in (*WITH_COUNTERS, "triton") else None}


@pytest.mark.parametrize("engine", WITH_COUNTERS)
def test_a_loaded_engine_is_well_and_no_token_is_asked_for(engine: str, tmp_path: Path) -> None:
    with served(engine, tmp_path) as server:
        server.load(1000)
        time.sleep(0.5)
        looks = server.judged(2.2)
    assert kinds(looks) == {Kind.ALIVE}
    assert all(signs.token is None and signs.waited is None for _, signs, _ in looks)


@pytest.mark.parametrize("engine", WITH_COUNTERS)
def test_a_hang_under_load_is_found_under_a_green_health(engine: str, tmp_path: Path) -> None:
    with served(engine, tmp_path) as server:
        server.load(1000)
        time.sleep(0.5)
        server.now("hung")
        looks = server.judged(8, (Kind.STALLED, Kind.STRIKE))
    assert looks[-1][0].ok
    assert "in hand and no progress for" in looks[-1][2].text, looks[-1]


@pytest.mark.parametrize("engine", WITH_TOKENS)
def test_a_hang_of_an_idle_engine_is_found_by_a_token(engine: str, tmp_path: Path) -> None:
    with served(engine, tmp_path) as server:
        server.now("hung")
        looks = server.judged(8, (Kind.STALLED, Kind.STRIKE))
    assert looks[-1][2].pulse is Kind.STALLED, looks[-1]


@pytest.mark.parametrize("engine", [*WITH_TOKENS, "triton"])
def test_a_dead_core_is_a_strike_at_once(engine: str, tmp_path: Path) -> None:
    with served(engine, tmp_path) as server:
        server.now("dead")
        looks = server.judged(8, (Kind.STALLED, Kind.STRIKE))
    assert (looks[-1][2].pulse, "status 503" in looks[-1][2].text) == (Kind.STRIKE, True)


def test_a_pause_within_the_grace_is_only_said(tmp_path: Path) -> None:
    with served("vllm", tmp_path) as server:
        server.load(1000)
        time.sleep(0.5)
        server.now("hung")
        threading.Timer(1.3, server.now, ("well",)).start()
        looks = server.judged(3.5)
    assert kinds(looks) == {Kind.ALIVE, Kind.BUSY}
    assert looks[-1][2].pulse is Kind.ALIVE


def test_a_metrics_port_of_somebody_else_says_nothing(tmp_path: Path) -> None:
    with served("triton", tmp_path) as server:
        looks = server.judged(0.5, ours=False)
    assert all(signs.scrape and "nobody of this unit" in signs.scrape.text and not signs.counters for _, signs, _ in looks)


def test_without_counters_it_is_seen_whether_others_wait_too(tmp_path: Path) -> None:
    with served("ollama", tmp_path) as server:
        server.now("hung")
        server.load(5)
        server.load(5)
        looks = server.judged(8, (Kind.STALLED, Kind.STRIKE))
        assert "beside 2 other connections" in looks[-1][2].text
        assert looks[-1][2].pulse is Kind.BUSY


def test_a_stranger_on_the_port_is_asked_nothing() -> None:
    """This program is none of the unit's, and would get the key otherwise."""
    asked: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async def looked() -> Look:
        server = await asyncio.start_server(note, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = Config(Server(("/bin/true", "--api-key", "s3cret"), "vllm", url=url, model="m"))
        proc = Proc()
        with GpuProbe() as probe:
            looker = Looker(config, proc, Family(proc, None), probe, EngineKey(config.server, {}))
            async with server:
                try:
                    return await looker.look((), Life(LIMITS, was_ready=True, heart=begun(0)), 2)
                finally:
                    await looker.close()

    look = asyncio.run(looked())
    assert (look.socket.listening, look.socket.ours, look.health) == (True, False, NOT_ASKED)
    assert asked == []
    assert "the engine's port is not this unit's" in " ".join(out_of_place(look, LIMITS.needs, blind_is_fine=True))


@pytest.mark.parametrize("how", ["command", "file", "credential", "wrong", "missing"])
def test_the_key_is_given_and_a_refusal_says_nothing_of_the_core(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("no\n" if how == "wrong" else "s3cret\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    missing = str(tmp_path / "none")
    named = {"command": None, "file": str(file), "credential": "key", "wrong": str(file), "missing": missing}[how]
    with served("vllm", tmp_path, "--api-key=s3cret", key_file=named) as server:
        looks = server.judged(2.2)
    tokens = [signs.token for _, signs, _ in looks if signs.token]
    assert kinds(looks) == {Kind.ALIVE}
    assert {token.code for token in tokens} == {401 if how in ("wrong", "missing") else 200}
    assert ("its key file: No such file" in tokens[0].text) is (how == "missing")
    assert "s3cret" not in repr(looks)
