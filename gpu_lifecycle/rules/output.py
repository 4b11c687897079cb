"""The engine's own output as lines: where one ends, how grave it is, and which tell why an engine has failed.

The text is the engine's and may be anything: progress bars that are redrawn, half lines, NULs,
bytes that are not UTF-8, floods.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_lifecycle.rules.text import printable, redact

LINE_MAX = 48 * 1024  # bytes; as journald itself has it (journald.conf(5), LineMax=): a longer line becomes several
WIDTH = 1000  # characters of a line that is kept


@dataclass(frozen=True, slots=True)
class Line:
    """``whole``: it ended. Else it is what a progress bar shows for now, and is drawn over by what comes next."""

    data: bytes
    whole: bool = True


class Lines:
    """Cuts a stream into lines. A NUL ends one, as journald has it; what follows a carriage return is drawn over."""

    def __init__(self, pending: bytes = b"") -> None:
        self._start = b""  # of the line that has not ended
        self._shown = b""  # what a carriage return goes back over, until something is drawn
        self._bar = False
        self.feed(pending)

    @property
    def pending(self) -> bytes:
        """What another reader has to begin with, so that nothing is lost."""
        return (self._shown + b"\r" if self._bar else b"") + self._start

    def feed(self, data: bytes) -> list[Line]:
        """The lines that ``data`` ends, and at last what is drawn by now of a progress bar."""
        found: list[Line] = []
        for piece in re.split(rb"([\n\r\0])", data):
            if piece in (b"\n", b"\0"):
                found.append(self._end())
            elif piece == b"\r":
                self._back(found)
            elif piece:
                self._grow(piece, found)
        if self._bar and self._start:
            found.append(Line(self._start, whole=False))
        return found

    def end(self) -> list[Line]:
        """The stream has ended: what is there is the last line."""
        return [self._end()] if self._start or self._shown else []

    def _end(self) -> Line:
        line = Line(self._start or self._shown)
        self._start, self._shown, self._bar = b"", b"", False
        return line

    def _back(self, found: list[Line]) -> None:
        if self._start:
            if self._bar:
                found.append(Line(self._start, whole=False))
            self._shown, self._start = self._start, b""
        self._bar = True

    def _grow(self, piece: bytes, found: list[Line]) -> None:
        self._start += piece
        while len(self._start) > LINE_MAX:
            found.append(Line(self._start[:LINE_MAX]))
            self._start = self._start[LINE_MAX:]


_HEAD = r"^(?:\([^()]{0,80}\) ?|\[[^\[\]]{0,80}\] ?)*"  # (EngineCore pid=7) of vLLM, [2026-12-02 10:00:00 TP0] of SGLang
_LEVEL = re.compile(_HEAD + r"(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b(?:[: ]|$)")
_GLOG = re.compile(_HEAD + r"([DIWEF])\d{4} \d\d:\d\d:")  # PyTorch's C++ side, Triton
_PREFIX = re.compile(rb"^<([0-7])>")  # sd-daemon(3)
PRIORITIES = {"D": 7, "I": 6, "W": 4, "E": 3, "C": 2, "F": 2}  # syslog(3), by the word's first letter


def priority(data: bytes) -> tuple[int | None, bytes]:
    """The line's level (syslog(3)), None where it says none, and the line without the prefix of sd-daemon(3)."""
    prefix = _PREFIX.match(data)
    if prefix:
        return int(prefix[1]), data[prefix.end() :]
    head = data[:300].decode("utf-8", "replace")
    level = _LEVEL.match(head) or _GLOG.match(head)
    return (PRIORITIES[level[1][0]] if level else None), data


