"""The door to listening sockets: who listens where the engine should.

Sources: sock_diag(7), proc_pid_net(5) (``/proc/net/tcp`` and ``tcp6``).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.rules.endpoints import Endpoint
from gpu_lifecycle.system.procfs import Proc, read_bytes

TCP_ESTABLISHED, TCP_LISTEN = 1, 10  # include/net/tcp_states.h
NETLINK_SOCK_DIAG = 4  # include/uapi/linux/netlink.h
SOCK_DIAG_BY_FAMILY = 20  # include/uapi/linux/sock_diag.h
NLM_F_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
NLMSG_ERROR, NLMSG_DONE = 2, 3
NET_LIMIT = 16 * 1024 * 1024
UDIAG_SHOW_NAME, UNIX_DIAG_NAME, NO_COOKIE = 1, 0, 0xFFFFFFFF  # include/uapi/linux/unix_diag.h


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening socket; ``uid`` is its owner's, None where the kernel does not say."""

    address: str
    inode: int
    uid: int | None


def decode_address(text: str) -> str:
    """An address as ``/proc/net/tcp*`` writes it: hexadecimal words in the byte order of this machine."""
    raw = b"".join(
        int(text[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(text), 8)
    )  # x86-64 and arm64 are little-endian, the only ones with NVIDIA's server driver
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw)


def tcp_listeners(port: int, proc: Proc) -> list[Listener]:
    """Everyone who listens on a TCP port in this network namespace, on whatever address.

    Asked of the kernel by sock_diag(7), which looks at listeners only; ``/proc/net/tcp`` walks the table of all
    connections, 14 ms each time. It serves where the kernel, or a filter, does not let us ask.
    """
    if proc.root != "/proc":
        return _tcp_table(port, proc)  # somebody else's tree
    try:
        return _tcp(port, TCP_LISTEN)
    except OSError:
        return _tcp_table(port, proc)


def connections(endpoint: Endpoint, proc: Proc) -> int:
    """How many connections to a server there are; 0 where that cannot be seen.

    Of TCP also those that it has not taken yet, and none that the client has closed; of a Unix socket all that it has taken.
    """
    try:
        if endpoint.uds:
            return len(_unix(endpoint.uds, TCP_ESTABLISHED))
        return len(_tcp(endpoint.port, TCP_ESTABLISHED))
    except OSError:
        return 0 if endpoint.uds else len(_tcp_table(endpoint.port, proc, TCP_ESTABLISHED))


def _tcp(port: int, state: int) -> list[Listener]:
    return [item for family in (socket.AF_INET, socket.AF_INET6) for item in _diag(family, port, state)]


def _diag(family: int, port: int, state: int) -> Iterator[Listener]:
    """Sockets of one family with that local port. Raises OSError where sock_diag is not to be had."""
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << state) + bytes(48)
    return (_listener(body) for body in _dump(request) if int.from_bytes(body[4:6], "big") == port)


def _dump(request: bytes) -> Iterator[bytes]:
    """All answers to one sock_diag(7) request. Raises OSError."""
    header = struct.pack("=IHHII", 16 + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(1.0)
        asked.send(header + request)
        while True:
            for kind, body in _messages(asked.recv(1 << 18)):
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, os.strerror(code))
                yield body


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The netlink messages of one datagram (netlink(7)): type and body, each aligned to 4 bytes."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if length < 16:
            return
        yield kind, data[at + 16 : at + length]
        at += (length + 3) & ~3


def _listener(body: bytes) -> Listener:
    """One struct inet_diag_msg (linux/inet_diag.h): family, addresses in network order at 8, uid at 64, inode at 68."""
    size = 4 if body[0] == socket.AF_INET else 16
    uid, inode = struct.unpack_from("=II", body, 64)
    return Listener(socket.inet_ntop(body[0], body[8 : 8 + size]), inode, uid)


def _tcp_table(port: int, proc: Proc, state: int = TCP_LISTEN) -> list[Listener]:
    found: list[Listener] = []
    for table in ("tcp", "tcp6"):
        try:
            lines = read_bytes(f"{proc.root}/self/net/{table}", NET_LIMIT).decode("ascii", "replace").splitlines()[1:]
        except OSError:
            continue  # no IPv6 here
        for line in lines:
            fields = line.split()
            if len(fields) < 10 or fields[3] != f"{state:02X}":
                continue
            address, _, number = fields[1].rpartition(":")
            if int(number, 16) == port:
                found.append(Listener(decode_address(address), int(fields[9]), int(fields[7])))
    return found


def unix_listeners(path: str) -> list[Listener]:
    """Everyone who listens on a unix socket of that path, by sock_diag(7).

    Not from ``/proc/net/unix``: it prints paths raw, so that anybody can forge a line of it with a newline in a path.
    Raises BlindError where the kernel does not answer.
    """
    try:
        found = _unix(path, TCP_LISTEN)
    except OSError as error:
        raise BlindError(f"cannot find out who listens on {path}: {error.strerror}") from error
    return [Listener(path, struct.unpack_from("=I", body, 4)[0], None) for body in found]


def _unix(path: str, state: int) -> list[bytes]:
    """Sockets that bear that path; one that was accepted bears its listener's. Raises OSError."""
    request = struct.pack("=BBxxIIIII", socket.AF_UNIX, 0, 1 << state, 0, UDIAG_SHOW_NAME, NO_COOKIE, NO_COOKIE)
    return [body for body in _dump(request) if _unix_name(body) == os.fsencode(path)]


def _unix_name(body: bytes) -> bytes:
    """The UNIX_DIAG_NAME attribute behind a struct unix_diag_msg of 16 bytes (linux/unix_diag.h)."""
    at = 16
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            break
        if kind == UNIX_DIAG_NAME:
            return body[at + 4 : at + length].rstrip(b"\0")
        at += (length + 3) & ~3
    return b""


def addresses(host: str) -> frozenset[str]:
    """What a host's name or any spelling of an address stands for; empty where it cannot be resolved."""
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return frozenset()


def listeners_at(endpoint: Endpoint, proc: Proc) -> list[Listener]:
    """Everyone whom a connection to the engine's endpoint could reach."""
    if endpoint.uds:
        return unix_listeners(endpoint.uds)
    wanted = addresses(endpoint.host)
    return [item for item in tcp_listeners(endpoint.port, proc) if answers_for(item, wanted)]


def answers_for(listener: Listener, wanted: frozenset[str]) -> bool:
    """Whether a connection to one of these addresses may reach it: the same address, or a wildcard (of IPv6: of both)."""
    mapped = listener.address.removeprefix("::ffff:")
    return mapped in ("0.0.0.0", "::") or mapped in wanted  # noqa: S104 - compared with, never bound


def owner_of(inode: int, pids: Iterable[int], proc: Proc) -> int | None:
    """The first of ``pids`` that has this socket open; None: none of them, as far as can be read."""
    wanted = f"socket:[{inode}]"
    for pid in pids:
        folder = f"{proc.root}/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                if os.readlink(f"{folder}/{name}") == wanted:
                    return pid
            except OSError:
                continue
    return None


def describe_owner(listener: Listener, proc: Proc) -> str:
    """Who has a socket, in words: process, title and user where they can be seen, else the user alone."""
    pid = owner_of(listener.inode, proc.pids(), proc)
    stat = proc.stat(pid) if pid else None
    if pid and stat:
        return f'process {pid} "{proc.title(pid, stat)}"'
    if listener.uid is None:
        return "a process that cannot be seen from here"
    return f"a process of user {proc.user(listener.uid)} that cannot be seen from here"
