"""JSON schemas (draft 2020-12) of the config file and of what the commands print with ``--json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from gpu_lifecycle.rules.config_keys import KEYS, SECTION_TEXTS, Kind, choices, default, written
from gpu_lifecycle.rules.engines import ENGINES
from gpu_lifecycle.rules.events import EVENTS
from gpu_lifecycle.rules.quantity import DURATION_UNITS, SIZE_UNITS
from gpu_lifecycle.rules.schema import json_schema

from . import shapes

if TYPE_CHECKING:
    from pydantic_core import core_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_NUMBER = r"[0-9]+(\.[0-9]+)?"
_DURATION = {"type": "string", "pattern": rf"^\s*({_NUMBER}\s*({'|'.join(DURATION_UNITS)})\s*)+$"}
_SIZE = {"type": "string", "pattern": rf"^\s*{_NUMBER}\s*({'|'.join(SIZE_UNITS)})\s*$"}
_WORDS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "prefixItems": [{"type": "string", "pattern": "^/"}]}

# What a file may have, for each function of rules/schema.py that reads a value.
_READ_BY: dict[str, dict[str, Any]] = {
    "parse_duration": _DURATION,
    "_some_time": _DURATION,
    "_some_memory": _SIZE,
    "parse": {"anyOf": [{"type": "string", "pattern": r"^[0-9]{1,3}\s*%$"}, _SIZE]},  # of rules/shared_memory.py
    "_min_used": {"anyOf": [{"const": "auto"}, _SIZE]},
    "_engine": {"enum": list(ENGINES)},
    "_claim": {
        "anyOf": [{"const": "all"}, {"type": "array", "items": {"type": ["string", "integer"]}, "minItems": 1}],
    },
    "_command": _WORDS,
    "_environment": {"type": "object", "additionalProperties": {"type": "string"}},
    "_key_file": {"type": "string", "pattern": "^(/.+|[A-Za-z0-9_.-]+)$"},
    "_url": {"type": "string", "pattern": "^(https?|unix)://?"},
    "_listen": {"type": "string", "pattern": r"^(127(\.[0-9]{1,3}){3}:[0-9]{1,5}|\[::1\]:[0-9]{1,5}|unix:/.*[^/])$"},
    "_folder": {"type": "string", "pattern": "^/"},
    "_events": {"type": "array", "items": {"enum": list(EVENTS)}, "minItems": 1},
}


class _Generator(GenerateJsonSchema):
    """Knows what the functions of rules/schema.py take. One without an entry above is a KeyError."""

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> dict[str, Any]:
        return dict(_READ_BY[schema["function"]["function"].__name__])


def pages() -> dict[str, Callable[[], str]]:
    """Each schema by its file's name."""
    outputs = {f"{words.replace(' ', '-')}.json": partial(output, words) for words in shapes.OUTPUTS}
    return {"config.json": config, **outputs}


def output(words: str) -> str:
    """The schema of what a command prints."""
    shape: Any = shapes.OUTPUTS[words]
    for kind in vars(shapes).values():
        if isinstance(kind, type) and issubclass(kind, dict):
            kind.__pydantic_config__ = {"use_attribute_docstrings": True}  # type: ignore[attr-defined]
    found = TypeAdapter(shape).json_schema()
    return _text(f"What gpu-lifecycle {words} --json prints", found)


def config() -> str:
    """The schema of a config file, with what each key means and its default as the file would have it."""
    found = json_schema(_Generator)
    for section, properties in _sections(found):
        properties["description"] = SECTION_TEXTS[section]
        properties.pop("title", None)
        for key, about in KEYS[section].items():
            entry = properties["properties"][key] = _without_null(properties["properties"][key])
            entry["description"] = " ".join(about.meaning.split())
            value = default(section, key)
            if value is not None:
                entry["default"] = json.loads(written(section, key, value))
            if about.kind is Kind.CHOICE:
                entry["enum"] = list(choices(section, key))
    return _text("A config file of gpu-lifecycle, /etc/gpu-lifecycle/NAME.toml", found)


def _sections(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for section in KEYS:
        found["properties"][section].pop("default", None)
        yield section, found["$defs"][section]


def _without_null(entry: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: a key without a value is left out. Nor is a default of our values one of the file."""
    entry = {key: value for key, value in entry.items() if key != "default"}
    kinds = [kind for kind in entry.pop("anyOf", ()) if kind != {"type": "null"}]
    return entry | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})


def _text(title: str, found: dict[str, Any]) -> str:
    return json.dumps({"$schema": DIALECT, **_untitled(found), "title": title}, indent=2, ensure_ascii=False) + "\n"


def _untitled(node: Any) -> Any:
    """Without the titles that pydantic makes of names: they say nothing more. A field may be called so, a title is text."""
    if isinstance(node, dict):
        return {key: _untitled(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
    return [_untitled(item) for item in node] if isinstance(node, list) else node
