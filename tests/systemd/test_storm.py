"""Hundreds of sweeps while the machine forks, executes and dies around them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.systemd.site import Site

pytestmark = pytest.mark.machine

INSIDE = Path(__file__).parent / "inside"
SWEEPS = 500


def plant(site: Site, number: int) -> int:
    return site.plant(f"orphan{number}", "--gpu", "1", "--uvm", "--memory", "1=1073741824", "--daemonize")


def test_many_sweeps_in_a_storm(site: Site) -> None:
    """No innocent gets a signal, no leftover stays, no descriptor is lost."""
    site.machine.copy(INSIDE, "/opt/gpu-lifecycle/inside")
    site.machine.run(["rm", "-f", "/run/churn"])
    site.machine.run(["systemd-run", "--quiet", "--collect", "--unit=churn", "/usr/bin/python3",
                      "/opt/gpu-lifecycle/inside/churn.py", "/run/churn"])  # fmt: skip
    orphans = [plant(site, n) for n in range(5)]
    words = ["/opt/gpu-lifecycle/bin/python", "-IB", "/opt/gpu-lifecycle/inside/many_sweeps.py", str(SWEEPS)]
    with site.machine.popen(words) as sweeper:
        try:
            orphans += [plant(site, n) for n in range(5, 25)]  # while it sweeps
            out, err = sweeper.communicate(timeout=400)
        finally:
            sweeper.kill()
    assert sweeper.returncode == 0, err
    told = json.loads(out)
    assert set(told["reaped"]) == set(orphans)
    assert not any(site.alive(pid) for pid in orphans)
    assert told["descriptors"][0] == told["descriptors"][1]
    assert sum(told["outcomes"].values()) == SWEEPS
    site.machine.run(["systemctl", "stop", "churn"])
    site.machine.wait(lambda: site.ask("cat", "/run/churn"), 20, "the storm to say what became of it")
    born, signalled = map(int, site.machine.read("/run/churn").split())
    assert born > SWEEPS
    assert signalled == 0
