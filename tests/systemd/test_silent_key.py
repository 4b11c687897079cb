"""The disk of the engine's API key hangs while a unit runs: told once, a reload is refused, and all goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.systemd.site import Site
from tests.systemd.test_keys import FOLDER, KEY, LOADED, configure, seen
from tests.systemd.test_unkillable import MOUNT, Stage

pytestmark = pytest.mark.machine
FILE = "/run/engine.key"


@pytest.fixture
def stage(site: Site) -> Iterator[Stage]:
    """A unit whose engine has its key from elsewhere, and whose daemon reads it in a file that can be moved."""
    made = Stage(site)
    site.machine.write(f"{FOLDER}/engine-key", f"{KEY}\n")
    site.machine.run(["chmod", "-R", "a=rX", FOLDER])
    site.machine.write(FILE, KEY)
    configure(site, FILE)
    with site.drop_in(LOADED):
        try:
            yield made
        finally:
            made.free()
            site.ask("rm", "-f", FILE)


def move_to(site: Site, target: str) -> None:
    """In one step, and without a look at the target, which mv(1) would take."""
    words = "import os, sys; os.symlink(sys.argv[1], sys.argv[2] + '.new'); os.rename(sys.argv[2] + '.new', sys.argv[2])"
    site.machine.run(["python3", "-Ic", words, target, FILE])


def test_a_key_whose_disk_hangs(stage: Stage) -> None:
    site = stage.site
    stage.serve()  # before the start: no later mount of this machine comes into the unit's own namespace
    site.start()
    main, run = site.show("MainPID"), site.show("InvocationID")
    move_to(site, f"{MOUNT}/key")
    site.machine.wait(lambda: bool(site.events("key-silent")), 20, "the silence to be told")
    done = site.machine.run(["systemctl", "reload", "sglang-kimi"], check=False)
    assert done.returncode != 0
    assert "a read of the engine's API key hangs, for its disk does not answer" in site.messages("reload-refused")
    site.machine.run(["sleep", "5"])
    (event,) = site.events("key-silent")
    assert event["MESSAGE"].endswith("the run goes on with the key that was read last")
    assert event["PRIORITY"] == "4"
    assert site.events("pulse-unseen") == site.events("suspect") == site.events("key-read-again") == []
    assert site.cli("status", "sglang-kimi")["phase"] == "ready"
    move_to(site, f"{FOLDER}/engine-key")
    stage.free()
    site.machine.wait(lambda: bool(site.events("key-read-again")), 20, "the key to be read again")
    site.systemctl("reload")
    site.machine.run(["sleep", "2"])
    assert len(site.events("key-read-again")) == len(site.events("key-silent")) == 1
    assert site.events("suspect") == site.events("pulse-unseen") == []
    assert (site.show("MainPID"), site.show("InvocationID"), site.state()) == (main, run, "active")
    assert seen(site) == []
