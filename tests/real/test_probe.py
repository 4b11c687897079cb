"""One question to a server, bounded, whatever the server does: real servers on real sockets."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from gpu_lifecycle.rules.endpoints import Endpoint
from gpu_lifecycle.rules.engines import Request
from gpu_lifecycle.rules.metrics import Answer, Scrape
from gpu_lifecycle.rules.readiness import Health
from gpu_lifecycle.system.probe import BODY_LIMIT, PAGE_LIMIT, HealthProbe

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(head: str, body: bytes = b"", *, length: bool = True) -> Handler:
    """Reads a request, and answers it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        size = f"Content-Length: {len(body)}\r\n" if length else ""
        writer.write(f"HTTP/1.1 {head}\r\n{size}\r\n".encode() + body)
        await writer.drain()

    return handle


def raw(*chunks: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines(chunks)
        await writer.drain()

    return handle


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 4096)
        await writer.drain()


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A header line every few milliseconds, for ever: no single wait is long."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while not reader.at_eof():
        writer.write(b"X: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


T = TypeVar("T")


async def asked(handler: Handler, *, host: str = "127.0.0.1", uds: str = "", deadline: float = 10) -> Health:
    return await served(handler, lambda probe: probe.get("/health", deadline), host, uds)


async def served(
    handler: Handler, question: Callable[[HealthProbe], Awaitable[T]], host: str = "127.0.0.1", uds: str = ""
) -> T:
    """Serves with ``handler``, and asks once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    starting = asyncio.start_unix_server(serve, uds) if uds else asyncio.start_server(serve, host, 0)
    server = await starting
    port = 0 if uds else server.sockets[0].getsockname()[1]
    probe = HealthProbe(Endpoint(host, port, uds=uds))
    try:
        async with server:
            return await question(probe)
    finally:
        await probe.close()


PAGE = b'# HELP x\nsglang:num_queue_reqs{a="b"} 3\nsglang:num_queue_reqs{a="c"} 4\n'


@pytest.mark.parametrize(
    ("handler", "answer_", "text"),
    [
        (answer("200 OK", PAGE), Answer.READ, ""),
        (answer("200 OK", PAGE + b"#" * (PAGE_LIMIT - len(PAGE))), Answer.READ, ""),
        (answer("200 OK", PAGE + b"#" * PAGE_LIMIT), Answer.FAILED, "an answer of more than"),
        (answer("200 OK", b"<html>"), Answer.FAILED, "holds no metrics"),
        (answer("200 OK", b"\xff\x00"), Answer.FAILED, "holds no metrics"),
        (answer("302 Found\r\nLocation: http://127.0.0.1:1/", PAGE), Answer.FAILED, "status 302"),
        (answer("404 Not Found", PAGE), Answer.FAILED, "status 404"),
        (silent, Answer.FAILED, "no answer within"),
    ],
)  # fmt: skip
def test_a_metrics_page(handler: Handler, answer_: Answer, text: str) -> None:
    seen = asyncio.run(served(handler, lambda probe: probe.scrape("/metrics", {"sglang:num_queue_reqs"}, "", 3)))
    assert (seen.answer, dict(seen.sums)) == (answer_, {"sglang:num_queue_reqs": 7} if answer_ is Answer.READ else {})
    assert text in seen.text


@pytest.mark.parametrize(
    ("handler", "code", "text", "silent"),
    [
        (answer("200 OK", b'{"text": "x"}'), 200, "one token generated", False),
        (answer("200 OK", b'{"text": ""}'), 200, "one token generated", False),
        (answer("200 OK", b"{}"), None, "the answer is b'{}'", False),
        (answer("200 OK", b'{"text": null}'), None, "the answer is", False),
        (answer("200 OK", b'{"text": []}'), None, "the answer is", False),
        (answer("200 OK", b'{"object": "error", "message": "wrong"}'), None, "wrong", False),
        (answer("200 OK", b'{"said": "Bearer k3yk3y"}'), None, "Bearer ***", False),
        (answer("200 OK", b"[" * 50_000), None, "not JSON", False),
        (answer("200 OK", b'["x"]'), None, "the answer is", False),
        (answer("200 OK", b'{"error": "dead"}'), None, "dead", False),
        (answer("200 OK", b"x" * (BODY_LIMIT + 1)), None, "more than", False),
        (answer("307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/"), 307, "status 307", False),
        (silent, None, "no answer within", True),
    ],
)
@pytest.mark.parametrize("key", ["", "k3yk3y"])
def test_a_token(handler: Handler, code: int | None, text: str, silent: bool, key: str) -> None:
    request = Request("POST", "/generate", {"a": 1}, "text")
    seen = asyncio.run(served(handler, lambda probe: probe.generate(request, key, 2)))
    assert (seen.code, seen.silent) == (code, silent), seen
    assert (text if key else text.replace("***", "k3yk3y")) in seen.text


@pytest.mark.parametrize("key", ["key\r\nX: y", "k\u00e9y", "a b"])
def test_a_key_that_no_header_can_bear_is_neither_sent_nor_shown(key: str) -> None:
    heads: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    seen = asyncio.run(served(note, lambda probe: probe.generate(Request("POST", "/generate", {}), key, 2)))
    assert (seen.code, seen.text) == (401, "status 401")
    assert b"uthorization" not in heads[0]


def test_no_room_for_a_connection_says_nothing_of_the_server() -> None:
    """A busy machine has no port, or this process no descriptor, left."""

    async def run() -> Health:
        probe = HealthProbe(Endpoint("127.0.0.1", 1))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (await probe.get("/", 5)).text == "connection refused"  # and all is imported
        os.close(lowest := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            return await probe.get("/", 5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            await probe.close()

    seen = asyncio.run(run())
    assert (seen.code, seen.text, seen.silent) == (None, "no connection can be made: Too many open files", True)


def ask(handler: Handler, **how: object) -> Health:
    return asyncio.run(asked(handler, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("handler", "code", "text"),
    [
        (answer("200 OK"), 200, "status 200"),
        (answer("200 OK", b'{"status": "ok"}'), 200, "status 200"),
        (answer("200 OK", b"no length, closed at the end", length=False), 200, "status 200"),
        (answer("200 OK", b"x" * BODY_LIMIT), 200, "status 200"),
        (answer("503 Service Unavailable", b"loading"), 503, "status 503"),
        (answer("204 No Content"), 204, "status 204"),
        (answer("302 Found\r\nLocation: http://127.0.0.1:1/"), 302, "status 302"),
        (answer("404 Not Found"), 404, "status 404"),
        (answer("200 OK", b"x" * (BODY_LIMIT + 1)), None, f"an answer of more than {BODY_LIMIT} bytes"),
        (endless, None, f"an answer of more than {BODY_LIMIT} bytes"),
        (raw(b"\x16\x03\x01 garbage \x00\xff\r\n\r\n"), None, "no usable answer: RemoteProtocolError"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"), None, "no usable answer: RemoteProtocolError"),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), None, "no usable answer: RemoteProtocolError"),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 500_000), None, "no usable answer: RemoteProtocolError"),
        (raw(), None, "no usable answer: RemoteProtocolError"),
    ],
)
def test_answer(handler: Handler, code: int | None, text: str) -> None:
    health = ask(handler)
    assert health.code == code
    assert health.text.startswith(text)
    assert health.text.isprintable()
    assert health.ok is (code == 200)


@pytest.mark.parametrize("handler", [silent, dripping])
def test_the_deadline_is_for_the_whole_question(handler: Handler) -> None:
    began = time.monotonic()
    health = ask(handler, deadline=0.5)
    assert time.monotonic() - began < 5
    assert (health.code, health.text) == (None, "no answer within 0.5 s")
    assert 0.5 <= health.seconds < 5


def test_refused() -> None:
    async def knock(endpoint: Endpoint) -> Health:
        probe = HealthProbe(endpoint)
        try:
            return await probe.get("/health", 5)
        finally:
            await probe.close()

    async def scraped(endpoint: Endpoint) -> Scrape:
        probe = HealthProbe(endpoint)
        try:
            return await probe.scrape("/metrics", (), "", 5)
        finally:
            await probe.close()

    with socket.socket() as bound:  # keeps the port ours, and does not listen
        bound.bind(("127.0.0.1", 0))
        for endpoint, text in (
            (Endpoint("127.0.0.1", bound.getsockname()[1]), "connection refused"),
            (Endpoint("localhost", 0, uds="/nowhere"), "cannot connect: No such file or directory"),
        ):
            health = asyncio.run(knock(endpoint))
            assert (health.code, health.text, health.silent) == (None, text, False)
            assert asyncio.run(scraped(endpoint)).answer is Answer.REFUSED


def test_no_proxy_stands_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(answer("200 OK")).ok


def test_other_ways_to_a_server(tmp_path: Path) -> None:
    assert ask(answer("200 OK"), host="::1").ok
    assert ask(answer("200 OK"), uds=str(tmp_path / "s")).ok


def test_a_server_with_a_certificate_of_its_own_is_asked(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key"), str(tmp_path / "certificate")
    make = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=elsewhere"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def run(scheme: str) -> Health:
        server = await asyncio.start_server(answer("200 OK"), "127.0.0.1", 0, ssl=context)
        probe = HealthProbe(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], scheme=scheme))
        try:
            async with server:
                return await probe.get("/health", 10)
        finally:
            await probe.close()

    assert asyncio.run(run("https")).ok
    assert not asyncio.run(run("http")).ok


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("nowhere.invalid", "cannot connect: "),
        ("x" * 80, "no usable answer: UnicodeError"),
        ("a..b", "no usable answer: UnicodeError"),
    ],
)
def test_a_host_that_nobody_has_is_no_answer(host: str, text: str) -> None:
    """As an engine's --host may name it."""

    async def run() -> Health:
        probe = HealthProbe(Endpoint(host, 1))
        try:
            return await probe.get("/", 20)
        finally:
            await probe.close()

    assert asyncio.run(run()).text.startswith(text)


def test_what_the_library_reads_at_its_first_question_is_read_before() -> None:
    """A version that is installed while a daemon runs must not be half of the one that it asks with."""
    code = """
import asyncio, sys
from gpu_lifecycle.rules.endpoints import Endpoint
from gpu_lifecycle.system.probe import HealthProbe, load_client
load_client()
before = set(sys.modules)
print(asyncio.run(HealthProbe(Endpoint("127.0.0.1", 1)).get("/", 5)).text, *(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "connection refused\n"


def test_what_is_asked() -> None:
    """The path and the host; and one connection per question, so that a dead listener shows."""
    requests: list[bytes] = []
    later: list[bytes] = []

    over = asyncio.Event()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        later.append(await reader.read())
        writer.close()
        if len(later) == 2:
            over.set()

    async def twice() -> None:
        server = await asyncio.start_server(note, "127.0.0.1", 0)
        probe = HealthProbe(Endpoint("127.0.0.1", port := server.sockets[0].getsockname()[1]))
        async with server:
            for _ in range(2):
                assert (await probe.get("/v1/x?y=1", 10)).ok
            await asyncio.wait_for(over.wait(), 10)
        await probe.close()
        assert later == [b"", b""], "a connection was used again"
        assert [request.split(b"\r\n")[0] for request in requests] == [b"GET /v1/x?y=1 HTTP/1.1"] * 2
        assert all(f"\r\nHost: 127.0.0.1:{port}\r\n".encode() in request for request in requests)

    asyncio.run(twice())


def test_cancelling_is_not_swallowed() -> None:
    async def run() -> None:
        arrived = asyncio.Event()

        async def arrive(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            arrived.set()
            await reader.read()

        task = asyncio.create_task(asked(arrive))
        await asyncio.wait_for(arrived.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


@pytest.mark.parametrize("handler", [silent, dripping])
def test_a_question_that_is_given_up_leaves_at_once_and_no_other_is_asked(handler: Handler) -> None:
    """An engine that is to end shall not wait for us: the connection is closed, not only forgotten."""
    come, gone = asyncio.Event(), asyncio.Event()
    asked_for = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked_for
        asked_for += 1
        come.set()
        try:
            await handler(reader, writer)
        finally:
            gone.set()

    async def question(probe: HealthProbe) -> tuple[Health, Health]:
        asking = asyncio.create_task(probe.get("/health", 60))
        await come.wait()
        probe.give_up()
        async with asyncio.timeout(5):
            first = await asking
            await gone.wait()
            return first, await probe.get("/health", 60)

    first, second = asyncio.run(served(serve, question))
    assert (first.code, first.text, first.silent) == (None, "given up: it is to end", True)
    assert (second.code, second.text, second.silent) == (None, "not asked: it is to end", True)
    assert asked_for == 1
