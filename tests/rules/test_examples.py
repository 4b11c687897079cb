"""The commented configs: one for each engine, each whole, each true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_lifecycle.rules.command_texts import ENGINE_NAMES
from gpu_lifecycle.rules.config_keys import KEYS, default
from gpu_lifecycle.rules.engines import ENGINES
from gpu_lifecycle.rules.examples import EXAMPLES, WIDTH, example_config
from gpu_lifecycle.rules.schema import parse_config

CONFIG = Path(__file__).parents[2] / "config"


def test_there_is_one_for_each_engine_by_its_own_name() -> None:
    assert tuple(EXAMPLES) == tuple(ENGINES) == ENGINE_NAMES
    assert {path.stem for path in CONFIG.iterdir()} == {example.unit for example in EXAMPLES.values()}


@pytest.mark.parametrize("engine", EXAMPLES)
def test_it_is_of_that_engine(engine: str) -> None:
    config = parse_config(example_config(engine), "x.toml")
    assert config.server.engine == engine
    assert config.server.command[0].startswith("/")


@pytest.mark.parametrize("engine", EXAMPLES)
def test_every_key_stands_in_it_once(engine: str) -> None:
    text = example_config(engine)
    for section, keys in KEYS.items():
        part = text.partition(f"\n[{section}]\n")[2].partition("\n\n")[0]
        for key in keys:
            found = re.findall(rf"^(?:# )?(?:{key} = |\[{section}\.{key}\]$)", part, re.MULTILINE)
            assert len(found) == 1, (section, key)


@pytest.mark.parametrize("engine", EXAMPLES)
def test_what_is_commented_out_is_the_default(engine: str) -> None:
    """Brought to life, the keys that have a default change nothing."""
    text, section, lines = example_config(engine), "", []
    for line in text.splitlines():
        section = line[1:-1] if re.fullmatch(r"\[[a-z]+\]", line) else section
        match = re.fullmatch(r"# ([a-z_]+) = .*", line)
        alive = match and match[1] in KEYS[section] and default(section, match[1]) is not None
        lines.append(line.removeprefix("# ") if alive else line)
    revived = "\n".join(lines)
    assert revived.count("\n# ") < text.count("\n# ") - 8
    assert parse_config(revived, "x.toml") == parse_config(text, "x.toml")


@pytest.mark.parametrize("engine", EXAMPLES)
def test_it_fits_a_window_and_names_its_unit(engine: str) -> None:
    text = example_config(engine, "my-unit")
    assert [line for line in text.splitlines() if line.startswith("# ") and len(line) > WIDTH] == []
    assert text.startswith("# /etc/gpu-lifecycle/my-unit.toml\n")
    assert "\n#     gpu-lifecycle check my-unit && systemctl restart my-unit\n" in text
    assert EXAMPLES[engine].title in text.replace("\n# ", " ")
