"""The door to listening sockets: who listens where the engine should.

Source: proc_pid_net(5), ``/proc/net/tcp``, ``tcp6`` and ``unix``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_lifecycle.system.procfs import Proc, read_bytes

TCP_LISTEN = "0A"  # include/net/tcp_states.h
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
    """Everyone who listens on a TCP port in this network namespace, on whatever address."""
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
    """Whether a connection to ``host`` may reach this listener: the same address, or a wildcard."""
    wild = {"0.0.0.0", "::"}  # noqa: S104 - compared with, never bound
    mapped = listener.address.removeprefix("::ffff:")
    return listener.address in wild or mapped in (host, "0.0.0.0") or host == "localhost"  # noqa: S104


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
