"""Who listens where: real sockets of every family, in this process and in another."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.rules.endpoints import Endpoint
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.sockets import (
    Listener,
    addresses,
    answers_for,
    connections,
    decode_address,
    describe_owner,
    owner_of,
    tcp_listeners,
    unix_listeners,
)

PROC = Proc()
LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def stranger() -> Iterator[tuple[int, int]]:
    """Pid and port of a process that listens."""
    words = [sys.executable, "-c", LISTEN, "--title\x1b"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.pid, int(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F", "127.0.0.1"),
        ("00000000", "0.0.0.0"),
        ("0200A8C0", "192.168.0.2"),
        ("00000000000000000000000001000000", "::1"),
        ("0" * 32, "::"),
        ("0000000000000000FFFF00000100007F", "::ffff:127.0.0.1"),
        ("B80D0120000000000000000001000000", "2001:db8::1"),
    ],
)
def test_decode(text: str, address: str) -> None:
    assert decode_address(text) == address


@pytest.mark.parametrize(
    ("family", "bind", "shown"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "127.0.0.2", "127.0.0.2"),
        (socket.AF_INET, "", "0.0.0.0"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "", "::"),
    ],
)
def test_a_tcp_listener(family: socket.AddressFamily, bind: str, shown: str) -> None:
    with socket.socket(family) as server:
        server.bind((bind, 0))
        port = server.getsockname()[1]
        assert tcp_listeners(port, PROC) == [], "bound is not listening"
        server.listen()
        inode = os.fstat(server.fileno()).st_ino
        with socket.create_connection((shown if bind else "localhost", port)):
            assert tcp_listeners(port, PROC) == [Listener(shown, inode, os.geteuid())], "a connection is no listener"
        assert owner_of(inode, [1, os.getpid()], PROC) == os.getpid()
        assert owner_of(inode, [], PROC) is None
        assert owner_of(inode + 1, [os.getpid()], PROC) is None
    assert tcp_listeners(port, PROC) == []


def test_two_on_one_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)), socket.create_server(("::1", port), family=socket.AF_INET6):
            assert sorted(listener.address for listener in tcp_listeners(port, PROC)) == ["127.0.0.1", "127.0.0.2", "::1"]


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1", "unix"])
def test_connections(bind: str, tmp_path: Path) -> None:
    """Those that were taken and those that wait for it, by whoever they are; of TCP not those that the client has closed."""
    path = str(tmp_path / "engine sock")
    families = {"unix": socket.AF_UNIX, "::1": socket.AF_INET6, "127.0.0.1": socket.AF_INET}
    with socket.socket(families[bind]) as server, socket.socket(families[bind]) as one, socket.socket(families[bind]) as other:
        server.bind(path if bind == "unix" else (bind, 0))
        server.listen()
        port = 0 if bind == "unix" else server.getsockname()[1]
        endpoint = Endpoint("localhost" if bind == "unix" else bind, port, uds=path if bind == "unix" else "")
        assert connections(endpoint, PROC) == 0
        one.connect(server.getsockname())
        with server.accept()[0]:
            assert connections(endpoint, PROC) == 1
            other.connect(server.getsockname())
            assert connections(endpoint, PROC) == (1 if bind == "unix" else 2)  # a Unix socket bears no path until it is taken
            one.close()
            assert connections(endpoint, PROC) == 1  # of TCP the other; on a Unix socket it takes the server to see that


def test_a_unix_listener(tmp_path: Path) -> None:
    path = str(tmp_path / "engine sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert unix_listeners(path) == [], "bound is not listening"
        server.listen()
        inode = os.fstat(server.fileno()).st_ino
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            assert unix_listeners(path) == [Listener(path, inode, None)]
        assert unix_listeners(path[:-1]) == []
        assert owner_of(inode, PROC.pids(), PROC) == os.getpid()
    assert unix_listeners(path) == [], "the file stays, nobody listens"


def test_nobody_can_forge_a_unix_listener(tmp_path: Path) -> None:
    """A path with a newline forges a line of /proc/net/unix; the kernel's own answer has the path as it is."""
    forged = "x\n0000: 00000002 0 10000 1 1 7 /wanted"
    with socket.socket(socket.AF_UNIX) as server:
        os.makedirs(tmp_path / os.path.dirname(forged))
        server.bind(str(tmp_path / forged))
        server.listen()
        assert unix_listeners("/wanted") == []


@pytest.mark.parametrize(
    ("address", "host", "answers"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("0.0.0.0", "127.0.0.1", True),
        ("::", "127.0.0.1", True),
        ("::", "::1", True),
        ("::1", "127.0.0.1", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::ffff:0.0.0.0", "127.0.0.1", True),
        ("10.0.0.1", "127.0.0.1", False),
        ("10.0.0.1", "localhost", False),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "127.1", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("127.0.0.1", "no.such.host.invalid", False),
    ],
)
def test_answers_for(address: str, host: str, answers: bool) -> None:
    assert answers_for(Listener(address, 1, 0), addresses(host)) is answers


def test_a_stranger_is_named(stranger: tuple[int, int]) -> None:
    pid, port = stranger
    (listener,) = tcp_listeners(port, PROC)
    assert owner_of(listener.inode, [os.getpid()], PROC) is None
    assert owner_of(listener.inode, PROC.pids(), PROC) == pid
    said = describe_owner(listener, PROC)
    assert said.startswith(f'process {pid} "{sys.executable} -c')
    assert said.isprintable()


@pytest.mark.parametrize(
    ("uid", "said"),
    [(0, "a process of user root that cannot be seen from here"), (None, "a process that cannot be seen from here"),
     (4000000, "a process of user 4000000 that cannot be seen from here")],
)  # fmt: skip
def test_an_owner_that_cannot_be_seen(uid: int | None, said: str) -> None:
    assert describe_owner(Listener("::", 2**40, uid), PROC) == said


def test_a_machine_without_ipv6_or_any_net(tmp_path: Path) -> None:
    """Only the table of IPv4, and a torn line in it."""
    net = tmp_path / "self/net"
    net.mkdir(parents=True)
    row = "  0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 4242 1 0 100 0 0 10 0"
    (net / "tcp").write_text(f"  sl  local_address ...\n{row}\n{row.replace(' 0A ', ' 01 ')}\n  1: 0100007F:75\n")
    assert tcp_listeners(30000, Proc(str(tmp_path))) == [Listener("127.0.0.1", 4242, 999)]
