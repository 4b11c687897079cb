"""One machine for all tests of this folder that do not reboot; each test finds it clean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import Machine
from tests.systemd.site import ENGINE, Site

STANDINS = Path(__file__).parent.parent / "standins"


def new_site(machine: Machine) -> Site:
    """Installs sglang-kimi on a booted machine, by our own ``install``."""
    machine.copy(STANDINS / "sglang_standin", ENGINE)
    machine.run(["gpu-lifecycle", "install", "sglang-kimi"], check=True, timeout=60)
    site = Site(machine)
    site.configure()
    return site


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Machine(tmp_path_factory.mktemp("machine"), gpus=8) as machine:
        site = new_site(machine)
        machine.write("/etc/systemd/system/sglang-kimi.service.d/quick.conf", "[Service]\nRestartSec=1s\n")
        machine.run(["systemctl", "daemon-reload"])
        yield site


@pytest.fixture
def site(installed: Site) -> Iterator[Site]:
    installed.configure()
    installed.begin()
    yield installed
    installed.reset()
