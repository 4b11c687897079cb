"""The file of earlier loads on a real disk, whatever lies there; what real processes read and do; a drain seen over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_lifecycle.facts import Gpu, Identity, Layout, UnitName
from gpu_lifecycle.jobs.drain import DrainWatch
from gpu_lifecycle.jobs.keys import EngineKey
from gpu_lifecycle.jobs.loads import Loads, load_fields
from gpu_lifecycle.rules.config import Config, from_sections
from gpu_lifecycle.rules.life import InFlight, Life, Limits
from gpu_lifecycle.rules.loads import NOTHING_LEARNED, Loaded
from gpu_lifecycle.rules.phases import Step
from gpu_lifecycle.rules.readiness import Needs
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.procfs import Proc

UNIT = UnitName("sglang-kimi")
GPUS = (Gpu("GPU-a", 0, 0, "0000:01:00.0", "H200", 80 << 30, 0, None),)
LIMITS = Limits(Needs({"GPU-a": "0"}), 600, 3600, 5, 5, 3, 120, 10, 30)
LOADED = Loaded({Step.WEIGHTS: 90.0}, {"GPU-a": 72 << 30}, 5)


def config(*words: str, engine: str = "sglang") -> Config:
    return from_sections({"server": {"engine": engine, "command": ("serve", "--model-path", "/models/kimi", *words)}})


def loads(root: Path, *words: str) -> Loads:
    return Loads(Layout(str(root)), UNIT, config(*words), Proc(), Journal(UNIT.service, terminal=True))


def file(root: Path) -> Path:
    return root / "var/lib/gpu-lifecycle/sglang-kimi/loads.json"


def learn(of: Loads, times: int = 1) -> int:
    """Keeps loads as a run does; returns of how many the next run knows."""

    async def main() -> None:
        for _ in range(times):
            of.limits(LIMITS, GPUS)
            of.keep(LOADED)
            await of.close()

    asyncio.run(main())
    return of.limits(LIMITS, GPUS).learned.count


def test_the_second_start_knows_the_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert loads(tmp_path).limits(LIMITS, GPUS).learned is NOTHING_LEARNED
    assert learn(loads(tmp_path)) == 1
    usual = loads(tmp_path).limits(LIMITS, GPUS).learned
    assert (usual.steps, usual.memory, usual.read) == (LOADED.steps, LOADED.memory, 5)
    assert loads(tmp_path, "--other").limits(LIMITS, GPUS).learned is NOTHING_LEARNED
    assert os.listdir(file(tmp_path).parent) == ["loads.json"]
    assert file(tmp_path).stat().st_mode & 0o777 == 0o644
    assert capfd.readouterr().err == ""


def test_it_does_not_grow(tmp_path: Path) -> None:
    assert learn(loads(tmp_path), 14) == 10


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_text('{"schema": 1, "lo'), "it is torn"),
        (lambda path: path.write_text(""), "it is empty"),
        (lambda path: path.write_text('{"schema": 9, "loads": []}'), "not what this version writes"),
        (lambda path: path.write_bytes(os.urandom(4000)), "it is torn"),
        (lambda path: path.write_text("x" * (2 << 20)), "larger than 1 MiB"),
        (link, "it is a link"),
        (os.mkfifo, "not a regular file"),
    ],
    ids=["torn", "empty", "of another version", "garbage", "huge", "a link", "a pipe"],
)
def test_an_unfit_file_is_told_once_and_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], object], words: str
) -> None:
    file(tmp_path).parent.mkdir(parents=True)
    spoil(file(tmp_path))
    assert learn(loads(tmp_path)) == 1
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "how earlier loads went is not known" in said[0]
    assert words in said[0]
    assert Path("/etc/passwd").read_text().startswith("root:")


def test_where_nothing_can_be_written_it_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file(tmp_path).mkdir(parents=True)  # a directory has taken its name
    (file(tmp_path) / "x").touch()
    assert learn(loads(tmp_path), 3) == 0
    assert len(capfd.readouterr().err.splitlines()) == 1


FULL = """
import asyncio, sys
from pathlib import Path
from tests.real.test_loads_job import LIMITS, GPUS, LOADED, file, learn, loads
file(Path(sys.argv[1])).parent.mkdir(parents=True)
for number in range(10_000):
    try:
        (Path(sys.argv[1]) / str(number)).write_bytes(b"x" * 4096)
    except OSError:
        break
