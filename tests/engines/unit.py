"""A managed unit whose engine is a real one, on a test machine: its config, its life, and what its journal says."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.engines.place import GGUF, INSIDE, LIBRARIES, LLAMA_SERVER, LONG, PYTHON, SHIM, TARGET
from tests.machine import Machine
from tests.machine.enter import Entered

READY = 300.0  # seconds; alone on two cores it takes 25 to 60
CLIENT = f"{INSIDE}/client.py"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", **LIBRARIES}
SETTINGS = """
[watch]
interval = "1s"
busy_grace = "20s"
[stop]
drain = "90s"
"""
REQUEST = """
import sys, urllib.error, urllib.request
url, timeout, *body = sys.argv[1:]
asked = urllib.request.Request(url, *(text.encode() for text in body), headers={"Content-Type": "application/json"})
try:
    answer = urllib.request.urlopen(asked, timeout=float(timeout))
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode(), sep="\\n")
"""
LONG_PROMPT = 30000  # tokens; their prefill takes some 5 to 60 seconds on two cores
QUICK = "[Service]\nRestartSec=1s\n"


@dataclass(frozen=True)
class Preset:
    """How one engine is started on a CPU."""

    engine: str
    start: tuple[str, ...]  # the program, up to where the model is named
    options: tuple[str, ...]
    environment: dict[str, str]
    worker: str  # how the titles of those begin that hold a GPU
    port: int
    steps: tuple[str, ...]  # of a load, as its own lines tell them
    victims: tuple[str, ...]  # how the titles begin of those whose death is noticed, beside the main process
    long: tuple[str, ...]  # options for one prompt of LONG_PROMPT tokens, read in one piece where it can be
    model: str = TARGET
    long_model: str = LONG
    memory: int = 512 << 20  # bytes; more than this a worker holds
    settings: str = ""  # more of the config, whole tables
    children: int = 2  # processes of its own when it is well in its load
    drains: bool = True  # whether a SIGTERM lets streams end
    health_waits: bool = False  # whether its health endpoint waits behind a prompt

    def words(self, *more: str, model: str = "") -> list[str]:
        """The whole command line; of options that are said twice the engine takes the last."""
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        return [*self.start, model or self.model, *place, *self.options, *more]


SGLANG = Preset(
    "sglang",
    (PYTHON, "-m", "sglang.launch_server", "--model-path"),
    (
        "--served-model-name", "tiny",
        "--device", "cpu", "--attention-backend", "torch_native", "--mem-fraction-static", "0.05", "--max-total-tokens", "4096",
        "--max-running-requests", "4", "--context-length", "256", "--disable-overlap-schedule", "--enable-metrics",
    ),
    {
        **OFFLINE, "SGLANG_HOST_IP": "127.0.0.1", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    },
    "sglang::scheduler",
    30000,
    ("init", "weights", "kv_cache", "warmup"),
    ("sglang::scheduler", "sglang::detokenizer"),
    ("--context-length", "65536", "--max-total-tokens", "70000", "--chunked-prefill-size", "-1"),
    health_waits=True,
)  # fmt: skip
VLLM = Preset(
    "vllm",
    (PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model"),
    (
        "--served-model-name", "tiny",
        "--max-model-len", "256", "--max-num-seqs", "4", "--dtype", "bfloat16", "--enforce-eager",
        "--shutdown-timeout", "90",
    ),
    {
        **OFFLINE, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    },
    "VLLM::Worker",
    8000,
    ("init", "weights", "kv_cache", "warmup"),
    ("VLLM::Worker", "VLLM::EngineCore"),
    ("--max-model-len", "32768", "--max-num-batched-tokens", "32768", "--no-enable-chunked-prefill"),
)  # fmt: skip
LLAMA_CPP = Preset(
    "llama.cpp",
    (LLAMA_SERVER, "-m"),
    ("--alias", "tiny", "--metrics", "-c", "2048", "-np", "4"),
    {},
    f"{PYTHON} {LLAMA_SERVER}",
    8080,
    ("init", "kv_cache", "warmup"),
    (),
    ("-c", "32768", "-np", "1"),
    model=GGUF,
    long_model=GGUF,
    memory=32 << 20,
    settings='[ready]\nmin_used = "32MiB"\n',
    children=1,
    drains=False,
)


@dataclass
class Unit:
    """One installed unit; ``preset`` is its engine, ``gpus`` its claim."""

    machine: Machine
    name: str
    preset: Preset
    gpus: list[int]
    since: list[str] = field(default_factory=list)  # what journalctl needs to show this test's lines only

    # its config

    def configure(self, *more: str, model: str = "", gpus: list[int] | None = None, extra: str = SETTINGS) -> None:
        """Writes the config; ``more`` goes to the engine, ``extra`` is more TOML, whole tables."""
        claim = self.gpus if gpus is None else gpus
        environment = {**self.preset.environment, "PYTHONPATH": SHIM}
        text = f"""
