"""The door to listening sockets: who listens where the engine should.

Source: proc_pid_net(5), ``/proc/net/tcp``, ``tcp6`` and ``unix``.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_lifecycle.system.procfs import Proc, read_bytes

TCP_LISTEN = "0A"  # include/net/tcp_states.h
TCP_LISTEN_STATE = 10  # the same, as a number
NETLINK_SOCK_DIAG = 4  # include/uapi/linux/netlink.h
SOCK_DIAG_BY_FAMILY = 20  # include/uapi/linux/sock_diag.h
NLM_F_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
NLMSG_ERROR, NLMSG_DONE = 2, 3
NET_LIMIT = 16 * 1024 * 1024
_UNIX_LISTENING = 0x10000  # SO_ACCEPTCON in the flags column of /proc/net/unix


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
        return [item for family in (socket.AF_INET, socket.AF_INET6) for item in _diag(family, port)]
    except OSError:
        return _tcp_table(port, proc)


def _diag(family: int, port: int) -> list[Listener]:
    """Listeners of one family. Raises OSError where sock_diag is not to be had."""
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << TCP_LISTEN_STATE) + bytes(48)
    header = struct.pack("=IHHII", 16 + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1, 0)
    found: list[Listener] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(1.0)
        asked.send(header + request)
        while True:
            for kind, body in _messages(asked.recv(1 << 18)):
                if kind == NLMSG_DONE:
                    return found
                if kind == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, os.strerror(code))
                if int.from_bytes(body[4:6], "big") == port:
                    found.append(_listener(body))


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


def _tcp_table(port: int, proc: Proc) -> list[Listener]:
    found: list[Listener] = []
    for table in ("tcp", "tcp6"):
        try:
            lines = read_bytes(f"{proc.root}/self/net/{table}", NET_LIMIT).decode("ascii", "replace").splitlines()[1:]
        except OSError:
            continue  # no IPv6 here
        for line in lines:
            fields = line.split()
            if len(fields) < 10 or fields[3] != TCP_LISTEN:
                continue
            address, _, number = fields[1].rpartition(":")
            if int(number, 16) == port:
                found.append(Listener(decode_address(address), int(fields[9]), int(fields[7])))
    return found


def unix_listeners(path: str, proc: Proc) -> list[Listener]:
    """Everyone who listens on a unix socket of that path."""
    try:
        lines = read_bytes(f"{proc.root}/self/net/unix", NET_LIMIT).decode("utf-8", "replace").splitlines()[1:]
    except OSError:
        return []
    rows = (line.split(None, 7) for line in lines)
    return [
        Listener(path, int(row[6]), None)
        for row in rows
        if len(row) == 8 and row[7] == path and int(row[3], 16) & _UNIX_LISTENING
    ]


def answers_for(listener: Listener, host: str) -> bool:
    """Whether a connection to ``host`` may reach this listener: the same address, or a wildcard (of IPv6: of both)."""
    mapped = listener.address.removeprefix("::ffff:")
    if mapped in ("0.0.0.0", "::"):  # noqa: S104 - compared with, never bound
        return True
    if host == "localhost":
        return mapped == "::1" or mapped.startswith("127.")
    return mapped == host


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
