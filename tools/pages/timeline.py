"""docs/timeline.svg and docs/timeline.md: the picture of a start, of a run that is made up here."""

from __future__ import annotations

from gpu_lifecycle.rules.timeline_svg import svg as drawn
from gpu_lifecycle.rules.timeline_text import chart

from .start_examples import WHEN, usual

PAGE = """# The start as a picture

`gpu-lifecycle timeline UNIT` shows where the time of a start went: its phases, the steps of the engine by its own lines, the
memory of the unit's own processes on each claimed GPU, and what happened when. Without `--run ID` it is the last run that was
ready or has ended; `gpu-lifecycle runs UNIT` lists them.

```sh
gpu-lifecycle timeline sglang-kimi                          # a chart of text, as wide as the terminal
gpu-lifecycle timeline sglang-kimi --svg start.svg          # for a browser or a ticket; - is standard output
gpu-lifecycle timeline sglang-kimi --png start.png          # needs the extra: pip install 'gpu-lifecycle[png]'
gpu-lifecycle timeline sglang-kimi --json                   # all of it as numbers (docs/schema/timeline.json)
```

![The start of a model on eight GPUs](timeline.svg)

Here GPU 5 read its share of the weights more slowly than the others, and the start was none the slower than those before it.

- The **grey band** is of up to five earlier runs that were ready: the least and the most of their mean per GPU. A triangle is
  the READY of one of them.
- The **dotted line** is what READY asks for on each GPU.
- A line with a **gap** (`?` in the chart of text) was not to be seen: NVML gave no answer then. It is never drawn as zero, and
  never joined.
- GPUs that look alike share a row, or a label; one that goes another way is named where it is farthest from the others.

The same on a terminal of 80 columns:

```text
{chart}
```

**What is recorded.** The daemon asks NVML at each look anyway; of that it keeps at most 300 points from the beginning of the
engine to READY or the end, thinned so that steps, peaks and gaps stay. They are written with the run, for the newest 50 starts.
Times are by the monotonic clock: one on the wall that is set meanwhile bends nothing.

| a start that | shows |
| --- | --- |
| was refused in the sweep or before the engine | its phase, what was reaped, why; no memory |
| failed | all of it to the end, with the engine's exit, Xids and the reason as marks |
| was reloaded in its middle | all of it, and the reload as a mark; after a version without recordings, *recorded from here* |
| is still going on | all of it, up to some 5 s ago |
| lost its daemon to SIGKILL before READY | all of it but its last seconds, 5 at most, and that these are missing |

Picture and chart are made from a fixed example by `make docs`.
"""


def svg() -> str:
    return drawn(usual(), WHEN)


def page() -> str:
    return PAGE.format(chart="\n".join(chart(usual(), WHEN, 80)))
