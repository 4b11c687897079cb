"""Commands inside a machine: entered by nsenter, in a control group of their own below the machine's root."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

GROUP = "test-exec"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
JOIN = 'echo $$ > "$0" && exec "$@"'


class Entered(subprocess.Popen[str]):
    """A command in the machine. Signals go to it, not to nsenter, which waits for it and ends as it ended."""

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.outside() or self.pid, sig)

    def outside(self) -> int | None:
        """The command's pid outside the machine; None before it is in."""
        with contextlib.suppress(OSError, IndexError):
            return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])
        return None

    def inside(self) -> int | None:
        """The command's pid inside the machine."""
        outside = self.outside()
        return None if outside is None else inner_pid(outside)


class Entrance:
    """The way into the machine whose pid 1 is `pid`."""

    def __init__(self, pid: int, cgroup: Path) -> None:
        self.pid = pid
        self.group = cgroup / GROUP

    def words(self, argv: Sequence[str], user: str | None = None) -> list[str]:
        """The command's process ends with the one that started it."""
        rights = ["setpriv", "--pdeathsig", "KILL"]
        if user is not None:
            rights += [f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return ["/bin/sh", "-c", JOIN, f"{self.group}/cgroup.procs", *self._nsenter(), *rights, "--", *argv]

    def shell_line(self) -> str:
        """For a person: a root shell in the machine."""
        inner = [*self._nsenter(), "/bin/bash", "--login"]
        return shlex.join(["/bin/sh", "-c", JOIN, f"{self.group}/cgroup.procs", *inner])

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
    ) -> Entered:
        self.group.mkdir(exist_ok=True)
        return Entered(
            self.words(argv, user),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            env=_environment(user),
            start_new_session=True,
        )

    def run(
        self, argv: Sequence[str], *, user: str | None, text: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Files take the output: what the command left running may keep them open."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            stdin = subprocess.DEVNULL if text is None else subprocess.PIPE
            with self.popen(argv, user=user, stdin=stdin, stdout=out.fileno(), stderr=err.fileno()) as process:
                try:
                    process.communicate(text, timeout)
                except subprocess.TimeoutExpired as error:
                    process.kill()
                    raise subprocess.TimeoutExpired(list(argv), timeout, _text(out), _text(err)) from error
                except BaseException:
                    process.kill()
                    raise
            return subprocess.CompletedProcess(list(argv), process.returncode, _text(out), _text(err))

    def _nsenter(self) -> list[str]:
        return ["nsenter", "-a", "-t", str(self.pid)]


def inner_pid(outside: int) -> int | None:
    """The number that a process has in the innermost pid namespace it is in."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{outside}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None


def _environment(user: str | None) -> dict[str, str]:
    home = "/root" if user in (None, "root") else f"/home/{user}"
    return {"PATH": PATH, "HOME": home, "USER": user or "root", "LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat"}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
