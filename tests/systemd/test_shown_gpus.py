"""The engine of a real unit sees the claimed GPUs and no others, by CUDA's own variables."""

from __future__ import annotations

import pytest

from tests.machine.nvml import uuid
from tests.systemd.site import CONFIG, Site

pytestmark = pytest.mark.machine


def claim(site: Site, text: str, *more: str) -> None:
    site.configure(tp=2)
    config = site.machine.read(CONFIG).replace('claim = "all"', f"claim = {text}")
    site.machine.write(CONFIG, config.replace("[gpus]", "\n".join([*more, "[gpus]"])))


def cuda(site: Site) -> dict[str, str]:
    """The variables of the engine's main process."""
    text = site.ask("sh", "-c", f"tr '\\0' '\\n' < /proc/{site.engine_main()}/environ")
    return dict(line.split("=", 1) for line in text.splitlines() if line.startswith("CUDA_"))


@pytest.mark.parametrize("form", ["index", "uuid", "address"])
def test_the_engine_is_shown_the_claim(site: Site, form: str) -> None:
    """In the order of the claim; SGLang is told numbers, for it knows no UUID there."""
    forms = {"index": "[5, 4]", "uuid": f'["{uuid(5)}", "{uuid(4)}"]', "address": '["0000:06:00.0", "05:00.0"]'}
    claim(site, forms[form])
    site.start()
    assert cuda(site) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "5,4"}
    used = {gpu["index"]: gpu["memory_used"] for gpu in site.cli("gpus")["gpus"]}
    assert min(used[4], used[5]) > 1 << 30
    assert max(used[index] for index in (0, 1, 2, 3, 6, 7)) < 1 << 30


def test_a_claim_of_all_selects_nothing(site: Site) -> None:
    site.start()
    assert cuda(site) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_config_that_shows_the_engine_something_else_makes_one_attempt(site: Site) -> None:
    claim(site, "[4, 5]", '[server.environment]\nCUDA_VISIBLE_DEVICES = "0,1"')
    site.machine.run(["systemctl", "start", "sglang-kimi.service"], check=False)
    site.wait_state("failed")
    assert (site.show("ExecMainStatus"), site.show("NRestarts")) == ("78", "0")
    refused = site.messages("start-refused")
    assert "server.environment.CUDA_VISIBLE_DEVICES" in refused
    assert "shows the engine 2 GPUs (0, 1), and the claim is 2 GPUs (4, 5)" in refused
    assert site.events("engine-started") == []
    assert "and the claim is 2 GPUs (4, 5)" in str(site.cli("check", "sglang-kimi")["findings"])
