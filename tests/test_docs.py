"""Pages made from code, held equal to it. ``make docs`` writes them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpu_lifecycle.rules.cause_texts import TEXTS
from gpu_lifecycle.rules.check_codes import FITNESS, GPUS, SET_UP
from gpu_lifecycle.rules.events import EVENTS, catalog
from gpu_lifecycle.rules.fitness import CHECKS
from gpu_lifecycle.rules.host import CODES as HOST
from gpu_lifecycle.rules.preflight import CODES as PREFLIGHT
from gpu_lifecycle.rules.signatures import SIGNATURES
from gpu_lifecycle.rules.units import CODES as UNITS
from gpu_lifecycle.rules.verdict import RULES
from tools.pages import FOLDERS, pages

ROOT = Path(__file__).parent.parent
WORDS = {3: "error", 4: "warning", 5: "notice", 6: "info"}

VERDICTS = """# The rules of a verdict, in order

The first rule that answers, decides. Names of processes and command lines are never asked. A *tenant* is spared; it refuses
the start (`conflict`, status 75) where it holds memory on a claimed GPU that is not free. Under policy `report` what would be
reaped is a `conflict` of the rule `policy-report`; while not all processes can be seen, of the rule `partial-sight`. This table
is made from `gpu_lifecycle/rules/verdict.py` by `make docs`.

| # | rule | what it says |
| --- | --- | --- |
"""
EVENTS_PAGE = """# Events

Every event in the journal carries `MESSAGE_ID=`, `GPU_LIFECYCLE_EVENT=`, `GPU_LIFECYCLE_UNIT=` and `GPU_LIFECYCLE_RUN=`. For
one kind: `journalctl GPU_LIFECYCLE_EVENT=holder-reaped`; with explanations: `journalctl -x`. This page is made from
`gpu_lifecycle/rules/events.py` by `make docs`.

| event | priority | what it means | MESSAGE_ID |
| --- | --- | --- | --- |
"""

CHECKS_PAGE = """# Findings

`gpu-lifecycle check UNIT` shows them all and changes nothing. This page is made from `check_codes.py`, `preflight.py`,
`host.py` and `units.py` of `gpu_lifecycle/rules/` by `make docs`.
"""
CHECKS_PARTS = {
    """The set-up

What a start would stumble over at once.""": SET_UP,
    """The GPUs, and who is in the way

Every start looks for the same; an error refuses it with 69 or 75.""": GPUS,
    """A GPU's own health

Every start asks each claimed GPU. An error refuses it with 69 (75 where it may pass); a warning is told
(`gpu-doubtful`).""": FITNESS,
    """Command line and model files

Every start looks for the same, before the engine. An error refuses it with 78; a warning is told in the journal
(`start-doubtful`) and the start goes on.""": PREFLIGHT,
    """The machine

Every start looks from inside the unit at shared memory, limits, memory, huge pages, file systems and nodes, and tells what
it finds (`start-doubtful`); the rest is for `check` alone. Nearly all are warnings: what an engine needs, nobody knows before
it runs.""": HOST,
    """The unit

For `check` alone. What systemd has loaded counts; file and line are those of the drop-in that says it.""": UNITS,
}


CAUSES_PAGE = """# Why a run has ended

`gpu-lifecycle why UNIT` names one of these causes. Rules in order choose it from all evidence (`gpu_lifecycle/rules/cause.py`):
a refusal, the driver's word that the host has to act, the kernel's count of processes ended for memory, the engine's own words,
an Xid, our own verdict, how the process ended, systemd's word. This page is made from `gpu_lifecycle/rules/` by `make docs`.

| cause | what happened | what to do |
| --- | --- | --- |
"""
SIGNATURES_PAGE = """
## From the engine's own words

Of several, the first in time of the best rank counts: *cause* before *effect* before *echo*.

| cause | rank | what happened | what to do | said by |
| --- | --- | --- | --- | --- |
"""


def verdicts() -> str:
    rows = [f"| {n} | `{name}` | {' '.join((rule.__doc__ or '').split())} |" for n, (name, rule) in enumerate(RULES, 1)]
    return VERDICTS + "\n".join(rows) + "\n"


def events() -> str:
    rows = [f"| `{word}` | {WORDS[kind.priority]} | {kind.subject} | `{kind.id}` |" for word, kind in EVENTS.items()]
    return EVENTS_PAGE + "\n".join(rows) + "\n"


def checks() -> str:
    head = "\n\n| code | what it says |\n| --- | --- |\n"
    parts = [
        f"\n## {title}{head}" + "".join(f"| `{code}` | {text} |\n" for code, text in codes.items())
        for title, codes in CHECKS_PARTS.items()
    ]
    return CHECKS_PAGE + "".join(parts)


def test_every_code_of_a_finding_is_explained() -> None:
    """Codes that stand in the code as they are; others come from the tables themselves."""
    explained = {code for codes in CHECKS_PARTS.values() for code in codes}
    said = set()
    for file in (ROOT / "gpu_lifecycle").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Finding", "Check"):
                said |= {word.value for word in node.args[:2] if isinstance(word, ast.Constant) and isinstance(word.value, str)}
    assert {check.code for check in CHECKS} == set(FITNESS) <= said
    assert said - explained == set()
    assert {*SET_UP, *GPUS} - said == set()


def causes() -> str:
    ours = [f"| `{code}` | {text} | {cure} |" for code, (text, cure) in TEXTS.items()]
    said = [f"| `{x.code}` | {x.rank.name.lower()} | {x.text} | {x.cure} | {x.source} |" for x in SIGNATURES]
    return CAUSES_PAGE + "\n".join(ours) + "\n" + SIGNATURES_PAGE + "\n".join(said) + "\n"


PAGES = {
    "docs/causes.md": causes,
    "docs/checks.md": checks,
    "docs/verdicts.md": verdicts,
    "docs/events.md": events,
    "units/gpu-lifecycle.catalog": catalog,
    **pages(),
}


@pytest.mark.parametrize("page", PAGES)
def test_page_equals_the_code(page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == PAGES[page](), "stale: run make docs"


def test_nothing_else_lies_where_pages_are_made() -> None:
    """A page of a command that is no more would be installed for ever."""
    found = {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).iterdir()}
    assert found == {page for page in PAGES if page.rpartition("/")[0] in FOLDERS}


if __name__ == "__main__":
    for name, make in PAGES.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(make(), encoding="utf-8")
