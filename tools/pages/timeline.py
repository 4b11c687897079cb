"""docs/timeline.svg and docs/timeline.md: the picture of a start, of a run that is made up here."""

from __future__ import annotations

from gpu_lifecycle.rules.curve import Curve, Point, further, marked, row
from gpu_lifecycle.rules.timeline import Picture, picture
from gpu_lifecycle.rules.timeline_svg import draw
from gpu_lifecycle.rules.timeline_text import chart, legend

GIB = 1 << 30
# When each band ends, and what one GPU holds then: a large model on eight GPUs.
STORY = (
    ("pre-start", 3.1, 0.0), ("loading", 8.0, 0.0), ("init", 21.0, 0.6), ("distributed", 33.0, 1.9), ("weights", 142.0, 72.9),
    ("kv_cache", 149.0, 119.0), ("graphs", 188.0, 122.5), ("warmup", 196.0, 122.6),
)  # fmt: skip
MARKS = (
    (3.1, "8 processes reaped"), (3.3, "engine started"), (188.5, "port open"), (195.6, "health 200"), (196.0, "READY=1"),
)  # fmt: skip
BEFORE = (203.0, 198.0, 231.0, 190.0)

PAGE = """# The start as a picture

`gpu-lifecycle timeline sglang-kimi` draws the last start, `--run ID` another one (`gpu-lifecycle runs sglang-kimi` has ids),
`--svg FILE` and `--png FILE` a picture for a report; `--png` needs the package `resvg-py`. `--json` gives the numbers.

![The start of a large model on eight GPUs](timeline.svg)

- A **band** for each phase, as long as it took; while the engine loads, its own steps where its log shows them.
- A **line** for each claimed GPU: what the unit's own processes hold on it.
- A **mark** for what happened: leftovers reaped, engine started, port open, health 200, READY=1, or why the run failed.
- The **faint band** behind: when the five starts before that came to READY=1 did so.

On a terminal:

```text
{chart}
```

It is recorded by the daemon's own looks until READY=1 or the end of the run, in at most 120 points, and kept in the history.
After a reload in the middle of a start it begins there. A run that was killed before it was ready, or is older than
this command, has no points: its bands are then the sums of its phases.
"""


def story() -> Picture:
    curve, at = Curve(), 0.0
    while at <= STORY[-1][1]:
        curve = further(curve, Point(at, *_now(at)))
        at += 0.5
    curve = further(curve, Point(STORY[-1][1], "ready", _now(STORY[-1][1])[1]))
    for when, text in MARKS:
        curve = marked(curve, when, text)
    run = {"run": "4f1c0c6d7d3e4b0f8a5b0d0e6f1a2b19", "began": 0.0, "ready_at": 196.0, "curve_gpus": "0,1,2,3,4,5,6,7"}
    return picture("sglang-kimi.service", run | row(curve), [{"began": 0.0, "ready_at": seconds} for seconds in BEFORE])


def _now(at: float) -> tuple[str, tuple[int, ...]]:
    """The band at that moment, and what each of the eight holds: those with a higher index are a little behind."""
    before, held = 0.0, 0.0
    for name, end, amount in STORY:
        if at < end or name == STORY[-1][0]:
            part = min(1.0, (at - before) / (end - before))
            return name, tuple(int(GIB * (held + (amount - held) * part * (1 - 0.01 * gpu * (part < 1)))) for gpu in range(8))
        before, held = end, amount
    raise AssertionError(at)


def svg() -> str:
    return draw(story(), "2026-03-01 08:00:00")


def page() -> str:
    return PAGE.format(chart="\n".join([*chart(story(), 100), *legend(story())]))
