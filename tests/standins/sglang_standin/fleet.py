"""The launcher's view of its children."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from . import worker
from .options import Options


class Member:
    """A scheduler or the detokenizer."""

    def __init__(self, name: str, rank: int, pid: int, channel: socket.socket, adopted: bool) -> None:
        self.name = name
        self.rank = rank
        self.pid = pid
        self.channel = channel
        self.adopted = adopted  # not a child of the launcher: its exit status cannot be read
        self.alive = True
        self.loaded = False

    def send(self, order: bytes) -> None:
        """Give an order; a dead member is no error."""
        with contextlib.suppress(OSError):
            self.channel.send(order)

    def status(self) -> int:
        """Exit status after its end of file; a signal is negative."""
        self.alive = False
        if self.adopted:
            return -signal.SIGKILL
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return -signal.SIGKILL


class Fleet:
    """All children of the launcher."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.members: list[Member] = []
        self.tracker = 0
        self._pipe = (-1, -1)

    @property
    def schedulers(self) -> list[Member]:
        return [member for member in self.members if member.rank >= 0]

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    def start(self) -> None:
        """Fork them all; the tracker ends with the last process that holds the pipe's other end."""
        self._pipe = os.pipe()
        self.tracker = os.fork()
        if not self.tracker:
            os.close(self._pipe[1])
            worker.become_tracker(self._pipe[0])
        os.close(self._pipe[0])
        for rank in [*range(self.options.tp), -1]:
            self.members.append(self._spawn(rank))
        self._publish()

    def _spawn(self, rank: int) -> Member:
        ours, theirs = socket.socketpair()
        name = worker.title(self.options, rank).decode("utf-8", "replace")
        adopted = rank >= 0 and self.options.does("leave-orphans")
        pid = self._fork_twice(rank, ours, theirs) if adopted else self._fork(rank, ours, theirs)
        theirs.close()
        return Member(name, rank, pid, ours, adopted)

    def _fork(self, rank: int, ours: socket.socket, theirs: socket.socket) -> int:
        pid = os.fork()
        if not pid:
            try:
                for channel in (ours, *(member.channel for member in self.members)):
                    channel.close()
                worker.Worker(self.options, rank, theirs).run()
            except BaseException:  # noqa: BLE001 a forked child never returns into the launcher's code
                sys.excepthook(*sys.exc_info())
            os._exit(70)
        return pid

    def _fork_twice(self, rank: int, ours: socket.socket, theirs: socket.socket) -> int:
        reading, writing = os.pipe()
        middle = os.fork()
        if not middle:
            os.write(writing, b"%d" % self._fork(rank, ours, theirs))
            os._exit(0)
        os.close(writing)
        os.waitpid(middle, 0)
        pid = int(os.read(reading, 32))
        os.close(reading)
        return pid

    def _publish(self) -> None:
        if not self.options.pids:
            return
        rows = [("launcher", os.getpid()), ("tracker", self.tracker)]
        rows += [(f"scheduler{m.rank}" if m.rank >= 0 else "detokenizer", m.pid) for m in self.members]
        temporary = f"{self.options.pids}.tmp.{os.getpid()}"
        with open(temporary, "w", encoding="ascii") as file:
            file.writelines(f"{name} {pid}\n" for name, pid in rows)
        os.rename(temporary, self.options.pids)

    def order(self, letter: bytes) -> None:
        """The same order to all that live."""
        for member in self.living:
            member.send(letter)

    def await_tracker(self) -> None:
        """After a clean end of all members the tracker ends by itself; see to it that it is reaped."""
        if self.options.does("leave-orphans"):
            return
        os.close(self._pipe[1])
        os.waitpid(self.tracker, 0)

    def kill(self) -> None:
        """SIGKILL to the tree, but for the ones that are to be left behind."""
        targets = [member.pid for member in self.living if not member.adopted]
        if not self.options.does("leave-orphans"):
            targets.append(self.tracker)
        for pid in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def die(status: str) -> None:
    """End this process with an exit status, or by SIGKILL for `kill`."""
    if status == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(float(status)))