[server]
engine = "{self.preset.engine}"
command = {json.dumps(self.preset.words(*more, model=model))}
[server.environment]
{"".join(f"{key} = {json.dumps(value)}{chr(10)}" for key, value in environment.items())}
[gpus]
claim = {json.dumps(claim)}
count = {len(claim)}
"""
        self.machine.write(f"/etc/gpu-lifecycle/{self.name}.toml", text + self.preset.settings + extra)

    def bare(self, *more: str, model: str = "", limit: float = READY) -> list[str]:
        """Runs the same command without us, to its end, as root: what it said. Fails the test where it does not end."""
        name = self.start_bare(*more, model=model)
        try:
            running = ("active", "activating", "deactivating")
            self.wait(lambda: self.ask("systemctl", "is-active", name).strip() not in running, limit, f"{name} to end")
        finally:
            self.machine.run(["systemctl", "kill", "-s", "KILL", name], check=False)
        return [str(line["MESSAGE"]) for line in self.machine.journal(f"{name}.service")]

    def start_bare(self, *more: str, model: str = "") -> str:
        """Starts the same command without us, as root, in a unit that nobody watches; its name.

        With the shim: what plays its GPU is a part of the engine here, and costs both sides the same.
        """
        name = f"bare-{self.name}-{time.monotonic_ns()}"
        setting = " ".join(f"{key}={value}" for key, value in (self.preset.environment | {"PYTHONPATH": SHIM}).items())
        properties = {"Environment": setting, "LimitCORE": "0", "KillMode": "mixed"}
        properties |= {"PrivateTmp": "yes", "TemporaryFileSystem": "/dev/shm:mode=1777"}  # what it leaves goes with it
        self.machine.run_in_unit(name, self.preset.words(*more, model=model), properties)
        return name

    # what systemd says and does

    @property
    def service(self) -> str:
        return f"{self.name}.service"

    def ask(self, *words: str, timeout: float = 60) -> str:
        """What a command prints, whatever its exit status."""
        return self.machine.run(list(words), check=False, timeout=timeout).stdout

    def systemctl(self, verb: str, *words: str, check: bool = True, timeout: float = 60) -> None:
        self.machine.run(["systemctl", verb, self.service, *words], check=check, timeout=timeout)

    def show(self, name: str) -> str:
        return self.ask("systemctl", "show", self.service, "-P", name).strip()

    def wait(self, condition: Callable[[], Any], timeout: float, what: str) -> Any:
        """Looks twice a second only: the engine needs the processor."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}\n{self.tail()}"
            time.sleep(0.5)
        return value

    def wait_ready(self) -> None:
        def over() -> bool:
            state = self.show("ActiveState")
            assert state != "failed", self.tail()
            return state == "active"

        self.wait(over, READY, f"{self.service} to be ready")

    def ensure_ready(self) -> None:
        """Started, if it is not; what the test before has left running is as good."""
        if self.show("ActiveState") in ("inactive", "failed"):
            self.systemctl("reset-failed", check=False)
            self.systemctl("start", "--no-block")
        self.wait_ready()

    def begin(self) -> None:
        """From here on, ``events`` are those of this test."""
        shown = self.ask("journalctl", "-n", "1", "-o", "cat", "--show-cursor")
        self.since = [f"--after-cursor={shown.rpartition('-- cursor: ')[2].strip()}"]

    # what is to be seen of it

    def journal(self) -> list[dict[str, Any]]:
        return self.machine.journal(self.service, "-b", *self.since)

    def events(self, word: str = "") -> list[dict[str, Any]]:
        ours = [line for line in self.journal() if line.get("GPU_LIFECYCLE_EVENT")]
        return [line for line in ours if not word or line["GPU_LIFECYCLE_EVENT"] == word]

    def messages(self, word: str = "") -> str:
        return "\n".join(str(line["MESSAGE"]) for line in self.events(word))

    def tail(self) -> str:
        return self.ask("journalctl", "-u", self.service, "-n", "80", "--no-pager", "-o", "cat")

    def cli(self, *words: str) -> dict[str, Any]:
        """The JSON of one of our own commands."""
        document: dict[str, Any] = json.loads(self.ask("gpu-lifecycle", *words, "--json"))
        return document

    def main(self) -> int:
        """The engine's main process."""
        return int(json.loads(self.machine.read(f"/run/gpu-lifecycle/{self.name}/state.json"))["engine_pid"])

    def titles(self) -> dict[int, str]:
        """The unit's processes with their command lines."""
        pids = self.machine.pids_of_unit(self.service)
        script = 'for pid in "$@"; do printf "%s " $pid; tr "\\0" " " < /proc/$pid/cmdline; echo; done 2>/dev/null'
        lines = [line.partition(" ") for line in self.ask("sh", "-c", script, "sh", *map(str, pids)).splitlines()]
        return {int(pid): title.strip() for pid, _, title in lines if title.strip()}

    def titled(self, start: str) -> list[int]:
        return [pid for pid, title in self.titles().items() if title.startswith(start)]

    def alive(self, *pids: int) -> list[int]:
        """Which of these have a thread that runs; a zombie is gone."""
        stats = {pid: self.ask("cat", f"/proc/{pid}/stat").rpartition(")")[2].split() for pid in pids}
        return [pid for pid, words in stats.items() if words and words[0] not in ("Z", "X")]

    def kill(self, *pids: int, number: str = "KILL") -> None:
        self.machine.run(["sh", "-c", f"kill -{number} {shlex.join(map(str, pids))}"])

    def used(self) -> int:
        """Bytes used on the claimed GPUs, as NVML says."""
        return sum(gpu["memory_used"] for gpu in self.cli("gpus")["gpus"] if gpu["index"] in self.gpus)

    # requests

    def http(self, path: str, body: dict[str, Any] | None = None, timeout: float = 60) -> tuple[int, str]:
        """Status and text of one request."""
        url = f"http://127.0.0.1:{self.preset.port}{path}"
        text = [] if body is None else [json.dumps(body, separators=(",", ":"))]  # execve(2) takes 128 KiB
        words = ["python3", "-I", "-c", REQUEST, url, str(timeout), *text]
        code, _, answer = self.ask(*words, timeout=timeout + 20).partition("\n")
        return int(code or 0), answer

    def metrics(self) -> dict[str, float]:
        """Sums of each name on the engine's metrics page."""
        found: dict[str, float] = {}
        for line in self.http("/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    @contextmanager
    def load(self, *words: str) -> Iterator[Entered]:
        """Requests for streams in the background (client.py); what it says is to be read of its stdout."""
        process = self.machine.popen(["python3", "-I", CLIENT, str(self.preset.port), *words])
        with process:
            try:
                yield process
            finally:
                process.kill()
