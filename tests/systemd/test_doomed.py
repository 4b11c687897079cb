"""What command line and model files already show to fail refuses the start, before the engine and in seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.model_folders import KIMI, KIMI_DRAFT
from tests.systemd.site import Site

pytestmark = pytest.mark.machine
EAGLE3 = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/draft")


@pytest.fixture
def models(site: Site) -> Iterator[Site]:
    write(site, "kimi", KIMI)
    write(site, "draft", {**KIMI_DRAFT, "max_position_embeddings": 131072})
    yield site
    site.machine.run(["rm", "-r", "/models"])


def write(site: Site, name: str, config: dict[str, Any]) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})
    site.machine.write(f"/models/{name}/config.json", json.dumps(config))
    site.machine.write(f"/models/{name}/tokenizer.json", "{}")
    site.machine.write(f"/models/{name}/model.safetensors", chr(len(header)) + 7 * "\0" + header)


def test_a_draft_that_is_too_short_is_one_attempt_and_status_78(models: Site) -> None:
    models.configure(*EAGLE3)
    begun = time.monotonic()
    models.start_and_fail()
    models.wait_state("failed")
    assert time.monotonic() - begun < 10
    assert (models.show("ExecMainStatus"), models.show("NRestarts")) == ("78", "0")
    told = models.messages("start-refused")
    for text in ("131072", "262144", "/models/draft/config.json", "/models/kimi/config.json", "--context-length 131072"):
        assert text in told
    assert not models.events("engine-started")
    assert "131072" in models.show("StatusText")
    checked = models.cli("check", "sglang-kimi")
    (finding,) = (item for item in checked["findings"] if item["level"] == "error")
    assert (finding["code"], finding["file"]) == ("draft-context", "/models/draft/config.json")
    assert finding["message"] in told


def test_a_guess_is_told_and_the_start_goes_on(site: Site) -> None:
    site.start()
    assert site.state() == "active"
    assert "/models/kimi is not there" in site.messages("start-doubtful")


def test_what_the_units_user_may_not_read_is_told(models: Site) -> None:
    models.machine.run(["chmod", "600", "/models/kimi/model.safetensors"])
    codes = [item["code"] for item in models.cli("check", "sglang-kimi")["findings"]]
    assert ("model-denied" in codes) == (
        models.ask("systemctl", "show", "sglang-kimi", "-P", "User").strip() not in ("", "root")
    )
