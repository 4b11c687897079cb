"""A managed unit on a test machine: its config, its engine, and what its journal says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.machine import Machine

UNIT = "sglang-kimi.service"
CONFIG = "/etc/gpu-lifecycle/sglang-kimi.toml"
ENGINE = "/opt/gpu-lifecycle/standins/sglang_standin"
HOLDER = "/usr/local/libexec/gpu-holder"
GIB = 1 << 30


@dataclass
class Site:
    """One machine with sglang-kimi installed; options go to the stand-in engine."""

    machine: Machine
    options: list[str] = field(default_factory=list)
    planted: list[int] = field(default_factory=list)
    since: list[str] = field(default_factory=list)  # what journalctl needs to show this test's lines only

    def configure(self, *engine: str, tp: int = 8, port: int = 30000, extra: str = "", policy: str = "dedicated") -> None:
        """Writes the config; ``extra`` is more TOML, whole tables."""
        words = ["/usr/bin/python3", "-I", ENGINE, "--model-path", "/models/kimi", "--tp", str(tp), "--port", str(port)]
        words += ["--log-level-http", "warning", "--load-seconds", "1", "--warmup-seconds", "0.3", *engine]
        text = f"""
[server]
engine = "sglang"
command = {json.dumps(words)}
[gpus]
claim = "all"
count = {tp}
[sweep]
policy = "{policy}"
term_grace = "2s"
exit_deadline = "5s"
memory_deadline = "6s"
"""
        self.machine.write(CONFIG, text + (extra or '[watch]\ninterval = "500ms"\ntimeout = "2s"\n[stop]\ndrain = "5s"\n'))

    def ask(self, *words: str, user: str | None = None) -> str:
        """What a command prints, whatever its exit status."""
        return str(self.machine.run(list(words), check=False, user=user).stdout)

    def systemctl(self, verb: str, *words: str, check: bool = True, timeout: float = 60) -> str:
        done = self.machine.run(["systemctl", verb, UNIT, *words], check=check, timeout=timeout)
        return str(done.stdout)

    def start(self, *, wait: bool = True) -> None:
        self.systemctl("start", *([] if wait else ["--no-block"]))

    def start_and_fail(self) -> None:
        self.systemctl("start", check=False)

    def stop(self) -> None:
        self.systemctl("stop")

    def show(self, name: str) -> str:
        done = self.machine.run(["systemctl", "show", UNIT, "-P", name], check=True)
        return str(done.stdout).strip()

    def state(self) -> str:
        return self.show("ActiveState")

    def wait_state(self, *states: str, timeout: float = 30) -> None:
        self.machine.wait(lambda: self.state() in states, timeout, f"{UNIT} to be {' or '.join(states)}")

    def cli(self, *words: str, check: bool = False) -> dict[str, Any]:
        """The JSON of one of our own commands, run as root in the machine."""
        done = self.machine.run(["gpu-lifecycle", *words, "--json"], check=check, timeout=60)
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def events(self, word: str = "") -> list[dict[str, Any]]:
        """Our events in the unit's journal since the test began, in order; one kind, or all."""
        lines = self.machine.journal(UNIT, "-b", *self.since)
        ours = [line for line in lines if line.get("GPU_LIFECYCLE_EVENT")]
        return [line for line in ours if not word or line["GPU_LIFECYCLE_EVENT"] == word]

    def messages(self, word: str = "") -> str:
        return "\n".join(str(line["MESSAGE"]) for line in self.events(word))

    def orphan(self, *options: str, gpu: int = 1, gib: int = 76) -> int:
        """A process that nobody answers for: daemonised, in no unit, with memory on one GPU. Returns its pid there."""
        words = ["--gpu", str(gpu), "--ctl", "--uvm", "--memory", f"{gpu}={gib * GIB}", "--daemonize", *options]
        pid = self.plant("orphan", *words)
        self.machine.wait(lambda: self.parent(pid) == 1, 10, "the orphan to be one")
        return pid

    def parent(self, pid: int) -> int:
        return int(self.ask("cat", f"/proc/{pid}/stat").rpartition(")")[2].split()[1])

    def plant(self, name: str, *words: str, program: str = HOLDER) -> int:
        pidfile = f"/run/{name}.pid"
        self.ask("rm", "-f", pidfile)
        line = shlex.join([program, *words, "--pidfile", pidfile])
        self.machine.run(["sh", "-c", f"{line} >/dev/null 2>&1 </dev/null"], check=True)  # or it would keep our pipe open
        return self.planted_pid(pidfile)

    def planted_pid(self, pidfile: str) -> int:
        self.machine.wait(lambda: bool(self.ask("cat", pidfile).strip()), 10, f"{pidfile} to be written")
        pid = int(self.machine.read(pidfile))
        self.planted.append(pid)
        return pid

    def service_holder(self, unit: str, *words: str, program: str = HOLDER, properties: tuple[str, ...] = ()) -> int:
        """A holder that is the main process of a live service of its own."""
        options = [word for item in properties for word in ("-p", item)]
        self.machine.run(["systemd-run", "--quiet", "--collect", f"--unit={unit}", *options, program, *words], check=True)
        pid = int(str(self.machine.run(["systemctl", "show", unit, "-P", "MainPID"], check=True).stdout))
        self.machine.wait(lambda: self.holds(pid), 10, f"{unit} to hold its GPU")
        self.planted.append(pid)
        return pid

    def service_holder_free(self, unit: str, *words: str) -> int:
        """A live service that listens on a port and holds no GPU."""
        self.machine.run(["systemd-run", "--quiet", "--collect", f"--unit={unit}", HOLDER, *words], check=True)
        pid = int(str(self.machine.run(["systemctl", "show", unit, "-P", "MainPID"], check=True).stdout))
        port = words[words.index("--listen") + 1]
        self.machine.wait(lambda: port in self.ask("ss", "-Hltn"), 10, f"{unit} to listen")
        self.planted.append(pid)
        return pid

    def holds(self, pid: int) -> bool:
        return "/dev/nvidia" in self.ask("sh", "-c", f"ls -l /proc/{pid}/fd")

    def alive(self, pid: int) -> bool:
        """True while the process has a thread that runs; a zombie is gone."""
        text = self.ask("cat", f"/proc/{pid}/stat")
        return bool(text) and text.rpartition(")")[2].split()[0] not in ("Z", "X")

    def engine_pids(self) -> list[int]:
        """Processes in the unit's cgroup."""
        return [int(line) for line in self.ask("cat", f"/sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs").split()]

    def workers(self) -> dict[int, int]:
        """Pid of each scheduler by its rank, from their titles."""
        found: dict[int, int] = {}
        for pid in self.engine_pids():
            title = self.ask("sh", "-c", f"tr '\\0' ' ' < /proc/{pid}/cmdline")
            if title.startswith("sglang::scheduler_TP"):
                found[int(title.split("_TP")[1].split()[0])] = pid
        return found

    def used(self) -> int:
        """Bytes used on all GPUs, as NVML says."""
        return sum(gpu["memory_used"] for gpu in self.cli("gpus")["gpus"])

    def kill(self, *pids: int, number: str = "KILL") -> None:
        """Exactly these processes, by pid inside the machine."""
        self.ask("sh", "-c", f"kill -{number} {shlex.join(str(pid) for pid in pids)}")

    @contextmanager
    def drop_in(self, text: str) -> Iterator[None]:
        """The unit with other settings, for as long as the block lasts."""
        folder = f"/run/systemd/system/{UNIT}.d"
        self.machine.write(f"{folder}/test.conf", text)
        self.machine.run(["systemctl", "daemon-reload"])
        try:
            yield
        finally:
            self.systemctl("stop", check=False)
            self.machine.run(["rm", "-r", folder])
            self.machine.run(["systemctl", "daemon-reload"])

    def begin(self) -> None:
        """From here on, ``events`` are those of this test."""
        shown = self.ask("journalctl", "-n", "1", "-o", "cat", "--show-cursor")
        self.since = [f"--after-cursor={shown.rpartition('-- cursor: ')[2].strip()}"]

    def reset(self) -> None:
        """Back to a machine where nothing runs: for the next test."""
        self.systemctl("stop", check=False)
        self.systemctl("reset-failed", check=False)
        if any(self.alive(pid) for pid in self.planted):
            self.kill(*self.planted)
        self.planted.clear()
        self.machine.nvml.clear("error")
        self.machine.nvml.clear("delay")
        self.machine.nvml.clear("hidden")
        self.machine.nvml.clear("process")
        self.machine.nvml.clear("linger")
        self.machine.nvml.clear("health")

    def engine_main(self) -> int:
        """The engine's main process, from the state file."""
        state = json.loads(self.machine.read("/run/gpu-lifecycle/sglang-kimi/state.json"))
        return int(state["engine_pid"])
