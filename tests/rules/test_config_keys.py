"""What is said of each key of a config is said of every key, and true: kinds, defaults, samples."""

from __future__ import annotations

import tomllib
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.config import SECTIONS
from gpu_lifecycle.rules.config_keys import KEYS, SECTION_TEXTS, Kind, choices, default, default_text, type_text, written
from gpu_lifecycle.rules.quantity import parse_duration, parse_size
from gpu_lifecycle.rules.schema import parse_config
from gpu_lifecycle.rules.toml_text import toml_duration, toml_size, toml_value

FILE = "x.toml"
ALL = [(section, key) for section, keys in KEYS.items() for key in keys]

# For each kind of value: one that is read, and one that is refused.
SPELLED = {
    Kind.TEXT: ('"http://h:1"', "1"),
    Kind.COUNT: ("2", '"2"'),
    Kind.FLAG: ("false", '"no"'),
    Kind.DURATION: ('"60min"', "60"),
    Kind.SIZE: ('"1GiB"', '"1s"'),
    Kind.SIZE_OR_SHARE: ('"20%"', '"101%"'),
    Kind.SIZE_OR_AUTO: ('"1GiB"', "1"),
    Kind.PLACE: ('"/etc/key"', '"etc/key"'),
    Kind.TEXTS: ('["a"]', "[1]"),
    Kind.COMMAND: ('["/bin/y"]', '["y"]'),
    Kind.VARIABLES: ('{ A = "1" }', "{ A = 1 }"),
    Kind.GPUS: ("[0]", "[]"),
    Kind.LISTEN: ('"127.0.0.1:9400"', '"0.0.0.0:9400"'),
    Kind.FOLDER: ('"/x"', '"x"'),
    Kind.EVENTS: ('["engine-failed"]', '["engine-faild"]'),
}


def config_with(section: str, key: str, value: str) -> str:
    command = "" if (section, key) == ("server", "command") else 'server.command = ["/bin/x"]\n'
    return f"{command}{section}.{key} = {value}\n"


def test_every_key_has_its_words_in_the_order_of_the_values() -> None:
    assert {name: list(keys) for name, keys in KEYS.items()} == {
        name: [item.name for item in fields(kind)] for name, kind in SECTIONS.items()
    }
    assert list(SECTION_TEXTS) == list(SECTIONS)


@pytest.mark.parametrize(("section", "key"), ALL)
def test_a_key_is_of_the_kind_that_is_said(section: str, key: str) -> None:
    kind = KEYS[section][key].kind
    good, bad = SPELLED[kind] if kind is not Kind.CHOICE else (f'"{choices(section, key)[0]}"', '"xyzzy"')
    parse_config(config_with(section, key, good), FILE)
    with pytest.raises(ConfigError) as caught:
        parse_config(config_with(section, key, bad), FILE)
    assert caught.value.key.startswith(f"{section}.{key}")
    assert type_text(section, key)


@pytest.mark.parametrize(("section", "key"), ALL)
def test_a_default_reads_back_and_changes_nothing(section: str, key: str) -> None:
    about, value = KEYS[section][key], default(section, key)
    if value is None:
        assert about.unset or (section, key) == ("server", "command")
        sample = f"{{ {about.sample} }}" if about.kind is Kind.VARIABLES else about.sample
        parse_config(config_with(section, key, sample), FILE)
        return
    assert not about.unset
    whole = parse_config(config_with(section, key, default_text(section, key)), FILE)
    assert whole == parse_config('server.command = ["/bin/x"]', FILE)


@pytest.mark.parametrize(("section", "key"), ALL)
def test_a_meaning_is_whole_sentences(section: str, key: str) -> None:
    text = KEYS[section][key].meaning.strip()
    assert text.endswith((".", '"].'))
    assert text.isascii()
    assert text[0].isupper() or text[0] == '"'


@pytest.mark.parametrize("key", ["policy", "engine"])
def test_the_first_choice_is_the_default(key: str) -> None:
    section = next(section for section, keys in KEYS.items() if key in keys)
    assert choices(section, key)[0] == default(section, key)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_reads_back_and_is_safe_to_show(text: str) -> None:
    written = toml_value(text)
    assert tomllib.loads(f"k = {written}") == {"k": text}
    assert written.isprintable()


PLAIN = st.recursive(
    st.one_of(st.text('ab"\\\n\x1b\u202e', max_size=5), st.booleans(), st.integers(-(2**63), 2**63 - 1)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("a-.é ", max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@given(PLAIN)
def test_any_value_reads_back(value: object) -> None:
    assert tomllib.loads(f"k = {toml_value(value)}") == {"k": value}


def test_what_toml_has_no_word_for_is_a_defect() -> None:
    with pytest.raises(TypeError, match="no TOML"):
        toml_value(None)


@given(st.integers(0, 365 * 86_400_000_000))
def test_a_duration_reads_back_to_the_microsecond(microseconds: int) -> None:
    text = tomllib.loads(f"k = {toml_duration(microseconds / 1e6)}")["k"]
    assert round(parse_duration(text) * 1e6) == microseconds


@given(st.one_of(st.integers(0, 1 << 60), st.integers(0, 1 << 20).map(lambda count: count << 20)))
def test_a_size_reads_back(size: int) -> None:
    assert parse_size(tomllib.loads(f"k = {toml_size(size)}")["k"]) == size


@pytest.mark.parametrize(
    ("section", "key", "value", "text"),
    [
        ("stop", "drain", 5400.0, '"1h 30min"'),
        ("stop", "drain", 0.0, '"0s"'),
        ("watch", "interval", 0.25, '"250ms"'),
        ("sweep", "free_below", 512 << 20, '"512MiB"'),
        ("sweep", "free_below", (1 << 30) + 1, '"1073741825B"'),
        ("ready", "min_used", "auto", '"auto"'),
        ("ready", "generate", False, "false"),
        ("gpus", "claim", (0, "GPU-1"), '[0, "GPU-1"]'),
        ("gpus", "count", 8, "8"),
    ],
)
def test_written(section: str, key: str, value: object, text: str) -> None:
    assert written(section, key, value) == text
