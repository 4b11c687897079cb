"""What the commands print with --json fits its schema, field for field, in every state that a unit can be in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.systemd.site import GIB, Site

pytestmark = pytest.mark.machine

FOLDER = Path(__file__).parents[2] / "docs/schema"
COMMANDS = [
    ["holders"], ["holders", "sglang-kimi"], ["gpus"], ["check", "sglang-kimi"], ["sweep", "sglang-kimi", "--dry-run"],
    ["status"], ["status", "sglang-kimi"], ["config", "show", "sglang-kimi"],
]  # fmt: skip


def schema(words: list[str]) -> Draft202012Validator:
    """The schema of a command's output, closed: a field that it does not name is an error here."""
    found = [path for path in (FOLDER / f"{'-'.join(words[:count])}.json" for count in (2, 1)) if path.exists()]
    return Draft202012Validator(_closed(json.loads(found[0].read_text())))


def _closed(node: Any) -> Any:
    if isinstance(node, dict):
        closed = {"additionalProperties": False} if "properties" in node and "additionalProperties" not in node else {}
        return {key: _closed(value) for key, value in node.items()} | closed
    return [_closed(item) for item in node] if isinstance(node, list) else node


def fits(site: Site, words: list[str]) -> dict[str, Any]:
    document = site.cli(*words)
    assert [f"{' '.join(words)}: {text}" for text in problems(words, document)] == []
    return document


def problems(words: list[str], document: Any) -> list[str]:
    """What does not fit; of alternatives, what is wrong with each."""
    found = list(schema(words).iter_errors(document))
    return [f"{each.json_path}: {each.message[-200:]}" for error in found for each in (error.context or [error])]


def test_a_field_that_is_not_documented_is_found() -> None:
    document = {"schema": 1, "sight": {"full": True, "limits": []}, "holders": []}
    assert schema(["holders"]).is_valid(document)
    assert not schema(["holders"]).is_valid(document | {"more": 1})
    assert not schema(["holders"]).is_valid(document | {"schema": 2})


def test_with_nothing_there(site: Site) -> None:
    for words in COMMANDS:
        fits(site, words)


def test_with_a_unit_that_is_ready(site: Site) -> None:
    site.start()
    found = {" ".join(words): fits(site, words) for words in COMMANDS}
    assert found["status sglang-kimi"]["phase"] == "ready"
    assert found["status sglang-kimi"]["probes"]
    assert len(found["holders"]["holders"]) >= 8


def test_with_orphans_and_tenants_in_the_way(site: Site) -> None:
    orphan = site.orphan()
    site.service_holder("tenant", "--gpu", "5", "--uvm", "--memory", f"5={30 * GIB}")
    found = {" ".join(words): fits(site, words) for words in COMMANDS}
    assert {row["verdict"] for row in found["holders"]["holders"]} >= {"reap", "conflict"}
    assert found["check sglang-kimi"]["ok"] is False
    swept = fits(site, ["sweep", "sglang-kimi"])
    assert {row["pid"]: row["result"] for row in swept["holders"]}[orphan] in ("ended", "killed")
    assert swept["outcome"] == "conflict"


def test_with_a_failed_unit_and_a_broken_config(site: Site) -> None:
    site.configure("--misbehave", "exit-at-once=3")
    site.start(wait=False)
    site.machine.wait(lambda: site.cli("status", "sglang-kimi")["last_end"], 30, "an end")
    assert fits(site, ["status", "sglang-kimi"])["last_end"]["reason"]
    site.machine.write("/etc/gpu-lifecycle/sglang-kimi.toml", "[server]\nengine = 'vlm'\n")
    for words in (["gpus"], ["check", "sglang-kimi"], ["status"], ["status", "sglang-kimi"]):  # the others refuse
        fits(site, words)


@pytest.mark.parametrize("words", [["status", "sglang-kimi", "--follow"], ["gpus", "--watch"]])
def test_each_line_of_a_command_that_goes_on(site: Site, words: list[str]) -> None:
    site.start()
    done = site.machine.run(["timeout", "5", "gpu-lifecycle", *words, "--json"], check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines
    assert [text for line in lines for text in problems(words[:1], line)] == []
