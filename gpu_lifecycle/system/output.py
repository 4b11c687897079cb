"""The door to the engine's output: two pipes that are always read, and passed on as the engine's own lines.

Under systemd each line is an entry of the journal (its native protocol); elsewhere the bytes go on as they are, to where our
own go, but for the secrets that we know. An engine is never made to wait for the journal: what that cannot take in time is
counted, and told.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_lifecycle.rules.output import Inside, Levels, Line, Lines, kept, telling
from gpu_lifecycle.rules.secrets import Secrets, Veil, hide_named
from gpu_lifecycle.system.journal import SOCKET

PIPE_BYTES = 1 << 20  # room for a burst while the loop is busy; fcntl(2), F_SETPIPE_SZ
READ_BYTES = 1 << 16  # ... in one turn of the loop, which has other work
DRAIN_BYTES = 4 << 20  # ... when the engine has ended
WAITING_BYTES = 4 << 20  # what waits for a journal that is busy
RETRY = 0.005  # seconds; a journal takes a few hundred entries at a time (net.unix.max_dgram_qlen)
SLOW_RETRY = 0.1  # ... while it takes none
HOLD = 2.0  # seconds that an engine which floods is made to wait for a busy journal, before lines are lost
TAIL = 400  # lines
TELLING = 8
TELLING_SECONDS = 120.0  # an error that old is not why the engine ends now: SGLang takes 65 s from the cause to its end
KEPT_BYTES = 4000  # of a line


class JournalSink:
    """Lines for the journal. ``fields`` are for each of them; ``lost`` counts those that it could not take."""

    def __init__(self, fields: Mapping[str, str], path: str = SOCKET, waiting: Sequence[bytes] = (), lost: int = 0) -> None:
        self.fields = dict(fields)
        self._written: tuple[dict[str, str], bytes] = ({}, b"")
        self.path = path
        self.waiting: deque[bytes] = deque(waiting)
        self.size = sum(map(len, waiting))
        self.lost = lost
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)

    def put(self, data: bytes, levels: Levels) -> None:
        """Sends a line, or keeps it for ``flush``. ``levels`` know the lines before it."""
        level, text = levels.of(data)
        entry = _field("MESSAGE", text) + _field("PRIORITY", b"%d" % (6 if level is None else level))
        entry += self._same()
        if not self.waiting and self._send(entry):
            return
        if self.size + len(entry) > WAITING_BYTES:
            self.lost += 1
            return
        self.waiting.append(entry)
        self.size += len(entry)

    def _same(self) -> bytes:
        """The fields of each line, which seldom change, while an engine says thousands of lines in a second."""
        fields, written = self._written
        if fields != self.fields:
            written = b"".join(_field(name, value.encode("utf-8", "surrogateescape")) for name, value in self.fields.items())
            self._written = (dict(self.fields), written)
        return written

    def flush(self) -> bool:
        """Sends what waits; False where some of it still does."""
        while self.waiting:
            if not self._send(self.waiting[0]):
                return False
            self.size -= len(self.waiting.popleft())
        return True

    def _send(self, entry: bytes) -> bool:
        """To the path, not to a connection: it then reaches a journald that was restarted meanwhile."""
        try:
            self.socket.sendto(entry, self.path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.lost += len(self.waiting)
        self.socket.close()


def _field(name: str, value: bytes) -> bytes:
    """One field of the native protocol (systemd's "Native Journal Protocol"): text, or bytes with their length."""
    if value.isascii() and b"\n" not in value:
        return name.encode() + b"=" + value + b"\n"
    return name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"


class PlainSink:
    """Bytes for a descriptor of ours that is shared with others and so stays a blocking one."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.waiting = b""
        self.step = 256 if os.isatty(fd) else select.PIPE_BUF  # so much does not block where poll(2) says that it is ready
        self.gone = False

    def put(self, data: bytes) -> None:
        self.waiting += data
        self.flush()

    def flush(self) -> bool:
        """Writes what waits; False where some of it still does. A reader that is gone is not written for any more."""
        while self.waiting and not self.gone:
            if not self._ready():
                return False
            try:
                self.waiting = self.waiting[os.write(self.fd, self.waiting[: self.step]) :]
            except OSError:
                self.gone = True
        self.waiting = b""
        return True

    def _ready(self) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(0))


@dataclass
class _Stream:
    """One pipe's end, and who takes what comes out of it: ``plain`` where it goes on as bytes."""

    fd: int
    lines: Lines
    veil: Veil
    plain: PlainSink | None = None
    levels: Levels = field(default_factory=Levels)
    reading: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """What the program that takes this one's place goes on with: the descriptors, half lines, entries that wait."""

    fds: tuple[int, ...] = ()
    pending: tuple[bytes, ...] = ()
    waiting: tuple[bytes, ...] = ()
    lost: int = 0
    tail: tuple[str, ...] = ()
    first: tuple[tuple[float, str], ...] = ()
    inside: tuple[Inside, ...] = ()  # what each pipe is in the middle of


@dataclass
class Output:
    """One engine's output. ``heard`` gets each line, also those that a progress bar draws over; ``secrets`` nobody gets."""

    journal: JournalSink | None
    heard: Callable[[Line], None] = lambda _: None
    secrets: Secrets = field(default_factory=Secrets)
    streams: list[_Stream] = field(default_factory=list)
    last: deque[bytes] = field(default_factory=lambda: deque(maxlen=TAIL))
    first: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=TELLING))
    loop: asyncio.AbstractEventLoop | None = None
    retry: asyncio.TimerHandle | None = None
    held: float | None = None  # since when a flood waits for the journal

    def open(self) -> tuple[int, int]:
        """Makes the pipes; returns the ends for the engine's stdout and stderr, to be closed once it has them."""
        ends = []
        for fd in (1, 2):
            read, write = os.pipe2(os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # the user's share of pipe memory may be used up: then it stays small
                fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            self._add(read, fd)
            ends.append(write)
        return ends[0], ends[1]

    def adopt(self, left: Left) -> None:
        """Goes on with the pipes of the program that was here before."""
        for number, fd in enumerate(left.fds):
            pending = left.pending[number] if number < len(left.pending) else b""
            self._add(fd, min(number + 1, 2), pending, Levels(*left.inside[number : number + 1]))
        self.last.extend(line.encode("utf-8", "surrogateescape") for line in left.tail)
        self.first.extend(left.first)

    def _add(self, read: int, fd: int, pending: bytes = b"", levels: Levels | None = None) -> None:
        os.set_inheritable(read, False)
        os.set_blocking(read, False)
        veil = Veil(self.secrets)
        plain = None if self.journal else PlainSink(fd)
        self.streams.append(_Stream(read, Lines(veil.through(pending)), veil, plain, levels or Levels()))

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        for stream in self.streams:
            os.set_inheritable(stream.fd, False)
            self._listen(stream)
        self._flush()

    def _listen(self, stream: _Stream) -> None:
        if self.loop and not stream.reading and not stream.ended:
            self.loop.add_reader(stream.fd, self._readable, stream)
            stream.reading = True

    def _deafen(self, stream: _Stream) -> None:
        if self.loop and stream.reading:
            self.loop.remove_reader(stream.fd)
            stream.reading = False

    def _readable(self, stream: _Stream) -> None:
        self._read(stream)
        self._flush()

    def _read(self, stream: _Stream) -> int:
        """One portion; returns its size, 0 for nothing there now."""
        try:
            data = os.read(stream.fd, READ_BYTES)
        except BlockingIOError:
            return 0
        shown = stream.veil.through(data) if data else stream.veil.rest()
        self._pass_on(stream, shown, last=not data)
        if not data:
            self._deafen(stream)
            stream.ended = True
        return len(data)

    def _pass_on(self, stream: _Stream, shown: bytes, *, last: bool) -> None:
        if stream.plain:
            stream.plain.put(shown)
        for line in [*stream.lines.feed(shown), *(stream.lines.end() if last else ())]:
            self._take(line, stream.levels)

    def _take(self, line: Line, levels: Levels) -> None:
        line = Line(hide_named(line.data), line.whole)
        self.heard(line)
        if not line.whole:
            return
        if self.journal:
            self.journal.put(line.data, levels)
        self.last.append(line.data[:KEPT_BYTES])
        if telling(line.data[:KEPT_BYTES].decode("utf-8", "replace")):
            self._tells(line.data)

    def _tells(self, data: bytes) -> None:
        """The first ones of a trouble are kept, the cause before its echoes; a trouble of long ago is another one."""
        now = time.monotonic()
        if self.first and now - self.first[-1][0] > TELLING_SECONDS:
            self.first.clear()
        if len(self.first) < TELLING:
            self.first.append((now, kept(data[:KEPT_BYTES])))

    def _flush(self) -> None:
        """Sends what waits; while a terminal or a pipe of ours takes nothing, nothing is read for it."""
        before = self.journal.size if self.journal else 0
        again = self.journal is not None and not self.journal.flush()
        full = self._hold()
        for stream in self.streams:
            blocked = stream.plain is not None and not stream.plain.flush()
            (self._deafen if blocked or full else self._listen)(stream)
            again |= blocked
        if again and self.loop and self.retry is None:
            moves = self.journal is None or self.journal.size < before
            self.retry = self.loop.call_later(RETRY if moves else SLOW_RETRY, self._again)

    def _hold(self) -> bool:
        """Whether a flood is to wait in the pipe for the journal: for a short time only, then lines are lost and counted."""
        if not self.journal or self.journal.size < WAITING_BYTES // 2:
            self.held = None
            return False
        now = time.monotonic()
        self.held = self.held or now
        return now - self.held < HOLD

    def _again(self) -> None:
        self.retry = None
        self._flush()

    @property
    def words(self) -> str:
        """Why the engine has ended, in its own words: all that it has said by now counts."""
        self.drain()
        return self.telling()

    def drain(self) -> None:
        """Reads what is there by now: the reason before the end. Bounded, for what is left behind may write on and on."""
        for stream in self.streams:
            left = DRAIN_BYTES
            while left > 0 and not stream.ended and not (stream.plain and stream.plain.waiting):
                size = self._read(stream)
                if not size:
                    break
                left -= size
        self._flush()

    def lost(self) -> int:
        """How many lines the journal has not taken since this was asked last."""
        if not self.journal:
            return 0
        count, self.journal.lost = self.journal.lost, 0
        return count

    def tail(self) -> list[str]:
        """The last lines, oldest first, without secrets."""
        return [kept(line) for line in self.last]

    def telling(self) -> str:
        """The first line of the newest trouble; "" where none is recent."""
        recent = self.first and time.monotonic() - self.first[-1][0] <= TELLING_SECONDS
        return self.first[0][1] if recent else ""

    def rest(self) -> None:
        """Stops reading, for now: what is written stays in the pipes."""
        for stream in self.streams:
            self._deafen(stream)
        if self.retry:
            self.retry.cancel()
        self.loop = self.retry = None

    def leave(self) -> Left:
        """For the program that takes this one's place: the pipes, and what was read and is not passed on."""
        waiting = tuple(self.journal.waiting) if self.journal else ()
        lost = self.journal.lost if self.journal else 0
        pending = tuple(stream.lines.pending + stream.veil.held for stream in self.streams)
        fds, inside = tuple(stream.fd for stream in self.streams), tuple(stream.levels.inside for stream in self.streams)
        return Left(fds, pending, waiting, lost, tuple(self.tail()), tuple(self.first), inside)

    def keep_open(self) -> None:
        """Lets the pipes outlive execve(2), until ``begin``."""
        for stream in self.streams:
            os.set_inheritable(stream.fd, True)

    def close(self) -> None:
        """Passes on what can be passed on at once, and ends."""
        self.drain()
        self.rest()
        for stream in self.streams:
            if not stream.ended:
                self._pass_on(stream, stream.veil.rest(), last=True)
            os.close(stream.fd)
        self.streams = []
        if self.journal:
            self.journal.flush()
            self.journal.close()
