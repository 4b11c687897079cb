"""Evidence of a failing run, kept before anything of it is signalled: what is signalled has nothing to show any more.

One folder for each incident below ``/var/lib/gpu-lifecycle/NAME/incidents``, the newest ten. Bounded in time and size, and
never in the way: what cannot be had or written is left out, and said.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_lifecycle.facts import GpuView, Identity, Layout, UnitName
from gpu_lifecycle.rules.build_locks import places, suspects
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.secrets import Secrets
from gpu_lifecycle.rules.text import printable, redact
from gpu_lifecycle.system.build_locks import find
from gpu_lifecycle.system.files import write_evidence
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.patience import Patience
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.threads import look_closely

SECONDS = 6.0  # for all of it, twice that where it hangs
STACK_SECONDS = 3.0
PROCESSES = 32
KEPT = 10
LIMIT = 256 * 1024  # of one file
LINES = 400


@dataclass(frozen=True, slots=True)
class Scene:
    """What the daemon knows at that moment. ``probes`` are flat rows, oldest first; ``output`` the engine's last lines."""

    why: str
    processes: Mapping[int, Identity]
    view: GpuView | None = None
    probes: Iterable[Mapping[str, object]] = ()
    output: Sequence[str] = ()
    engine: str = ""  # the program, beside which a py-spy may lie
    environment: Mapping[str, str] = field(default_factory=dict)  # the engine's, which says where it builds
    loading_since: float | None = None  # seconds since the epoch; None: it was not loading
    load: Mapping[str, object] = field(default_factory=dict)  # how far the load was


@dataclass
class Evidence:
    """Where one run's evidence goes."""

    layout: Layout
    unit: UnitName
    run: str
    proc: Proc
    secrets: Secrets = field(default_factory=Secrets)  # which are in none of its files
    patience: Patience = field(default_factory=lambda: Patience(SECONDS))

    async def keep(self, scene: Scene, journal: Journal) -> str:
        """Gathers it and tells so; returns the folder, "" where nothing is kept. It fails nothing: a run has to end."""
        try:
            folder, locks = await asyncio.to_thread(self.gather, scene)
        except OSError as error:
            journal.tell(Event("sight-partial", f"no evidence of this is kept: {error}"))
            return ""
        journal.tell(Event("evidence-kept", f"evidence of this is kept in {folder}"))
        if locks:
            journal.tell(Event("build-locked", f"the load may have waited for a lock: {locks}"))
        return folder

    def gather(self, scene: Scene) -> tuple[str, str]:
        """Keeps it; returns the folder, and what is known of locks that may have held a load up.

        Raises OSError where that cannot be done, also in time.
        """
        return self.patience.one(os.getpid(), lambda _: self._gather(scene))

    def _gather(self, scene: Scene) -> tuple[str, str]:
        now = datetime.datetime.now(datetime.UTC)
        name = f"{now:%Y%m%dT%H%M%S.%f}Z-{''.join(c for c in self.run if c.isalnum())[:8]}"
        processes = self._processes(scene.processes)
        document: dict[str, Any] = {
            "schema": 1,
            "unit": self.unit.service,
            "run": self.run,
            "at": now.isoformat(timespec="seconds"),
            "why": printable(scene.why, 2000),
            "load": dict(scene.load) or None,
            "processes": processes,
            "gpus": _gpus(scene.view),
            "probes": list(scene.probes),
        }
        locks = self._locks(scene)
        document["locks"] = locks
        stacks = "\n".join(map(redact, _stacks(list(scene.processes), scene.engine).split("\n")))  # py-spy shows command lines
        files = {
            "incident.json": json.dumps(document, indent=1),
            "output.txt": "\n".join(redact(printable(line, 1000)) for line in scene.output[-LINES:]),
            "stacks.txt": stacks,
        }
        folder = f"{self.layout.var_dir(self.unit)}/incidents"
        shown = {file: self.secrets.hide(text.encode("utf-8", "backslashreplace")) for file, text in files.items() if text}
        kept = {file: data[:LIMIT] for file, data in shown.items()}
        write_evidence(folder, name, kept, KEPT)
        return f"{folder}/{name}", locks

    def _locks(self, scene: Scene) -> str:
        if scene.loading_since is None:
            return ""
        found = find(places(scene.environment), self.proc)
        return suspects(found, scene.loading_since, scene.processes, time.time())

    def _processes(self, processes: Mapping[int, Identity]) -> list[dict[str, Any]]:
        return [self._process(identity) for _, identity in sorted(processes.items())[:PROCESSES]]

    def _process(self, identity: Identity) -> dict[str, Any]:
        stat = self.proc.stat(identity.pid)
        threads = look_closely(identity, self.proc).threads
        where = Counter(f"{thread.state} {thread.where or 'running'}" for thread in threads)
        title = self.proc.title(identity.pid, stat) if stat else ""
        return {
            "pid": identity.pid,
            "title": title,
            "state": stat.state if stat else "",
            "threads": dict(where.most_common(20)),
        }


def _gpus(view: GpuView | None) -> list[dict[str, object]]:
    if view is None:
        return []
    if view.error:
        return [{"error": view.error.text}]
    return [
        {
            "uuid": gpu.uuid,
            "index": gpu.index,
            "label": gpu.label,
            "memory_total": gpu.total,
            "memory_used": gpu.used,
            "processes": [[entry.pid, entry.memory] for entry in gpu.processes or ()],
            "error": gpu.error.text if gpu.error else None,
        }
        for gpu in view.gpus
    ]


def _stacks(pids: Sequence[int], engine: str) -> str:
    """Python stacks of the processes, where py-spy lies beside the engine's program or in PATH, and may look."""
    beside = os.path.join(os.path.dirname(engine), "py-spy")
    program = beside if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if not program:
        return ""
    until, parts = time.monotonic() + STACK_SECONDS, []
    for pid in sorted(pids)[:PROCESSES]:
        left = until - time.monotonic()
        if left <= 0:
            parts.append("out of time\n")
            break
        parts.append(_stack(program, pid, left))
    return "\n".join(parts)


def _stack(program: str, pid: int, seconds: float) -> str:
    words = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(words, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"process {pid}: {error}\n"
    return f"process {pid}:\n" + (done.stdout or done.stderr).decode("utf-8", "backslashreplace")