print(learn(loads(Path(sys.argv[1])), 2))
"""


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=64k t "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("this machine allows no mounts in a user namespace")
    assert done.stdout == "0\n", done.stderr
    assert done.stderr.count("No space left on device") == 1


HUNG = """
import os, sys, time
from pathlib import Path
from tests.real.test_loads_job import learn, loads
began = time.monotonic()
count = learn(loads(Path(sys.argv[1])), 2)
print(count, time.monotonic() - began < 20, flush=True)
os.kill(int(sys.argv[2]), 9)  # a thread that waits for what a server has taken ends only with that
"""


def test_a_disk_that_hangs_is_told_once_and_not_waited_for(tmp_path: Path) -> None:
    file(tmp_path).parent.parent.mkdir(parents=True)
    script = '"$2" "$4" serve "$5" & server=$!; sleep 1; exec timeout -s KILL 60 "$2" -c "$3" "$1" $server'
    fuse = Path(__file__).parents[1] / "standins/stuck_fuse.py"
    words = [str(tmp_path), sys.executable, HUNG, str(fuse), str(file(tmp_path).parent)]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *words], capture_output=True, text=True, check=False, timeout=90
    )
    if "PermissionError" in done.stderr or "No such file" in done.stderr or "unshare" in done.stderr:
        pytest.skip("this machine allows no FUSE mounts in a user namespace")
    assert done.stdout == "0 True\n", done.stderr
    assert done.stderr.count("its disk does not answer") == 1
    assert done.stderr.count("\n") == 1


def test_it_is_whole_at_any_moment(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from tests.real.test_loads_job import *; learn(loads(Path(sys.argv[1])), 40)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as one:
        while one.poll() is None:
            if file(tmp_path).exists():
                assert json.loads(file(tmp_path).read_text())["schema"] == 1
    assert one.returncode == 0


# What real processes read and do


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Identity]:
    """Reads 200 MiB, then waits."""
    source = tmp_path / "weights"
    with source.open("wb") as made:
        made.truncate(200 << 20)
    code = "import sys,time\nwith open(sys.argv[1],'rb') as f:\n  while f.read(1<<20): pass\nprint(flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(source)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        identity = Proc().identity(process.pid)
        assert identity
        yield identity
        process.kill()


def waiting(seconds: float) -> Life:
    now = time.monotonic()
    return Life(LIMITS, engine=1, began=now - 400, progressed=now - seconds)


def test_what_it_has_read(tmp_path: Path, child: Identity) -> None:
    read, doing = asyncio.run(loads(tmp_path).seen(waiting(0), [child]))
    assert read
    assert 200 << 20 <= read < 260 << 20
    assert doing == ""


def test_what_it_does_is_looked_at_where_nothing_moves(tmp_path: Path, child: Identity) -> None:
    _, doing = asyncio.run(loads(tmp_path).seen(waiting(100), [child]))
    assert doing.startswith("python")
    assert "waiting" in doing


def test_once_ready_nothing_is_looked_at(tmp_path: Path, child: Identity) -> None:
    assert asyncio.run(loads(tmp_path).seen(replace(waiting(100), was_ready=True), [child])) == (None, "")


def test_who_has_gone_is_no_zero(tmp_path: Path) -> None:
    gone = Identity("boot", 2**22 + 1, 1)
    assert asyncio.run(loads(tmp_path).seen(waiting(100), [gone])) == (None, "")


def test_the_evidence_of_a_load() -> None:
    life = replace(waiting(100), engine_step=int(Step.WEIGHTS), done=28, total=64, progress=0.3, last_progress="x", doing="y")
    fields = load_fields(life)
    assert (fields["phase"], fields["done"], fields["total"], fields["doing"]) == ("loading weights", 28, 64, "y")
    assert fields["seconds_without_progress"] == pytest.approx(100, abs=5)
    assert load_fields(replace(life, was_ready=True)) == {}


# A drain over HTTP

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def page(body: bytes, status: bytes = b"200 OK") -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    return handle


def metrics(running: int, queued: int) -> bytes:
    text = f"sglang:generation_tokens_total 5\nsglang:num_running_reqs {running}\nsglang:num_queue_reqs {queued}\n"
    return text.encode()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def watch(handler: Handler | None, *, ours: bool = True, seconds: float = 0.9, engine: str = "sglang") -> list[InFlight]:
    seen: list[InFlight] = []

    async def main() -> None:
        server = await asyncio.start_server(handler or silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if handler is None:
            server.close()
        asked = config("--port", str(port), "--enable-metrics", engine=engine)
        drain = DrainWatch(asked, EngineKey(asked.server, {}), lambda _: ours, seen.append)
        drain.begin()
        drain.begin()
        await asyncio.sleep(seconds)
        await drain.close()
        server.close()

    asyncio.run(main())
    return seen


@pytest.mark.parametrize(
    ("handler", "wanted"),
    [
        (page(metrics(3, 2)), InFlight(5)),
        (page(metrics(0, 0)), InFlight(0)),
        (page(b"not prometheus at all"), InFlight(None, "the metrics page holds no metrics")),
        (page(b"sglang:generation_tokens_total 5\n"), InFlight(None, "its metrics do not say")),
        (page(b"", b"503 Service Unavailable"), InFlight(None, "status 503")),
        (None, InFlight(None, "connection refused")),
    ],
    ids=["work", "none", "garbage", "no gauge", "503", "refused"],
)
def test_what_a_drain_shows(handler: Handler | None, wanted: InFlight) -> None:
    seen = watch(handler)
    assert set(seen) == {wanted}


def test_an_answer_that_does_not_come_holds_nobody_up() -> None:
    began = time.monotonic()
    assert watch(silent, seconds=3.2)[0] == InFlight(None, "no answer within 2 s")
    assert time.monotonic() - began < 6


def test_no_question_comes_on_the_heels_of_a_stop() -> None:
    """llama.cpp leaves one without an answer, and waits for whoever asked: an idle engine ends sooner where nobody asks."""
    assert watch(page(metrics(3, 2)), seconds=0.2) == []


def test_a_strangers_port_is_not_asked() -> None:
    assert set(watch(page(metrics(3, 2)), ours=False)) == {InFlight(None, "its port is closed")}


def test_an_engine_without_metrics_is_not_asked() -> None:
    assert watch(page(metrics(3, 2)), engine="tensorrt-llm") == []
