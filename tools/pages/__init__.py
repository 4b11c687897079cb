"""Makes what is written from code: man pages, shell completion, JSON schemas, example configs, example pictures.

``python -m tests.test_docs`` writes them, and a test holds them equal to the code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpu_lifecycle.cli import parser
from gpu_lifecycle.rules.examples import EXAMPLES, example_config

from . import bash, dashboard, fish, man, metrics, schemas, timeline, zsh
from .commands import read

FOLDERS = ("docs/man", "docs/schema", "completions", "config")  # nothing else is in these

COMPLETIONS = {"gpu-lifecycle.bash": bash.script, "_gpu-lifecycle": zsh.script, "gpu-lifecycle.fish": fish.script}


def pages() -> dict[str, Callable[[], str]]:
    """Each page by its path from the root of the checkout, with what makes its text."""
    top = read(parser())
    return {
        **{f"docs/man/{name}": make for name, make in man.pages(top).items()},
        **{f"docs/schema/{name}": make for name, make in schemas.pages().items()},
        **{f"completions/{name}": partial(script, top) for name, script in COMPLETIONS.items()},
        "docs/metrics.md": metrics.page,
        "docs/prometheus/dashboard.json": dashboard.page,
        "docs/timeline.md": timeline.page,
        "docs/timeline.svg": timeline.svg,
        **{f"config/{item.unit}.toml": partial(example_config, name) for name, item in EXAMPLES.items()},
    }
