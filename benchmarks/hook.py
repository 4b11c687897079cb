"""The pre-start hook on a clean machine: time against ``fuser``, and memory."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from tests.systemd.site import UNIT

from .bench import FILES, PROCESSES, PROGRAM, Bench, must
from .rows import MB, Row

ROUNDS, MEMORY_ROUNDS = 9, 5
HOOK = [PROGRAM, "hook", "pre-start", UNIT]
NODES = [*(f"/dev/nvidia{index}" for index in range(8)), "/dev/nvidiactl", "/dev/nvidia-uvm"]
FUSER = ["fuser", "-v", *NODES]


def rows(bench: Bench) -> Iterator[Row]:
    yield _time(bench)
    yield _memory(bench)


def _time(bench: Bench) -> Row:
    runs = bench.time({"hook": HOOK, "fuser": FUSER}, in_unit=True, rounds=ROUNDS)
    must(all(run["status"] == 0 for run in runs["hook"]), "the hook refused a clean machine")
    must(all(run["status"] == 1 for run in runs["fuser"]), "fuser found somebody on a clean machine")
    hook, fuser = ([run["seconds"] for run in runs[name]] for name in ("hook", "fuser"))
    ratio = median(ours / theirs for ours, theirs in zip(hook, fuser, strict=True))
    return Row(
        "pre-start hook, whole process; peer: fuser -v on the same device nodes",
        median(hook),
        "s",
        peer=median(fuser),
        ratio_limit=3,
        detail=f"{PROCESSES} idle processes with {FILES} open files each; {ROUNDS} rounds, alternating; {_span(hook)}; "
        f"the config has been read before; median of ratios {ratio:.2f}",
    )


def _span(seconds: list[float]) -> str:
    return f"{min(seconds) * 1000:.0f} to {max(seconds) * 1000:.0f} ms"


def _memory(bench: Bench) -> Row:
    """In runs of its own, for looking at a process costs it time."""
    runs = bench.time({"hook": HOOK}, in_unit=True, rounds=MEMORY_ROUNDS, watch_memory=True)["hook"]
    must(all(len(run["peaks"]) == 2 for run in runs), f"the hook is not two programs: {[run['peaks'] for run in runs]}")
    worst = max(runs, key=_peak)
    shown = ", ".join(f"{name.split()[0]} {size / MB:.1f} MB" for name, size in worst["peaks"].items())
    detail = f"sum of both peaks (VmHWM), shared pages counted twice; the worst of {MEMORY_ROUNDS}: {shown}"
    return Row("pre-start hook and NVML helper, peak memory", _peak(worst), "B", limit=60 * MB, detail=detail)


def _peak(run: dict[str, Any]) -> int:
    return sum(run["peaks"].values())
