"""A real unit on one instance of a divided GPU (MIG): its own memory counts, and nobody's on the instance beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.machine.nvml import uuid
from tests.systemd.site import CONFIG, GIB, UNIT, Site

pytestmark = pytest.mark.machine
OURS, THEIRS = "MIG-11111111-0000-4000-8000-000000000003", "MIG-22222222-0000-4000-8000-000000000005"


@pytest.fixture
def divided(site: Site) -> Iterator[Site]:
    """GPU 0 has two instances, entries 32 and 33 of the stand-in; the unit claims the first one."""
    site.machine.nvml.set(
        f"mig 32 parent=0 instance=3 uuid={OURS} total={80 * GIB}", f"mig 33 parent=0 instance=5 uuid={THEIRS} total={40 * GIB}"
    )
    site.configure(tp=1)
    site.machine.write(CONFIG, site.machine.read(CONFIG).replace('claim = "all"', f'claim = ["{OURS}"]'))
    try:
        yield site
    finally:
        site.systemctl("stop", check=False)
        site.machine.nvml.clear("mig")


def used(site: Site) -> dict[str, int | None]:
    return {gpu["uuid"]: gpu["memory_used"] for gpu in site.cli("gpus")["gpus"]}


def test_a_unit_on_one_instance(divided: Site) -> None:
    divided.start()
    environment = divided.ask("sh", "-c", f"tr '\\0' '\\n' < /proc/{divided.engine_main()}/environ")
    assert f"CUDA_VISIBLE_DEVICES={OURS}\n" in environment
    amounts = used(divided)
    assert (amounts[OURS] or 0) > GIB
    assert (amounts[THEIRS], amounts[uuid(0)]) == (0, None)
    (gpu,) = divided.cli("status", "sglang-kimi")["gpus"]
    assert (gpu["uuid"], gpu["label"]) == (OURS, "0:3")
    assert "GPU 0:3: " in divided.ask("gpu-lifecycle", "status", "sglang-kimi")
    assert [item["label"] for item in divided.cli("timeline", "sglang-kimi")["gpus"]] == ["0:3"]
    divided.stop()
    assert used(divided)[OURS] == 0


def test_a_tenant_of_the_other_instance_is_none_of_ours(divided: Site) -> None:
    """It holds the very same device node; an orphan there is left to whoever has that instance."""
    tenant = divided.service_holder("beside", "--gpu", "0", "--uvm", "--memory", f"33={30 * GIB}")
    orphan = divided.plant("beside-orphan", "--gpu", "0", "--uvm", "--memory", f"33={2 * GIB}", "--daemonize")
    divided.start()
    assert divided.alive(tenant)
    assert divided.alive(orphan)
    assert divided.events("holder-reaped") == []
    assert divided.events("holder-conflict") == []
    assert used(divided)[THEIRS] == 32 * GIB


def test_an_orphan_on_our_instance_is_reaped(divided: Site) -> None:
    orphan = divided.plant("our-orphan", "--gpu", "0", "--uvm", "--memory", f"32={30 * GIB}", "--daemonize")
    divided.start()
    assert not divided.alive(orphan)
    (event,) = divided.events("holder-reaped")
    assert OURS in event["GPU_LIFECYCLE_GPU"]


def test_a_divided_gpu_cannot_be_claimed_whole(divided: Site) -> None:
    divided.configure()
    divided.machine.run(["systemctl", "start", UNIT], check=False)
    divided.wait_state("failed")
    assert (divided.show("ExecMainStatus"), divided.show("NRestarts")) == ("78", "0")
    assert "is divided into 2 instances (MIG), and cannot be claimed whole" in divided.messages("start-refused")
    assert OURS in divided.messages("start-refused")
