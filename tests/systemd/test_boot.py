"""Machines that boot again, and what install and the journal look like to a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_lifecycle.rules.events import EVENTS
from tests.machine import Machine
from tests.systemd.conftest import new_site
from tests.systemd.site import UNIT, Site

pytestmark = pytest.mark.machine


def test_enabled_rebooted_active_without_help(tmp_path: Path) -> None:
    with Machine(tmp_path, gpus=8) as machine:
        site = new_site(machine)
        machine.run(["gpu-lifecycle", "install", "sglang-kimi", "--enable"], check=True)
        machine.reboot()
        site.wait_state("active", timeout=60)
        assert site.cli("status", "sglang-kimi")["phase"] == "ready"
        machine.kill()  # a power cut, in the middle of everything
        machine.start()
        site.wait_state("active", timeout=60)


def test_install_and_uninstall_leave_no_trace(tmp_path: Path) -> None:
    def tree(machine: Machine) -> set[str]:
        places = ["/etc", "/usr/local", "/var/lib", "/var/cache", "/run"]
        found = machine.run(["find", *places, "-xdev", "-path", "*gpu-lifecycle*", "-o", "-xdev", "-path", "*sglang*"])
        return set(found.stdout.split()) - {"/etc/gpu-lifecycle", "/var/lib/gpu-lifecycle"}  # the disk came with these

    with Machine(tmp_path, gpus=1) as machine:
        before, users = tree(machine), machine.read("/etc/passwd")
        machine.run(["gpu-lifecycle", "install", "sglang-kimi", "--enable"])
        assert tree(machine) > before
        again = machine.run(["gpu-lifecycle", "install", "sglang-kimi", "--enable"])
        assert "nothing to do" in again.stdout
        assert machine.run(["systemctl", "is-enabled", UNIT]).stdout.strip() == "enabled"
        machine.run(["gpu-lifecycle", "uninstall", "sglang-kimi"])
        assert tree(machine) == before
        assert machine.read("/etc/passwd") == users
        assert machine.run(["systemctl", "cat", UNIT], check=False).returncode != 0


def test_journal_has_the_fields_and_the_texts(site: Site) -> None:
    orphan = site.orphan()
    site.start()
    site.stop()
    events = site.events()
    run = events[-1]["GPU_LIFECYCLE_RUN"]
    for event in events:
        kind = EVENTS[event["GPU_LIFECYCLE_EVENT"]]
        assert event["MESSAGE_ID"] == kind.id
        assert event["PRIORITY"] == str(kind.priority)
        assert event["GPU_LIFECYCLE_UNIT"] == UNIT
        assert event["GPU_LIFECYCLE_RUN"] == run
    reaped = site.events("holder-reaped")[0]
    assert reaped["OBJECT_PID"] == str(orphan)
    assert reaped["GPU_LIFECYCLE_VERDICT"] == "reap"
    assert reaped["GPU_LIFECYCLE_GPU"].startswith("GPU-")
    text = site.machine.run(["journalctl", "-u", UNIT, "-x", "--no-pager", *site.since], check=True).stdout
    assert "Defined-By: gpu-lifecycle" in text
    assert f"Process {orphan} was reaped" in text


def test_template_unit(site: Site) -> None:
    """A second unit from the template, on one GPU, beside the first one's config."""
    site.machine.run(["gpu-lifecycle", "install", "gpu-lifecycle@small"], check=True)
    try:
        site.machine.write(
            "/etc/gpu-lifecycle/gpu-lifecycle@small.toml", site.machine.read("/etc/gpu-lifecycle/sglang-kimi.toml")
        )
        site.machine.run(["systemctl", "start", "gpu-lifecycle@small"], check=True, timeout=60)
        assert site.machine.run(["systemctl", "is-active", "gpu-lifecycle@small"]).stdout.strip() == "active"
        site.machine.run(["systemctl", "stop", "gpu-lifecycle@small"], check=True, timeout=60)
    finally:
        site.ask("systemctl", "stop", "gpu-lifecycle@small")
        site.machine.run(["gpu-lifecycle", "uninstall", "gpu-lifecycle@small"], check=True)
