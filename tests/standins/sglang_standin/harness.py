"""Start a stand-in server from a test, look at it, and end exactly what it started."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PROGRAM = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.01)


def living(pid: int) -> bool:
    """Exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Engine:
    """One stand-in server under test."""

    def __init__(self, folder: Path, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.folder = folder
        self.pid_file = folder / f"pids.{self.port}"
        self.log_file = folder / f"log.{self.port}"
        command = [sys.executable, "-I", str(PROGRAM), "--no-devices", "--port", str(self.port)]
        command += ["--pids", str(self.pid_file), *arguments]
        with self.log_file.open("wb") as log:
            environment = {**os.environ, "NVML_STANDIN_DIR": str(folder)}
            environment.pop("CUDA_VISIBLE_DEVICES", None)
            self.process = subprocess.Popen(command, stderr=log, env=environment, start_new_session=True)

    @property
    def log(self) -> str:
        return self.log_file.read_bytes().decode(errors="replace")

    def pids(self) -> dict[str, int]:
        wait_for(self.pid_file.exists)
        rows = (line.split() for line in self.pid_file.read_text().splitlines())
        return {name: int(pid) for name, pid in rows}

    def holdings(self) -> dict[int, tuple[int, int]]:
        """{pid: (GPU index, bytes)} from the stand-in's ledger."""
        found = {}
        for path in (self.folder / "alloc").glob("[0-9]*"):
            index, size = path.read_text().split()
            found[int(path.name.partition(".")[0])] = (int(index), int(size))
        return found

    def ask(self, path: str, body: object = None, key: str = "", timeout: float = 3.0) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            data = None if body is None else json.dumps(body)
            connection.request("GET" if data is None else "POST", path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def health(self) -> int:
        """Status of /health; 0 when nothing listens."""
        try:
            return self.ask("/health")[0]
        except ConnectionRefusedError:
            return 0

    def ready(self) -> Engine:
        wait_for(lambda: "fired up and ready to roll" in self.log)
        return self

    def logged(self, text: str) -> None:
        wait_for(lambda: text in self.log)

    def end(self) -> None:
        """Kill exactly the processes this engine started."""
        wait_for(lambda: self.pid_file.exists() or self.process.poll() is not None)
        pids = set(self.pids().values()) if self.pid_file.exists() else set()
        for pid in pids | {self.process.pid}:
            if living(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(5)

    def wait(self, seconds: float = 5.0) -> int:
        return self.process.wait(seconds)

    def all_gone(self) -> None:
        wait_for(lambda: not any(living(pid) for pid in self.pids().values()))
