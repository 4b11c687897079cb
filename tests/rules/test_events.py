"""Every event has one fixed id and a text, and no text from outside can forge a field."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.events import EVENTS, Event, catalog, fields_of

ROOT = Path(__file__).parents[2]
SOURCES = [path for path in sorted((ROOT / "gpu_lifecycle").rglob("*.py")) if path.name != "events.py"]
TREES = [ast.parse(path.read_text()) for path in SOURCES]


def test_ids_are_fixed_and_unique() -> None:
    ids = [kind.id for kind in EVENTS.values()]
    assert len(set(ids)) == len(ids)
    assert [text for text in ids if not re.fullmatch("[0-9a-f]{32}", text)] == []


@pytest.mark.parametrize("word", EVENTS)
def test_every_event_is_explained(word: str) -> None:
    kind = EVENTS[word]
    assert re.fullmatch("[a-z]+(-[a-z]+)+|[a-z]+", word)
    assert 3 <= kind.priority <= 6
    assert kind.subject.strip() == kind.subject != ""
    assert "\n" not in kind.subject
    assert kind.text.strip()
    if kind.priority <= 4:
        assert re.search("What to do|is to be done", kind.text), "a warning says what to do"


def test_every_word_in_the_source_is_an_event() -> None:
    """The first argument of each ``Event(...)`` that is written out."""
    said = {
        (path.name, str(call.args[0].value))
        for path, tree in zip(SOURCES, TREES, strict=True)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Event"
        if isinstance(call.args[0], ast.Constant)
    }
    assert len(said) > 20
    assert {(name, word) for name, word in said if word not in EVENTS} == set()


def test_every_event_is_used() -> None:
    strings = {node.value for tree in TREES for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert set(EVENTS) - strings == set()


@given(st.text(), st.text(), st.text(), st.text())
def test_text_from_outside_is_harmless(message: str, unit: str, run: str, value: str) -> None:
    fields = fields_of(Event("defect", message, {"GPU_LIFECYCLE_GPU": value}), unit, run)
    assert fields["MESSAGE_ID"] == EVENTS["defect"].id
    for key, text in fields.items():
        assert re.fullmatch("[A-Z][A-Z_]*", key)
        assert text
        assert text.isprintable()
        assert len(text) <= 2000


def test_fields() -> None:
    fields = fields_of(Event("ready", "a\nPRIORITY=0", {"X": "1", "EMPTY": ""}), "a.service", "")
    assert fields == {
        "MESSAGE": r"a\x0aPRIORITY=0", "MESSAGE_ID": EVENTS["ready"].id, "PRIORITY": "5", "SYSLOG_IDENTIFIER": "gpu-lifecycle",
        "GPU_LIFECYCLE_EVENT": "ready", "GPU_LIFECYCLE_UNIT": "a.service", "X": "1",
    }  # fmt: skip


def test_an_event_without_an_entry_is_a_defect() -> None:
    with pytest.raises(KeyError):
        fields_of(Event("no-such-event", ""), "", "")


def test_catalog_is_the_file_that_is_installed() -> None:
    assert (ROOT / "units/gpu-lifecycle.catalog").read_text() == catalog()


def test_catalog_reads_back() -> None:
    """By the format's own rules: ``-- ID``, headers, an empty line, text; variables are ``@FIELD@``."""
    entries = re.split(r"(?m)^-- ", catalog())[1:]
    assert len(entries) == len(EVENTS)
    for entry, kind in zip(entries, EVENTS.values(), strict=True):
        head, _, text = entry.partition("\n\n")
        number, *headers = head.split("\n")
        assert number == kind.id
        assert [line.partition(": ")[0] for line in headers] == ["Subject", "Defined-By"]
        assert text.strip() == kind.text
        fields = re.findall("@([^@ \n]*)@", entry)
        assert {name for name in fields if not re.fullmatch("(GPU_LIFECYCLE|OBJECT)_[A-Z_]+", name)} == set()
        assert entry.count("@") == 2 * len(fields)
