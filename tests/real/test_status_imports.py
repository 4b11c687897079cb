"""Plain ``status`` pays for no table: rich is imported only where one is drawn."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"rich.table", "rich.live", "rich.console", "httpcore", "gpu_lifecycle.jobs.sweep", "gpu_lifecycle.system.gpu"}


def imported(*words: str) -> set[str]:
    """The modules that a command imports, as the interpreter reports them; its output is a pipe."""
    run = [sys.executable, "-X", "importtime", "-m", "gpu_lifecycle", *words]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("words", [["status"], ["status", "sglang-kimi"], ["status", "--json"], ["status", "a", "--follow"]])
def test_plain_status_imports_nothing_heavy(words: list[str]) -> None:
    found = imported(*words)
    assert "gpu_lifecycle.jobs.status" in found
    assert found & HEAVY == set()


def test_what_is_imported_would_be_seen() -> None:
    assert imported("holders") & HEAVY != set()
