"""A terminal of a given size with a command in it, by tmux: its keys are typed, its screen is read."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from typing import Self

from tests.machine import Machine
from tests.machine.enter import PATH

SECONDS = 20.0
STATUS = "exit status "
# What runs before the command sees the terminal as any program would; what it says after the command shows whether it was
# left as it was found.
LINE = "before=$(stty -g); {command}; echo '" + STATUS + '\'$?; [ "$before" = "$(stty -g)" ] && echo modes restored; cat'


class Terminal:
    """As a context: a shell line on a terminal of its own; it ends with the context."""

    def __init__(self, line: str, width: int = 80, height: int = 24) -> None:
        self.folder = tempfile.mkdtemp(prefix="terminal-")
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")
        shutil.rmtree(self.folder, ignore_errors=True)

    def type(self, *keys: str) -> None:
        """Keys by tmux's names: ``q``, ``Down``, ``C-c``."""
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self, *, colour: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(["-e"] if colour else []))

    def history(self) -> str:
        """The screen, below all that has scrolled off it."""
        return self._tmux("capture-pane", "-p", "-S", "-")

    def about(self, what: str) -> str:
        """What tmux knows of the terminal: ``cursor_flag``, ``alternate_on``."""
        return self._tmux("display-message", "-p", f"#{{{what}}}").strip()

    def until(self, pattern: str, seconds: float = SECONDS) -> str:
        """The screen, once ``pattern`` is on it; AssertionError, with the screen, where it does not come."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, shown := self.screen()):
            assert time.monotonic() < deadline, f"no {pattern!r} within {seconds:g} s on\n{shown}"
            time.sleep(0.1)
        return shown

    def _tmux(self, *words: str) -> str:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": self.folder, "TERM": "xterm-256color"}
        command = ["tmux", "-S", f"{self.folder}/tmux", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=30).stdout


def inside(machine: Machine, *words: str, user: str = "root", term: str = "tmux-256color") -> str:
    """The shell line that runs a command in a machine and then says its exit status, and how it left the terminal."""
    environment = [f"PATH={PATH}", f"TERM={term}", "LC_ALL=C.UTF-8", "HOME=/"]
    command = shlex.join(["env", "--default-signal=INT", "-i", *environment, *words])
    script = LINE.format(command=command)
    # Ctrl-C reaches everything on the terminal: it is for the command, and must not end those that wait for it.
    entered = machine.entrance.words(["/bin/sh", "-c", script], None if user == "root" else user)
    return f"trap '' INT; exec {shlex.join(entered)}"