_TRACE = re.compile(r"\(most recent call (?:last|first)\)|^Fatal Python error: ")
_INSIDE = re.compile(r"\s|[|+] |\+-|$")  # what a traceback goes on with: frames are indented, groups have bars
_BOTTOM = re.compile(r"\s*\+-+\s*$")  # of a group
_FRAME = re.compile(r'[ |]+File "')
# What comes after the last line of one and is still of it: another that it led to, the native frames of PyTorch.
_AFTER = re.compile(r"(?:During handling of|The above exception was)\b|Exception raised from |frame #\d+: |\s*$")
_SPEAKER = re.compile(_HEAD)
TRACE_LINES = 1000  # of one traceback; what goes on longer is none
ERR = 3
Inside = tuple[str, int, bool]  # of a traceback: who says it, how many lines it may still have, whether its last one has come


class Levels:
    """The level of each line of one stream: all lines of a traceback are errors, not only the one that names it.

    A line of somebody else in between, which has a head or a level of its own, is judged by itself.
    """

    def __init__(self, inside: Inside = ("", 0, False)) -> None:
        """``inside``: what another reader was in the middle of."""
        speaker, left, over = inside
        self._speaker = speaker.encode("utf-8", "replace")
        self._left = left  # lines that may still belong to the traceback; 0: there is none
        self._over = over  # its last line has come: what follows has to show that it belongs to it

    @property
    def inside(self) -> Inside:
        """What another reader has to begin with, so that the rest of a traceback is still one."""
        return self._speaker.decode(), self._left, self._over

    def of(self, data: bytes) -> tuple[int | None, bytes]:
        """The line's level, None where it says none and is in no traceback; and the line as ``priority`` gives it."""
        level, text = priority(data)
        line = text[:WIDTH].decode("utf-8", "replace")
        match = _SPEAKER.match(line)
        head = match[0] if match else ""
        speaker, said = head.strip().encode(), line[len(head) :]
        if _TRACE.search(said):
            self._speaker, self._left, self._over = speaker, TRACE_LINES, False
            return min(ERR, ERR if level is None else level), text
        if level is not None or not self._left or speaker not in (b"", self._speaker):
            return level, text
        return self._goes_on(said), text

    def _goes_on(self, said: str) -> int | None:
        self._left -= 1
        if self._over and _FRAME.match(said):
            self._over = False  # what seemed to be its last line was another's
        elif self._over and not _AFTER.match(said):
            self._left = 0
            return None
        else:
            self._over = self._over or not _INSIDE.match(said) or bool(_BOTTOM.match(said))
        return ERR


_NAME = r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]?\w{0,60}(?:Error|Exception)"
_TELLING = re.compile(
    rf"(?:^|[\s\])]){_NAME}(?::|$)|out of memory|illegal memory access|NCCL error|address already in use"
    r"|Fatal Python error|Segmentation fault|terminate called|watchdog timeout|Watchdog caught collective operation timeout"
    r"|Not enough memory|leave no GPU memory|memory capacity is unbalanced|file\(s\) missing from"
    r"|No available memory for the cache blocks|error while loading shared libraries|error: unrecognized arguments"
)
# What an engine says because something else has failed before.
_ECHO = re.compile(
    r"EngineDeadError|BrokenPipeError|ConnectionResetError|EOFError|CancelledError|Engine core initialization failed|"
    r"WorkerProc initialization failed|SIGQUIT|sigquit|hit an exception"
)


def telling(text: str) -> bool:
    """Whether the line heads an error that may be why an engine ends: no echo of another, no warning that quotes one."""
    if not _TELLING.search(text) or _ECHO.search(text):
        return False
    level = _LEVEL.match(text) or _GLOG.match(text)
    return level is None or PRIORITIES[level[1][0]] < PRIORITIES["W"]


_ARGUMENTS = re.compile(r"(server_args=|non-default args:).*")  # an engine that shows its whole configuration, keys and all
_VALUE = re.compile(
    r"((?:key|token|secret|passw(?:or)?d)['\"]?\s{0,3}[=:]\s{0,3})(?!None\b)(?:'[^']*'|\"[^\"]*\"|[^\s,)]+)", re.IGNORECASE
)


def kept(data: bytes) -> str:
    """A line as it may be kept: printable, bounded, without the values of keys and passwords."""
    text = printable(data, WIDTH)
    return _VALUE.sub(r"\1***", redact(_ARGUMENTS.sub(r"\1***", text)))
