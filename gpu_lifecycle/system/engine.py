"""The door to the engine: starts it in a session of its own, and signals the unit's processes.

The daemon's user may signal only its own; nothing else is ever tried. All signals go through pidfds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Iterable, Mapping

from gpu_lifecycle.errors import ConfigError, LifecycleError
from gpu_lifecycle.facts import Identity, UnitName
from gpu_lifecycle.system.cgroup import Cgroup
from gpu_lifecycle.system.pidfd import hold
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.shortage import no_process

# What the service manager gave to us alone: with these, a child could say READY=1 or STOPPING=1 for the unit.
PRIVATE = frozenset(("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "FDSTORE"))
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def engine_environment(own: Mapping[str, str], extra: Mapping[str, str], unit: UnitName, run: str) -> dict[str, str]:
    """The engine's environment, with the run markers by which a later sweep knows what this run left."""
    environment = {key: value for key, value in own.items() if key not in PRIVATE}
    # setproctitle, which engines use for their workers' titles, otherwise overwrites the first environment in
    # memory, and with it the markers (its documentation: SPT_NOENV).
    environment["SPT_NOENV"] = "1"
    environment |= extra
    return environment | {"GPU_LIFECYCLE_UNIT": unit.service, "GPU_LIFECYCLE_RUN": run}


def become_subreaper() -> None:
    """Makes orphaned grandchildren ours, so that none is lost from sight and none stays a zombie (prctl(2))."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise LifecycleError(f"cannot become a subreaper: {os.strerror(error)}")


def start(
    command: tuple[str, ...], environment: Mapping[str, str], config_file: str, ends: tuple[int, int] | None = None
) -> subprocess.Popen[bytes]:
    """Starts the engine's main process, with ``ends`` (else ours) as its stdout and stderr, which are closed here.

    Raises ConfigError where the command cannot be executed, BusyError where the kernel has no process to give.
    """
    out, err = ends or (None, None)
    try:
        return subprocess.Popen(
            command, env=dict(environment), start_new_session=True, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
    except FileNotFoundError as error:
        missing = "its working directory" if error.filename != command[0] else command[0]
        raise ConfigError(
            f"cannot start the engine: {missing} is not there (or its interpreter is not)",
            hint="correct the path of the program",
            file=config_file,
            key="server.command",
        ) from error
    except PermissionError as error:
        raise ConfigError(
            f"cannot start the engine: user {os.geteuid()} may not execute {command[0]}",
            hint=f"check every folder of it: namei -l {command[0]}",
            file=config_file,
            key="server.command",
        ) from error
    except OSError as error:
        if short := no_process(error):
            raise short from error
        raise ConfigError(
            f"cannot start the engine: {command[0]}: {error.strerror}",
            hint="is it a program for this machine, with a first line that names its interpreter?",
            file=config_file,
            key="server.command",
        ) from error
    finally:
        for end in ends or ():
            os.close(end)


class Adopted:
    """A child that an earlier program in this process has started; what ``subprocess.Popen`` is to one's own."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it lives."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        status = self._collect(0)
        assert status is not None
        return status

    def _collect(self, flags: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:
                pid, status = self.pid, 0  # collected elsewhere: as subprocess has it, nothing is known of it then
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """To a child that has not been collected: its pid cannot mean another process."""
        if self.poll() is None:
            os.kill(self.pid, number)


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Waits for the end of a child; cancelled, it ends it. Returns its exit status."""
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(process.pid)
    done = asyncio.Event()
    loop.add_reader(pidfd, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        process.kill()
        status = process.wait()
    return status


class Family:
    """The unit's processes but the daemon and its helpers: by cgroup under systemd, by descent without it."""

    def __init__(self, proc: Proc, cgroup: Cgroup | None) -> None:
        self.proc = proc
        self.cgroup = cgroup if cgroup and cgroup.usable else None
        self.apart: set[int] = set()  # sessions of commands of the user's: no part of the engine, and ended elsewhere

    def oom_kills(self) -> int:
        """How many of them the kernel has ended for memory, as far as it counts here."""
        return (self.cgroup.oom_kills() or 0) if self.cgroup else 0

    def pids(self, without: Iterable[int]) -> set[int]:
        """Raises BlindError where the cgroup cannot be read."""
        everyone = self.cgroup.pids() if self.cgroup else self.proc.descendants(os.getpid())
        return everyone - {os.getpid(), *without}

    def living(self, without: Iterable[int]) -> dict[int, Identity]:
        """All that live; a zombie has ended."""
        found: dict[int, Identity] = {}
        for pid in self.pids(without):
            stat = self.proc.stat(pid)
            if stat and not (stat.zombie and stat.threads <= 1) and stat.session not in self.apart:
                found[pid] = Identity(self.proc.boot_id, pid, stat.start_ticks)
        return found

    def signal(self, identities: Iterable[Identity], number: signal.Signals) -> list[str]:
        """Signals them, each through a pidfd; returns what the kernel refused, in words."""
        refused: list[str] = []
        for identity in identities:
            grip = hold(identity, self.proc)
            if grip is None:
                continue
            with grip:
                try:
                    grip.send(number)
                except PermissionError:
                    refused.append(f"process {identity.pid} belongs to another user; the post-stop hook will end it")
        return refused


def reap_adopted(own: Collection[int]) -> None:
    """Collects ended children that are not ``own``, which others wait for: grandchildren that became ours."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
