"""The run ids that a unit has had since the machine booted: what of theirs is alive without a run is left over.

systemd gives each run's processes its id as INVOCATION_ID= (systemd.exec(5)). The list is root's, in a folder that only root
writes: whoever could add to it could have others' processes ended.
"""

from __future__ import annotations

import re

from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.system.files import read_state, write_state

KEPT = 1000  # 36 bytes each
_ID = re.compile(r"[0-9a-f]{32}")  # an sd_id128_t as text (sd-id128(3))


def past_runs(layout: Layout, unit: UnitName) -> frozenset[str]:
    """Every run known, the one that is alive among them. What is no run id is dropped; no list is an empty one."""
    return frozenset(_listed(layout, unit))


def remember(layout: Layout, unit: UnitName, run: str) -> None:
    """Adds a run. Raises LifecycleError where the list cannot be written."""
    if _ID.fullmatch(run):
        kept = [known for known in _listed(layout, unit) if known != run]
        write_state(layout.runs(unit), {"schema": 1, "runs": [*kept[1 - KEPT :], run]})


def _listed(layout: Layout, unit: UnitName) -> list[str]:
    found, _ = read_state(layout.runs(unit))
    runs = found.get("runs") if found else None
    return [run for run in runs if isinstance(run, str) and _ID.fullmatch(run)] if isinstance(runs, list) else []
