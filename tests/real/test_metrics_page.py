"""The metrics page over real sockets: what it answers, and what nobody who asks can do to it."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.rules.listening import Listening
from gpu_lifecycle.rules.measured import Tally, samples
from gpu_lifecycle.rules.metric_names import METRICS, Distribution
from gpu_lifecycle.rules.metrics import Counters
from gpu_lifecycle.rules.readiness import Signs
from gpu_lifecycle.system import page_server
from gpu_lifecycle.system.exposition import CONTENT_TYPE, load, render
from gpu_lifecycle.system.files import write_page
from gpu_lifecycle.system.page_server import CONNECTIONS, PageServer
from tests.prometheus import program
from tests.rules.test_measured import LOADING, LOOK, SEEN

load()  # once, as the daemon does: its threads and files are not a test's


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def whole_page() -> bytes:
    """One with every metric that there is."""
    tally = Tally(Distribution().plus(0.3).plus(99), {"ready": 1}, {"done": 1, "failed": 0, "dropped": 0}, 1)
    state = {"ends": {"host-oom": 1}, "holders": {"spare": 1, "reap": 0}}
    look = replace(LOOK, signs=Signs(counters=Counters({}, 1, 2)))
    ready = samples(replace(SEEN, look=look, state=state), tally)
    load_only = [item for item in samples(replace(SEEN, life=LOADING), Tally()) if "_load_" in item.name]
    return render('a"b\\c\nd.service', [*ready, *load_only])


def served(use: Callable[[PageServer, int], Coroutine[Any, Any, None]], page: Callable[[], bytes] = lambda: b"x 1\n") -> None:
    """Runs ``use`` beside a server on a port of its own."""

    async def run() -> None:
        server, port = PageServer(page, CONTENT_TYPE), free_port()
        await server.open(Listening("127.0.0.1", port))
        try:
            await use(server, port)
        finally:
            await server.close()
            await asyncio.sleep(0.05)

    asyncio.run(run())


def ask(port: int, words: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(words)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    return answer


def test_promtool_finds_no_fault_in_a_page_with_every_metric() -> None:
    page = whole_page()
    shown = {line.split()[2] for line in page.decode().splitlines() if line.startswith("# TYPE")}
    assert shown == set(METRICS)
    done = subprocess.run([program("promtool"), "check", "metrics"], input=page, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_promtool_would_say_it() -> None:
    wrong = b"# TYPE some_total gauge\nsome_total 1\n"
    done = subprocess.run([program("promtool"), "check", "metrics"], input=wrong, capture_output=True, timeout=60)
    assert done.returncode != 0


def test_a_real_client() -> None:
    def get(port: int) -> None:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        line.request("GET", "/metrics?x=1", headers={"Accept": "application/openmetrics-text"})
        answer = line.getresponse()
        assert (answer.status, answer.getheader("Content-Type")) == (200, CONTENT_TYPE)
        assert answer.read() == b"x 1\n"
        line.close()

    async def use(_: PageServer, port: int) -> None:
        await asyncio.to_thread(get, port)

    served(use)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\n\n", b"200"),
        (b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\r\n\r\n", b"400"),
        (b"\xff\x00 \x1b\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/2\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 9000, b"431"),
    ],
)
def test_each_request_gets_its_answer(request_: bytes, status: bytes) -> None:
    async def use(_: PageServer, port: int) -> None:
        answer = await asyncio.to_thread(ask, port, request_)
        head, body = answer.split(b"\r\n\r\n", 1)
        assert head.split()[1] == status
        assert b"Connection: close" in head
        assert bool(body) is not request_.startswith(b"HEAD")

    served(use)


def test_those_who_say_nothing_are_sent_away_and_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "SECONDS", 0.5)

    async def use(server: PageServer, port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
        _, surplus = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.2)
        assert server.refused == 1
        began = time.monotonic()
        for stream, _ in silent:
            assert await stream.read() == b""
        assert time.monotonic() - began < 2
        assert server.refused == 1 + CONNECTIONS
        assert (await asyncio.to_thread(ask, port, b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(b"x 1\n")
        for writer in (surplus, *(writer for _, writer in silent)):
            writer.close()

    served(use)


def test_a_close_waits_for_nobody() -> None:
    async def run() -> None:
        server, port = PageServer(lambda: b"x" * 30_000_000, CONTENT_TYPE), free_port()
        await server.open(Listening("127.0.0.1", port))
        _, slow = await asyncio.open_connection("127.0.0.1", port, limit=1)
        slow.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await server.close()
        assert time.monotonic() - began < 0.2
        slow.transport.abort()
        await asyncio.sleep(0.05)
        again = PageServer(lambda: b"x 1\n", CONTENT_TYPE)
        await again.open(Listening("127.0.0.1", port))  # at once, as after a reload
        await again.close()

    asyncio.run(run())


FLOOD = """
import socket, sys, time
end = time.monotonic() + 3
while time.monotonic() < end:
    lines = []
    for _ in range(50):
        try:
            line = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=1)
            line.sendall(b"GET /metrics HTTP/1.1\\r\\n\\r\\n" if len(lines) % 2 else b"x" * 4096)
            lines.append(line)
        except OSError:
            pass
    for line in lines:
        line.close()
