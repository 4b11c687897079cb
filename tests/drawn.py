"""What the tables are drawn from in tests, and how they are drawn: every text of them can be given."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType

from gpu_lifecycle.facts import Gpu, GpuView, Identity, Judged, Owner, OwnerKind, Process, Sight, Verdict
from gpu_lifecycle.jobs.glance import Glance
from gpu_lifecycle.jobs.screen import unit_block
from gpu_lifecycle.jobs.tables import gpus_table, holders_table, runs_table, sweep_table
from gpu_lifecycle.jobs.top_screen import Choice, screen

GIB = 1 << 30
NOW = 1_800_000_000.0
Drawing = Callable[[Sequence[str]], RenderableType]


def drawn(picture: RenderableType, width: int, height: int = 24, *, colour: bool = False) -> str:
    """As a terminal of that width gets it."""
    file = io.StringIO()
    Console(
        file=file, width=width, height=height, force_terminal=colour, color_system="standard" if colour else None,
        no_color=not colour, legacy_windows=False, _environ={},
    ).print(picture)  # fmt: skip
    return file.getvalue()


def gpu(index: int, used: int | None, name: str = "NVIDIA H200") -> Gpu:
    return Gpu(f"GPU-{index:08x}", index, index, f"00000000:{index:02X}:00.0", name, 140 * GIB, used, ())


VIEW = GpuView((gpu(0, 0), gpu(1, 76 * GIB), gpu(2, None)))


def holder(pid: int, verdict: Verdict, rule: str, owner: Owner, command: str, user: str = "alice") -> Judged:
    process = Process(Identity("boot", pid, 5), 1, "S", command, "/usr/bin/python3", 1000, user, "/", 0, None)
    return Judged(process, owner, verdict, rule, f"why of {rule}", (VIEW.gpus[1].uuid,), {VIEW.gpus[1].uuid: 76 * GIB})


def holders(texts: Sequence[str] = ()) -> list[Judged]:
    """Four kinds, or one of each text."""
    if texts:
        return [holder(9, Verdict.SPARE, "tenant", Owner(OwnerKind.CONTAINER, text), text, text) for text in texts]
    return [
        holder(4711, Verdict.REAP, "orphan", Owner(OwnerKind.NONE), "python -m sglang.launch_server --tp 8"),
        holder(812, Verdict.SPARE, "bystander", Owner(OwnerKind.UNIT, "nvidia-persistenced.service"), "nvidia-persistenced"),
        holder(5150, Verdict.CONFLICT, "tenant", Owner(OwnerKind.CONTAINER, "docker:4f1c2a9e77aa"), "/opt/[red]x[/] :bomb:"),
        holder(1, Verdict.IGNORE, "init", Owner(OwnerKind.UNIT, "init.scope"), "/sbin/init"),
    ]


def unit(phase: str, text: str, **more: Any) -> dict[str, Any]:
    """A document of ``status --json``."""
    empty: dict[str, Any] = {
        "run": None, "since": None, "progress": None, "eta": None, "gpus": [], "probes": [], "last_end": None,
    }
    return {"schema": 1, "unit": "sglang-kimi.service", "phase": phase, "text": text, "systemd": None, **empty, **more}


def rows(own: int | None, used: int | None) -> list[dict[str, Any]]:
    return [
        {"uuid": f"GPU-{index}", "index": index, "label": str(index), "memory_total": 140 * GIB, "memory_used": used,
         "memory_own": own}
        for index in range(2)
    ]


SYSTEMD = {"load": "loaded", "active": "activating", "sub": "start", "result": "success", "restarts": 2}
LOADING = unit(
    "loading", "loading weights 43% (31.2 of 72.9 GiB on each of 2 GPUs), about 92 s left", since=NOW - 43.2, progress=0.43,
    eta=92.1, systemd=SYSTEMD, gpus=rows(31 * GIB, 40 * GIB),
    probes=[{"probe": "health", "ok": False, "code": None, "text": "nobody listens yet", "seconds": 0.004}],
)  # fmt: skip
READY = unit(
    "ready", "ready: kimi on 2 GPUs", since=NOW - 7200, progress=1.0, eta=0.0, gpus=rows(72 * GIB, 72 * GIB),
    systemd=SYSTEMD | {"active": "active", "sub": "running"},
    probes=[{"probe": "health", "ok": True, "code": 200, "text": "status 200", "seconds": 0.012},
            {"probe": "metrics", "ok": None, "code": None, "text": "running 3, queued 0", "seconds": None}],
    last_end={"reason": "success", "text": "stopped: all processes of the engine have ended"},
)  # fmt: skip
FAILED = unit(
    "failed", "the memory of a GPU ran out (cuda-oom)", since=NOW - 5, gpus=rows(None, None),
    last_end={"reason": "exit-code", "text": 'failed: the engine exited with status 1; it said: "CUDA out of memory [/]"'},
)  # fmt: skip
ODD = unit("no-such-phase", "x", since=-1, progress=7, eta=True, gpus=[{}, {"memory_used": 9, "memory_total": 3}], probes=[{}])


def status(texts: Sequence[str] = ()) -> RenderableType:
    if not texts:
        return Group(*(unit_block(item, NOW) for item in (LOADING, READY, FAILED, unit("down", "never started"), ODD)))
    probes = [{"probe": text, "ok": True, "code": 1, "text": text, "seconds": 1} for text in texts]
    items = [unit("loading", text, probes=probes, last_end={"reason": text, "text": text}, run=text) for text in texts[:2]]
    return Group(*(unit_block(item | {"unit": item["text"], "phase": item["text"]}, NOW) for item in items))


def gpus(texts: Sequence[str] = ()) -> RenderableType:
    found = [
        {
            "uuid": text or f"GPU-{number}", "index": number, "label": str(number),
            "minor": number, "pci": text or "00000000:18:00.0",
            "name": text or "NVIDIA H200", "instance_of": None, "divided": False, "memory_total": 140 * GIB,
            "memory_used": 3 * GIB, "memory_unexplained": None, "health": {"state": "warn", "reasons": [text or "ECC is off"]},
            "claimed_by": [text or "sglang-kimi.service"],
        }
        for number, text in enumerate(texts or ["", ""])
    ]  # fmt: skip
    return gpus_table(found)


def swept(texts: Sequence[str] = ()) -> RenderableType:
    said = texts[0] if texts else "in the way: process 5150"
    return sweep_table("conflict", said, holders(texts), {4711: "killed"})


def past(texts: Sequence[str] = ()) -> RenderableType:
    first = ["4f1c2a9e", "2026-12-02 15:04:05", "pre-start 1.2s, loading 2min 3s", "failed", "cuda-oom: CUDA out of memory"]
    return runs_table([[text] * 5 for text in texts] or [first, ["5a", "2026-12-02 16:00:00", "", "running", ""]])


def held(texts: Sequence[str] = ()) -> RenderableType:
    return holders_table(holders(texts), VIEW, Sight(tuple(texts) or ("12 processes could not be read",)))


def seen(texts: Sequence[str] = ()) -> Glance:
    names = texts or ["sglang-kimi.service"]
    units = tuple(item | {"unit": names[0], "text": names[-1]} for item in (LOADING, READY)) if texts else (LOADING, FAILED)
    return Glance(VIEW.gpus, tuple(holders(texts)), units, tuple(texts[:3]))


def whole(texts: Sequence[str] = ()) -> RenderableType:
    """``top`` on 24 lines, a holder chosen."""
    chosen = Choice(unit="sglang-kimi", root=True, holder=Identity("boot", 4711, 5), note=texts[0] if texts else "")
    title = texts[0] if texts else "gpu-lifecycle top - gpu-node - 12:34:56"
    return screen(seen(texts), chosen, 24, title, NOW)


DRAWINGS: dict[str, Drawing] = {"status": status, "holders": held, "gpus": gpus, "sweep": swept, "runs": past, "top": whole}
