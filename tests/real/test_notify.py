"""What the service manager gets, on a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.system.notify import STATUS_LIMIT, Notifier, status_line

NAMES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@gpu-lifecycle-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(address.replace("@", "\0", 1))
        bound.settimeout(10)
        yield bound


@pytest.mark.parametrize(
    ("lines", "datagram"),
    [
        (("READY=1",), "READY=1"),
        (("READY=1", "WATCHDOG=1"), "READY=1\nWATCHDOG=1"),
        ((status_line("31 GiB\nREADY=1"),), "STATUS=31 GiB\\x0aREADY=1"),
        ((status_line("Größe 大"),), "STATUS=Größe 大"),
        ((status_line("bad \udcff"),), "STATUS=bad \\xff"),
        (("STATUS=\udcff",), "STATUS=\\udcff"),
    ],
)
def test_a_message_arrives_whole(manager: socket.socket, lines: tuple[str, ...], datagram: str) -> None:
    notifier = Notifier()
    assert notifier.send(*lines)
    assert manager.recv(4096).decode() == datagram
    notifier.close()
    assert not notifier.connected
    assert not notifier.send("READY=1")
    notifier.close()


def test_a_long_status_is_cut() -> None:
    assert len(status_line("x" * 9999)) == len("STATUS=") + STATUS_LIMIT


def test_without_a_manager_nothing_happens(capfd: pytest.CaptureFixture[str]) -> None:
    notifier = Notifier()
    assert not notifier.connected
    assert not notifier.send("READY=1")
    assert notifier.watchdog is None
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore:unclosed")  # sdnotify drops its socket when it cannot connect
def test_a_dead_address_is_said_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notifier = Notifier()
    assert not notifier.connected
    assert not notifier.send("READY=1")
    assert "cannot reach the service manager at NOTIFY_SOCKET" in capfd.readouterr().err


def test_a_manager_that_goes_away(manager: socket.socket, capfd: pytest.CaptureFixture[str]) -> None:
    notifier = Notifier()
    manager.close()
    assert not notifier.send("READY=1")
    assert "cannot notify the service manager" in capfd.readouterr().err
    notifier.close()


def test_a_manager_that_does_not_read_is_not_waited_for(manager: socket.socket) -> None:
    """Its queue fills (net.unix.max_dgram_qlen); then a message is given up within seconds."""
    notifier = Notifier()
    sent = 0
    while notifier.send("WATCHDOG=1"):
        sent += 1
        assert sent < 100_000
    assert sent > 1
    assert manager.recv(64) == b"WATCHDOG=1"
    assert notifier.send("WATCHDOG=1")
    notifier.close()


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        ("60000000", "", 60.0),
        ("500000", "SELF", 0.5),
        ("60000000", "1", None),
        ("0", "", None),
        ("", "", None),
        ("-5", "", None),
        ("soon", "", None),
    ],
)
def test_watchdog(monkeypatch: pytest.MonkeyPatch, usec: str, pid: str, seconds: float | None) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "SELF" else pid)
    assert Notifier().watchdog == seconds


def test_a_descriptor_is_handed_over(manager: socket.socket, tmp_path: Path) -> None:
    """As sd_notify(3) has it: the message with the descriptor beside it, exempt from being polled."""
    notifier = Notifier()
    path = tmp_path / "log"
    path.write_text("here")
    fd = os.open(path, os.O_RDONLY)
    assert notifier.forget("kmsg")
    assert notifier.store("kmsg", fd)
    os.close(fd)
    assert manager.recv(4096) == b"FDSTOREREMOVE=1\nFDNAME=kmsg"
    message, passed, _, _ = socket.recv_fds(manager, 4096, 4)
    assert message == b"FDSTORE=1\nFDNAME=kmsg\nFDPOLL=0"
    assert [os.read(one, 100) for one in passed] == [b"here"]
    for one in passed:
        os.close(one)
    notifier.close()
    assert not notifier.store("kmsg", 0)