"""


def test_a_flood_does_not_hold_the_loop_up() -> None:
    """Three programs ask as fast as they can; what else the loop has to do is done in time, and the page is rarely made."""
    made = 0

    def page() -> bytes:
        nonlocal made
        made += 1
        return b"x 1\n" * 5000

    async def use(server: PageServer, port: int) -> None:
        flood = [await asyncio.create_subprocess_exec(sys.executable, "-c", FLOOD, str(port)) for _ in range(3)]
        late, began = [], time.monotonic()
        while time.monotonic() - began < 3:
            before = time.monotonic()
            await asyncio.sleep(0.02)
            late.append(time.monotonic() - before - 0.02)
        for process in flood:
            await process.wait()
        assert max(late) < 0.5, max(late)
        assert 1 <= made <= 3 + time.monotonic() - began, "about once a second, for as long as they ask"
        assert server.refused > 0

    served(use, page)


def test_a_taken_port_is_said() -> None:
    async def use(_: PageServer, port: int) -> None:
        with pytest.raises(LifecycleError, match=f"cannot serve metrics at 127.0.0.1:{port}: Address already in use"):
            await PageServer(lambda: b"", "").open(Listening("127.0.0.1", port))

    served(use)


def over_socket(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
        line.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        return line.recv(65536)


def test_a_socket_file_is_taken_over_from_the_dead_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def run() -> None:
        server = PageServer(lambda: b"x 1\n", CONTENT_TYPE)
        await server.open(Listening(path=str(path)))
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert (await asyncio.to_thread(over_socket, path)).endswith(b"x 1\n")
        with pytest.raises(LifecycleError, match="Address already in use"):
            await PageServer(lambda: b"", "").open(Listening(path=str(path)))
        assert (await asyncio.to_thread(over_socket, path)).endswith(b"x 1\n")
        await server.close()
        await asyncio.sleep(0.05)
        again = PageServer(lambda: b"y 1\n", CONTENT_TYPE)
        await again.open(Listening(path=str(path)))
        assert (await asyncio.to_thread(over_socket, path)).endswith(b"y 1\n")
        await again.close()
        await asyncio.sleep(0.05)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_else_has_the_name_stays(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "metrics.sock", tmp_path / "precious"
    other.write_text("x")
    make: dict[str, Callable[[], object]] = {
        "file": lambda: path.write_text("x"), "link": lambda: path.symlink_to(other), "folder": path.mkdir,
    }  # fmt: skip
    make[kind]()

    async def run() -> None:
        with pytest.raises(LifecycleError, match="File exists"):
            await PageServer(lambda: b"", "").open(Listening(path=str(path)))

    asyncio.run(run())
    assert (path.is_symlink(), other.read_text()) == (kind == "link", "x")


def test_a_page_on_disk_is_whole_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "gpu_lifecycle_x.prom"
    loop = "for n in range(2000): write_page(sys.argv[1], b'x 1\\n' * 9999)"
    writer = f"import sys; from gpu_lifecycle.system.files import write_page\n{loop}"
    with subprocess.Popen([sys.executable, "-c", writer, str(path)], cwd=Path(__file__).parents[2]) as process:
        while process.poll() is None:
            if path.exists():
                assert path.stat().st_size == 4 * 9999
            assert {name for name in os.listdir(tmp_path) if name.endswith(".prom")} <= {path.name}
    assert process.returncode == 0
    assert os.listdir(tmp_path) == [path.name]


def test_a_folder_that_is_not_there_or_a_link_is_said(tmp_path: Path) -> None:
    with pytest.raises(LifecycleError, match="No such file"):
        write_page(f"{tmp_path}/no/x.prom", b"")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(LifecycleError, match="cannot write"):
        write_page(f"{tmp_path}/link/x.prom", b"")
