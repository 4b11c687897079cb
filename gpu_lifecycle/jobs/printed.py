"""What commands need to list units and to print JSON, without what it takes to look at a machine."""

from __future__ import annotations

import os
from typing import Any

from gpu_lifecycle.facts import Layout, UnitName


def print_json(document: dict[str, Any], indent: int | None = 2) -> None:
    import json

    print(json.dumps(document, indent=indent, ensure_ascii=True), flush=True)


def managed_units(layout: Layout) -> list[UnitName]:
    """Every unit that has a config file."""
    try:
        names = sorted(os.listdir(layout.config_dir))
    except OSError:
        return []
    return [UnitName(name.removesuffix(".toml")) for name in names if name.endswith(".toml")]
