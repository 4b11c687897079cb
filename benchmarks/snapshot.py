"""The NVML helper: one look at all GPUs once it is warm, and its memory. The stand-in reads its files anew at each call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from .bench import HOME, INSIDE, PYTHON, Bench, must
from .rows import MB, Row

SNAPSHOT = [PYTHON, "-IB", f"{HOME}/snapshot.py"]


def rows(bench: Bench) -> Iterator[Row]:
    bench.machine.copy(INSIDE / "snapshot.py", SNAPSHOT[-1])
    seen = json.loads(str(bench.machine.run(SNAPSHOT, timeout=60).stdout))
    must(seen["gpus"] == 8, f"a look saw {seen['gpus']} GPUs")
    times = seen["seconds"]
    span = f"{len(times)} looks; {min(times) * 1000:.1f} to {max(times) * 1000:.1f} ms, the stand-in's own time included"
    yield Row("one look at 8 GPUs by a warm NVML helper", median(times), "s", limit=0.02, detail=span)
    yield Row("NVML helper, memory (RSS)", seen["resident"], "B", limit=25 * MB, detail="between two looks")
