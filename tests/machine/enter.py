"""Commands inside a machine: entered by nsenter, in a control group of their own below the machine's root."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

GROUP = "test-exec"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
JOIN = 'echo $$ > "$0" && exec "$@"'


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
    ) -> subprocess.Popen[str]:
        self.group.mkdir(exist_ok=True)
        return subprocess.Popen(
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
        process = self.popen(argv, user=user, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE)
        with process:
            try:
                out, err = process.communicate(text, timeout)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def _nsenter(self) -> list[str]:
        return ["nsenter", "-a", "-t", str(self.pid)]


def _environment(user: str | None) -> dict[str, str]:
    home = "/root" if user in (None, "root") else f"/home/{user}"
    return {"PATH": PATH, "HOME": home, "USER": user or "root", "LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat"}
