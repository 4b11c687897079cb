"""The JSON schemas: sound, as wide as what is read, and one for each output."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gpu_lifecycle.cli import parser
from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.config_keys import KEYS
from gpu_lifecycle.rules.schema import parse_config
from tools.pages.commands import read
from tools.pages.shapes import OUTPUTS

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/schema"
SERVER = '[server]\ncommand = ["/bin/x"]\n'
CONFIG = Draft202012Validator(json.loads((FOLDER / "config.json").read_text()))


def fits(text: str) -> bool:
    return bool(CONFIG.is_valid(tomllib.loads(text)))


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_it_is_a_schema(path: Path) -> None:
    document = json.loads(path.read_text())
    Draft202012Validator.check_schema(document)
    assert document["title"]


def test_every_json_output_has_one() -> None:
    """A new command with --json needs a shape in tools/pages/shapes.py."""
    commands = [" ".join(command.words) for command in read(parser()).every() if command.option("--json")]
    assert sorted(OUTPUTS) == sorted(commands)


@pytest.mark.parametrize("path", sorted((ROOT / "config").iterdir()), ids=lambda path: path.name)
def test_the_examples_fit(path: Path) -> None:
    CONFIG.validate(tomllib.loads(path.read_text()))


@pytest.mark.parametrize(
    "wrong",
    [
        "", "[server]", SERVER + "tp = 0", SERVER + "tp = '8'", SERVER + "engine = 'vlm'", SERVER + "x = 1",
        SERVER + "url = 'ftp://x'", SERVER + "environment = { A = 1 }", SERVER + "[swep]", "server.command = '/x'",
        "server.command = []", "server.command = ['x']", "server.command = ['/x', 1]", SERVER + "[gpus]\nclaim = 'some'",
        SERVER + "[gpus]\nclaim = []", SERVER + "[gpus]\nclaim = [0.5]", SERVER + "[sweep]\npolicy = 'owend'",
        SERVER + "[sweep]\nterm_grace = 10", SERVER + "[sweep]\nterm_grace = '10'", SERVER + "[sweep]\nterm_grace = '1y'",
        SERVER + "[sweep]\nfree_below = '512MB'", SERVER + "[sweep]\nprotect = 'x'", SERVER + "[sweep]\nprotect = ['']",
        SERVER + "[ready]\nmin_used = 'much'", SERVER + "[ready]\ngenerate = 'true'", SERVER + "[watch]\nfailures = 1.5",
        SERVER + "[stop]\nbefore = []", SERVER + "[stop]\nbefore = 'x'",
    ],
)  # fmt: skip
def test_what_is_refused_does_not_fit(wrong: str) -> None:
    with pytest.raises(ConfigError):
        parse_config(wrong, "x.toml")
    assert not fits(wrong)


VALUES = st.one_of(
    st.sampled_from(
        ['"auto"', '"all"', '"owned"', '"vllm"', '"custom"', '"http://h:1"', '"unix:///run/x"', '["/x"]', "[0, 1]"]
    ),
    st.builds(
        '"{} {}{}"'.format, st.sampled_from(["", "1h ", "2 min"]), st.integers(0, 99), st.sampled_from(["s", "µs", "MiB"])
    ),
    st.builds("{}{}".format, st.sampled_from(["", "-"]), st.integers(0, 5000)),
    st.sampled_from(["true", "{}", '{ A = "1" }', '["a", "b"]', '""', '"1.5h"', '"1.5 TiB"', '["GPU-00000000"]']),
)
PLACES = st.sampled_from([f"{section}.{key}" for section, keys in KEYS.items() for key in keys if key != "command"])


@given(PLACES, VALUES)
@settings(max_examples=600)
def test_what_is_read_fits(place: str, value: str) -> None:
    text = f'server.command = ["/bin/x", "--port", "1"]\n{place} = {value}\n'
    try:
        parse_config(text, "x.toml")
    except ConfigError:
        return
    assert fits(text)


def test_each_key_is_described_with_its_default() -> None:
    document: dict[str, Any] = json.loads((FOLDER / "config.json").read_text())
    for section, keys in KEYS.items():
        properties = document["$defs"][section]["properties"]
        assert set(properties) == set(keys)
        assert [key for key in keys if not properties[key].get("description")] == []
    assert document["$defs"]["stop"]["properties"]["drain"]["default"] == "2min"
