"""``check`` of machine and unit on a real systemd: drop-ins, edits, two units on one GPU, what a container caps in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.systemd.site import CONFIG, UNIT, Site

FILE = f"/etc/systemd/system/{UNIT}"


def findings(site: Site, unit: str = "sglang-kimi") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.cli("check", unit)["findings"]
    return found


def keys(site: Site, code: str = "unit-setting") -> list[str]:
    return [item["key"] for item in findings(site) if item["code"] == code]


def test_the_unit_that_install_writes_keeps_every_promise(site: Site) -> None:
    codes = {item["code"] for item in findings(site)}
    assert not codes & {"unit-setting", "unit-edited", "unit-not-reloaded", "directive-ignored", "units-share-gpu"}
    assert not codes & {"shm-small", "shm-full", "journal-limit", "no-user", "not-as-user", "node-denied", "cache-read-only"}


BREAKING = """[Service]
KillMode=process
NotifyAccess=all
SendSIGKILL=no
Restart=no
WatchdogSec=0
User=root
TemporaryFileSystem=/dev/shm:mode=1777,size=16m
LogRateLimitIntervalSec=0
Environment=TRITON_CACHE_DIR=/srv/triton
RestartSteps=3
"""


def test_drop_ins_that_break_a_promise_are_named_with_file_and_line(site: Site) -> None:
    with site.drop_in(BREAKING):
        found = {item["key"]: item for item in findings(site) if item["code"] == "unit-setting"}
        assert {"KillMode", "NotifyAccess", "SendSIGKILL", "Restart", "WatchdogSec", "User"} == set(found)
        place = f"/run/systemd/system/{UNIT}.d/test.conf"
        assert [found[key]["file"] for key in ("KillMode", "WatchdogSec")] == [f"{place}:2", f"{place}:6"]
        codes = [item["code"] for item in findings(site)]
        assert {"shm-small", "journal-limit", "cache-read-only"} <= set(codes)
        assert ("directive-ignored" in codes) == (int(site.ask("systemctl", "--version").split()[1]) < 254)
        assert site.cli("check", "sglang-kimi")["ok"]  # bad, but a start would go through


def test_without_its_hook_a_start_is_refused_and_check_says_so(site: Site) -> None:
    with site.drop_in("[Service]\nExecStartPre=\n"):
        document = site.cli("check", "sglang-kimi")
        assert not document["ok"]
        assert [item["key"] for item in document["findings"] if item["level"] == "error"] == ["ExecStartPre"]
        site.start_and_fail()
        assert "the pre-start hook has not proven the GPUs free" in site.messages("start-refused")


def test_what_was_not_reloaded_is_said(site: Site) -> None:
    with site.drop_in("[Service]\nKillMode=mixed\n"):
        site.start()  # a unit that is down and not asked for is read anew each time
        site.machine.write(f"/run/systemd/system/{UNIT}.d/test.conf", "[Service]\nKillMode=process\n")
        site.ask("touch", "-d", "2100-01-01", f"/run/systemd/system/{UNIT}.d/test.conf")
        assert "unit-not-reloaded" in [item["code"] for item in findings(site)]
        assert keys(site) == []  # what systemd has loaded counts


def test_a_unit_file_that_was_edited_names_the_line(site: Site) -> None:
    before = site.machine.read(FILE)
    site.machine.write(FILE, before.replace("OOMPolicy=continue", "OOMPolicy=stop"))
    site.machine.run(["systemctl", "daemon-reload"])
    try:
        (edited,) = (item for item in findings(site) if item["code"] == "unit-edited")
        number = before.splitlines().index("OOMPolicy=continue") + 1
        assert (edited["file"], edited["key"]) == (f"{FILE}:{number}", "OOMPolicy")
        assert '"OOMPolicy=stop", and not "OOMPolicy=continue"' in edited["message"]
        assert keys(site) == ["OOMPolicy"]
    finally:
        site.machine.write(FILE, before)
        site.machine.run(["systemctl", "daemon-reload"])


def test_a_huge_drop_in(site: Site) -> None:
    """A pipe there hangs process 1 itself, so that check finds no systemd that answers."""
    with site.drop_in("[Service]\n" + "# much\n" * 60_000 + "KillMode=process\n"):
        found = findings(site)
        assert [item["key"] for item in found if item["code"] == "unit-setting"] == ["KillMode"]
        assert "larger than" in next(item["message"] for item in found if item["code"] == "unit-file-unread")


@pytest.fixture
def neighbour(site: Site) -> Iterator[str]:
    site.machine.run(["gpu-lifecycle", "install", "gpu-lifecycle@second"])
    config = "/etc/gpu-lifecycle/gpu-lifecycle@second.toml"
    site.machine.write(config, '[server]\nengine = "custom"\ncommand = ["/bin/x", "--port", "7"]\n[gpus]\nclaim = [3]\n')
    yield config
    site.machine.run(["gpu-lifecycle", "uninstall", "gpu-lifecycle@second"])
    site.ask("rm", "-f", config)


def test_two_units_on_one_gpu(site: Site, neighbour: str) -> None:
    (item,) = (item for item in findings(site) if item["code"] == "units-share-gpu")
    assert "gpu-lifecycle@second.service claims 1 of this unit's 8 GPUs" in item["message"]
    with site.drop_in("[Unit]\nConflicts=gpu-lifecycle@second.service\n"):
        (item,) = (item for item in findings(site) if item["code"] == "units-share-gpu")
        assert item["hint"].endswith("[Unit] After=gpu-lifecycle@second.service")
    with site.drop_in("[Unit]\nConflicts=gpu-lifecycle@second.service\nAfter=gpu-lifecycle@second.service\n"):
        assert "units-share-gpu" not in [item["code"] for item in findings(site)]
        assert "units-share-gpu" not in [item["code"] for item in findings(site, "gpu-lifecycle@second")]
    site.machine.write(neighbour, "\0 rubbish")
    assert "other-config" in [item["code"] for item in findings(site)]


def test_nodes_that_the_units_user_may_not_open(site: Site) -> None:
    mode = site.ask("stat", "-c", "%a", "/dev/nvidia5").strip()
    site.machine.run(["chmod", "600", "/dev/nvidia5"])
    try:
        (item,) = (item for item in findings(site) if item["code"] == "node-denied")
        assert "gpu-lifecycle may not open /dev/nvidia5 (mode 0600" in item["message"]
    finally:
        site.machine.run(["chmod", mode, "/dev/nvidia5"])


def test_limits_are_those_that_the_unit_really_gets(site: Site) -> None:
    """Process 1 of a container has less than the unit asks for, and systemd says nothing of it."""
    told = {item["key"] for item in findings(site) if item["code"] == "limit-low"}
    site.start()
    limits = site.ask("cat", f"/proc/{site.show('MainPID')}/limits")
    hard = {line[:17].strip(): line[26:].split()[1] for line in limits.splitlines()[1:]}
    least = {"LimitNOFILE": ("Max open files", 65535), "LimitMEMLOCK": ("Max locked memory", 1 << 30)}
    low = {key for key, (name, need) in least.items() if hard[name] != "unlimited" and int(hard[name]) < need}
    assert told == low
    doubts = site.messages("start-doubtful")
    assert all(("open files" if key == "LimitNOFILE" else "locked memory") in doubts for key in low)


def test_weights_that_no_gpu_can_hold_are_refused_before_the_engine(site: Site) -> None:
    model = {"num_attention_heads": 64, "num_hidden_layers": 80, "hidden_size": 8192, "vocab_size": 128256}
    site.machine.write("/models/kimi/config.json", json.dumps({**model, "max_position_embeddings": 131072}))
    site.machine.write("/models/kimi/tokenizer.json", "{}")
    try:
        site.ask("sh", "-c", "printf '\\2\\0\\0\\0\\0\\0\\0\\0{}' > /models/kimi/model.safetensors")
        site.machine.run(["truncate", "-s", "9T", "/models/kimi/model.safetensors"])
        errors = [item for item in findings(site) if item["level"] == "error"]
        assert [item["code"] for item in errors] == ["weights-too-large"]
        site.start_and_fail()
        site.wait_state("failed")
        assert (site.show("ExecMainStatus"), site.show("NRestarts")) == ("78", "0")
        assert errors[0]["message"] in site.messages("start-refused")
    finally:
        site.ask("rm", "-r", "/models/kimi")


def test_a_model_by_name_that_is_not_here_and_may_not_be_downloaded(site: Site) -> None:
    text = site.machine.read(CONFIG).replace('"/models/kimi"', '"org/kimi"')
    site.machine.write(CONFIG, text + '[server.environment]\nHF_HUB_OFFLINE = "1"\n')
    (item,) = (item for item in findings(site) if item["level"] == "error")
    assert item["code"] == "model-offline"
    assert item["file"] == "/var/cache/gpu-lifecycle/sglang-kimi/huggingface/hub"
    site.start_and_fail()
    site.wait_state("failed")
    assert item["message"] in site.messages("start-refused")


def test_no_line_of_a_flood_is_dropped(site: Site) -> None:
    """Whether the setting that the unit has for it does what it says."""
    said = site.show("LogRateLimitIntervalUSec")
    assert said == "1us"
    site.machine.write("/run/flood.sh", "sleep 1; seq 1 30000; sleep 1\n")
    for name, options in {"own": [f"--property=LogRateLimitIntervalSec={said}"], "none": []}.items():
        site.machine.run(["systemd-run", "--quiet", "--wait", f"--unit=flood-{name}", *options, "sh", "/run/flood.sh"])
    counts = [len(site.ask("journalctl", "-b", "-u", f"flood-{name}", "-o", "cat").splitlines()) for name in ("own", "none")]
    assert counts[0] >= 30_000 > counts[1]
