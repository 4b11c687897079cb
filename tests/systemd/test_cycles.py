"""Start and stop again and again, with a fault of some kind in each run: the next start works, and nothing is left or grows.

``CYCLES=200`` in the environment makes the long run; which faults come, and when, follows from ``SEED``.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from tests.systemd.site import Site

pytestmark = pytest.mark.machine
CYCLES = int(os.environ.get("CYCLES", "10"))
SEED = int(os.environ.get("SEED", "20"))


def kill_worker(site: Site, dice: random.Random) -> None:
    site.kill(dice.choice(sorted(site.workers().values())))


def kill_launcher(site: Site, _: random.Random) -> None:
    site.kill(site.engine_main())


def kill_daemon(site: Site, _: random.Random) -> None:
    site.kill(int(site.show("MainPID")))


def kill_helper(site: Site, _: random.Random) -> None:
    site.kill(*map(int, site.ask("pgrep", "-f", "nvml_helper").split()))


def kill_all(site: Site, _: random.Random) -> None:
    site.kill(*site.engine_pids())


def freeze(site: Site, dice: random.Random) -> None:
    """By the kernel's own file: systemd freezes no unit that is still starting, and others (a snapshot) do not ask it."""
    file = f"/sys/fs/cgroup{site.show('ControlGroup')}/cgroup.freeze"
    site.machine.run(["sh", "-c", f"echo 1 > {file}"])
    time.sleep(dice.uniform(0, 2))
    site.machine.run(["sh", "-c", f"echo 0 > {file}"])


def hang_nvml(site: Site, dice: random.Random) -> None:
    site.machine.nvml.set("delay nvmlDeviceGetMemoryInfo_v2 600000")
    time.sleep(dice.uniform(0, 2))


def fill_shm(site: Site, _: random.Random) -> None:
    site.ask("sh", "-c", f"cat /dev/zero > /proc/{site.engine_main()}/root/dev/shm/full")


def stop_worker(site: Site, dice: random.Random) -> None:
    site.kill(dice.choice(sorted(site.workers().values())), number="STOP")


def nothing(_: Site, __: random.Random) -> None:
    """The control: a run without a fault."""


Fault = Callable[[Site, random.Random], None]
FAULTS: tuple[Fault, ...] = (
    kill_worker, kill_launcher, kill_daemon, kill_helper, kill_all, freeze, hang_nvml, fill_shm, stop_worker, nothing,
)  # fmt: skip


def left(site: Site) -> dict[str, object]:
    """What a unit that is down has: of all of this there must be no more after a hundred runs than after one."""
    site.machine.wait(lambda: not site.ask("pgrep", "-f", "nvml_helper"), 20, "no helper of ours to be left")
    return {
        "holders": site.cli("holders")["holders"],
        "memory": site.used(),
        "members": site.engine_pids(),
        "units": site.ask("systemctl", "list-units", "--all", "--no-legend", "--plain", "sglang*", "gpu-life*").split()[:1],
        "run": site.ask("find", "/run/gpu-lifecycle", "-type", "f").split(),
        "shared": site.ask("find", "/dev/shm", "/tmp", "-mindepth", "1", "-newer", "/run/cycles").split(),
        "manager": len(site.ask("ls", "/proc/1/fd").split()),
        "stored": site.show("NFileDescriptorStore"),
    }


def one(site: Site, fault: Fault, dice: random.Random, *, loading: bool) -> None:
    site.start(wait=not loading)
    if loading:
        site.machine.wait(lambda: bool(site.events("engine-started")), 30, "the engine to be started")
        site.machine.wait(lambda: len(site.workers()) == 8, 30, "the workers")
    site.begin()
    fault(site, dice)
    time.sleep(dice.uniform(0, 1.5))
    site.machine.nvml.clear("delay")
    site.systemctl("stop", timeout=120)
    site.wait_state("inactive", "failed", timeout=60)
    site.systemctl("reset-failed", check=False)


@pytest.fixture
def small(site: Site) -> Iterator[Site]:
    """With a ``/dev/shm`` that can be filled without filling the machine's memory."""
    with site.drop_in("[Service]\nTemporaryFileSystem=\nTemporaryFileSystem=/dev/shm:mode=1777,size=32M\n"):
        yield site


def test_whatever_happens_the_next_start_works(small: Site) -> None:
    site = small
    site.configure("--load-seconds", "0.4", "--warmup-seconds", "0.1")
    site.machine.run(["touch", "/run/cycles"])
    dice = random.Random(SEED)
    faults = [fault for _ in range(CYCLES // len(FAULTS) + 1) for fault in FAULTS]
    one(site, nothing, dice, loading=False)
    first = left(site)
    assert (first["holders"], first["memory"], first["members"]) == ([], 0, [])
    for number in range(CYCLES):
        fault, loading = faults[number], dice.random() < 0.3
        site.begin()
        one(site, fault, dice, loading=loading)
        assert left(site) == first, f"cycle {number}, {fault.__name__}, seed {SEED}"
    site.start()
    assert site.state() == "active"
    assert int(site.ask("sh", "-c", "ls /var/lib/gpu-lifecycle/sglang-kimi/incidents | wc -l") or 0) <= 10
