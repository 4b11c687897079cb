"""A machine to start, enter, cut the power of, and take away without a trace."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import registry
from .disk import Disk
from .enter import Entered, Entrance, inner_pid
from .nodes import Nodes
from .nvml import HOME, PLACE, Nvml
from .project import install
from .standins import install_standins

BOOT = Path(__file__).with_name("boot.py")


class Machine:
    """A systemd of its own; as a context it is booted on entering and gone on leaving."""

    def __init__(
        self,
        tmp_dir: Path,
        *,
        gpus: int = 8,
        uvm: bool = True,
        hostname: str = "gpu-node",
        users: Mapping[str, int] | None = None,
        driver: str = "595.71.05",
        lower: Path = Path("/"),
        boot_timeout: float = 60,
        shown: Mapping[str, Path] | None = None,
    ) -> None:
        """``shown``: folders from outside that are too large to copy, read-only, by their place in the machine."""
        registry.erase_the_dead()
        self.lower = lower
        self.hostname = hostname
        self.boot_timeout = boot_timeout
        self.nodes = Nodes(gpus, uvm)
        self.nvml = Nvml(self, gpus, driver)
        self._record = registry.Record(_disk_folder(tmp_dir))
        self.disk = Disk(self._record.disk, lower)
        self._starter: subprocess.Popen[str] | None = None
        self._entrance: Entrance | None = None
        self._counter = itertools.count(1)
        try:
            self._create({"alice": 1000, **(users or {})}, shown or {})
        except BaseException:
            self._record.erase()
            raise

    def _create(self, users: dict[str, int], shown: Mapping[str, Path]) -> None:
        self.disk.create(self.hostname, users)
        self._binds = [*install(self.disk), *((str(path), place) for place, path in shown.items())]
        for place in shown:
            self.disk.path(place).mkdir(mode=0o755, exist_ok=True)
        install_standins(self.disk)
        self.disk.link(HOME, PLACE)

    # its life

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Boot, and wait until the boot is over (running or degraded)."""
        self._record.cgroup.mkdir(exist_ok=True)
        self.disk.new_boot()
        spec = self._record.disk / "spec.json"
        spec.write_text(json.dumps(self._spec()))
        self._starter = subprocess.Popen(
            [sys.executable, "-ISB", str(BOOT), str(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._starter.stdout is not None
        answer = self._starter.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"the machine's starter failed\n{self.console()}")
        self._entrance = Entrance(int(answer), self._record.cgroup)
        self._wait_until_up()

    def kill(self) -> None:
        """The power goes: everything in it ends at once."""
        if self._entrance is not None and self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._wait_until_down(30)

    def stop(self) -> None:
        """End it and remove its disk, its cgroup and its record."""
        self.kill()
        self._record.erase()

    def poweroff(self, timeout: float = 120) -> None:
        """Shut down in order, as `systemctl poweroff` does; the disk stays for the next start()."""
        self._shut_down("poweroff", timeout)

    def reboot(self, timeout: float = 120) -> None:
        """Shut down in order, then boot again on the same disk."""
        self._shut_down("reboot", timeout)
        self.start()

    def alive(self) -> bool:
        return self._starter is not None and self._starter.poll() is None

    @property
    def pid(self) -> int:
        """Its pid 1, as seen from outside."""
        return self.entrance.pid

    @property
    def entrance(self) -> Entrance:
        if self._entrance is None:
            raise RuntimeError("the machine is down")
        return self._entrance

    @property
    def cgroup(self) -> Path:
        """The root of its control groups, as seen from outside."""
        return self._record.cgroup

    def console(self) -> str:
        """What its console showed, of all its boots."""
        try:
            return (self._record.disk / "console.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    # commands and files

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        timeout: float = 60,
        user: str | None = None,
        input: str | None = None,  # noqa: A002 -- the name that subprocess.run has
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; one that fails shows what it said."""
        result = self.entrance.run(argv, user=user, text=input, timeout=timeout)
        if check and result.returncode != 0:
            error = subprocess.CalledProcessError(result.returncode, result.args, result.stdout, result.stderr)
            error.add_note(f"{result.stdout}{result.stderr}")
            raise error
        return result

    def popen(self, argv: Sequence[str], *, user: str | None = None) -> Entered:
        """Start a command; it gets the signals sent to what is returned, and ends with this process."""
        return self.entrance.popen(argv, user=user)

    def run_in_unit(
        self, unit: str, argv: Sequence[str], properties: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Start a command as a transient service."""
        options = [f"--property={key}={value}" for key, value in (properties or {}).items()]
        return self.run(["systemd-run", f"--unit={unit}", "--collect", "--quiet", *options, "--", *argv])

    def login_session(self, user: str, argv: Sequence[str], timeout: float = 30) -> str:
        """Run a command in the background of a login session, as logind has it; returns the session's scope unit."""
        out = f"/run/login-session-{next(self._counter)}"
        line = f"grep ^0:: /proc/self/cgroup; exec {shlex.join(argv)}"
        su = ["su", "-l", "-s", "/bin/sh", "-c", line, user]
        self.run(["setsid", "--fork", "sh", "-c", 'exec "$@" < /dev/null > "$0" 2>&1', out, *su])
        place = self.wait(lambda: self.run(["sh", "-c", f"cat {out} || :"]).stdout, timeout, f"a login of {user}")
        scope = str(place).splitlines()[0].rsplit("/", 1)[-1]
        if not (scope.startswith("session-") and scope.endswith(".scope")):
            raise RuntimeError(f"not in a login session: {place}")
        return scope

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """A file, replaced in one step, its folders made."""
        script = 'mkdir -p "$(dirname "$0")" && cat > "$0.new" && chmod "$1" "$0.new" && mv "$0.new" "$0"'
        self.run(["sh", "-c", script, path, f"{mode:o}"], input=text)

    def read(self, path: str) -> str:
        return self.run(["cat", "--", path]).stdout

    def copy(self, host_path: Path | str, machine_path: str) -> None:
        """A file or a folder from outside, with its modes, owned by root."""
        source, target = Path(host_path), Path(machine_path)
        self.run(["mkdir", "-p", str(target.parent)])
        names = ["-C", str(source), "."] if source.is_dir() else ["-C", str(source.parent), source.name]
        rename = [] if source.is_dir() else [f"--transform=s|.*|{target.name}|"]
        folder = target if source.is_dir() else target.parent
        self.run(["mkdir", "-p", str(folder)])
        pack = subprocess.run(["tar", "-c", *rename, *names], stdout=subprocess.PIPE, check=True).stdout
        words = self.entrance.words(["tar", "-x", "--no-same-owner", "-p", "-C", str(folder)])
        subprocess.run(words, input=pack, check=True, timeout=60)

    def make_node(self, path: str, major: int, minor: int, mode: int = 0o666) -> None:
        self.run(["mknod", "-m", f"{mode:o}", path, "c", str(major), str(minor)])

    def remove_node(self, path: str) -> None:
        self.run(["rm", "--", path])

    def enter_command(self) -> str:
        """The shell line by which a person enters the machine."""
        return self.entrance.shell_line()

    # what is to be seen in it

    def host_pid(self, pid: int) -> int:
        """The number outside of a process of the machine."""
        for outside in registry.processes(self.cgroup):
            if inner_pid(outside) == pid:
                return outside
        raise ProcessLookupError(f"no process {pid} in the machine")

    def pids_of_unit(self, unit: str) -> list[int]:
        """The numbers inside of a unit's processes, with those of its sub-groups."""
        group = self.run(["systemctl", "show", "--value", "--property=ControlGroup", unit]).stdout.strip()
        if not group:
            return []
        inner = (inner_pid(pid) for pid in registry.processes(self.cgroup / group.lstrip("/")))
        return sorted(pid for pid in inner if pid is not None)

    def journal(self, unit: str | None = None, *args: str) -> list[dict[str, Any]]:
        """Journal entries, all that was sent before this call, of this boot and those before."""
        self.run(["journalctl", "--sync"])
        chosen = [] if unit is None else [f"--unit={unit}"]
        text = self.run(["journalctl", "--output=json", "--all", *chosen, *args]).stdout
        return [json.loads(line) for line in text.splitlines()]

    def wait(self, condition: Callable[[], Any], timeout: float, what: str) -> Any:
        """Until the condition gives something true, which is returned."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout:g} s: {what}\n{self._last_lines()}")
            time.sleep(0.05)
        return value

    # inner works

    def _last_lines(self) -> str:
        with contextlib.suppress(OSError, subprocess.SubprocessError, RuntimeError):
            return self.run(["journalctl", "--no-pager", "-n", "60"], check=False, timeout=10).stdout
        return self.console()[-4000:]

    def _spec(self) -> dict[str, Any]:
        folder = self._record.disk
        (folder / "devices").write_text(self.nodes.proc_devices())
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        files = {"/proc/devices": "devices", "/proc/sys/kernel/random/boot_id": "boot_id"}
        return {
            "parent": os.getpid(),
            "disk": str(folder),
            "lower": str(self.lower),
            "cgroup": str(self.cgroup),
            "console": str(folder / "console.log"),
            "hostname": self.hostname,
            "init": "/lib/systemd/systemd",
            "binds": self._binds,
            "nodes": self.nodes.all(),
            "proc_files": {target: str(folder / name) for target, name in files.items()},
            "nvml": PLACE,
            "nvml_state": self.nvml.lines,
        }

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + self.boot_timeout
        state = ""
        while self.alive() and time.monotonic() < deadline:
            state = self._system_state()
            if state in ("running", "degraded"):
                return
            time.sleep(0.03)
        problem = f"not up within {self.boot_timeout:g} s ({state})" if self.alive() else "went down during its boot"
        raise RuntimeError(f"the machine is {problem}\n{self.console()[-6000:]}")

    def _system_state(self) -> str:
        if not Path(f"/proc/{self.pid}/root/run/systemd/private").exists():
            return "starting"
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.run(["systemctl", "is-system-running"], check=False, timeout=10).stdout.strip()
        return "silent"

    def _wait_until_down(self, timeout: float) -> None:
        starter, self._starter, self._entrance = self._starter, None, None
        if starter is None:
            return
        with starter:
            starter.wait(timeout)
        registry.remove_cgroup(self.cgroup)

    def _shut_down(self, verb: str, timeout: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.run(["systemctl", "--no-block", verb], check=False, timeout=timeout)
        assert self._starter is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._starter.wait(timeout)
        self.kill()


def _disk_folder(tmp_dir: Path) -> Path:
    """A new folder whose file system an overlay can write to: not another overlay, as in a container."""
    tmp_dir.mkdir(parents=True, exist_ok=True)
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_dir)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    place = "/dev/shm" if kind.startswith("overlay") else str(tmp_dir)
    return Path(tempfile.mkdtemp(prefix="machine-", dir=place))
