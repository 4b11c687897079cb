"""One cause from all evidence: what outranks what, and that each way of ending has a name."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Phase
from gpu_lifecycle.rules import cause_texts
from gpu_lifecycle.rules.account import cause_of, cause_row, ended_of, phases, spend
from gpu_lifecycle.rules.cause import CAUSES, Ended, Outcome, classify, for_unit, one_line
from gpu_lifecycle.rules.cause_texts import TEXTS
from gpu_lifecycle.rules.signatures import BY_CODE, Sign

OOM = Sign("cuda-oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1.0, 1.0)
NCCL = Sign("nccl", "NCCL error: unhandled system error", 2.0, 3.0, 7)
ECHO = Sign("child-died", "Received sigquit from a child process.", 3.0, 3.0)
EXITED = Ended(failure="the engine exited with status 1, 20s into the load", verdict="engine-exited", exit=1)
KILLED = replace(EXITED, failure="the engine was ended by signal 9, after it was ready", exit=-9)
XID = Ended(failure="Xid 31 of GPU 3", verdict="gpu-error", xids=("Xid 31 of GPU 3",))
LOST = Ended(failure="lost 1 of 8 workers (pid 71)", verdict="worker-lost", exit=-9)

TABLE = [
    ("stopped", Ended(stop=True)),
    ("stopped", Ended(stop=True, exit=-9, signs=(ECHO,))),  # SGLang up to 0.5.10 kills itself at the end of a clean stop
    ("stopped", Ended(result="success", code="exited", status="0")),
    ("memory-held", Ended(stop=True, after="GPU 1 still holds 76 GiB")),
    ("refused-78", Ended(refusal=78, refused="the draft model is too short", result="exit-code", code="exited", status="78")),
    ("refused-75", Ended(refusal=75, refused="port 30000 of the engine is taken", result="exit-code")),
    ("refused-69", Ended(refusal=69, refused="GPU 3 needs a reset", gpu="x")),
    ("refused-77", Ended(refusal=77, refused="may not")),
    ("refused", Ended(refusal=1, refused="?")),
    ("gpu-action", replace(XID, gpu="GPU 3 is lost: power the host off and on", signs=(OOM,), oom=1)),
    ("host-oom", replace(KILLED, oom=1)),
    ("host-oom", replace(LOST, oom=1, signs=(NCCL, ECHO))),
    ("host-oom", Ended(result="oom-kill", code="killed", status="KILL")),
    ("cuda-oom", replace(EXITED, signs=(OOM, NCCL, ECHO))),
    ("cuda-oom", replace(KILLED, signs=(OOM, ECHO))),
    ("cuda-oom", replace(LOST, signs=(OOM, NCCL))),
    ("cuda-oom", replace(XID, signs=(OOM, NCCL))),  # Xid 43 and 45 are what the driver says of a process that goes
    ("gpu-error", replace(XID, signs=(NCCL, ECHO))),
    ("gpu-error", XID),
    ("nccl", replace(LOST, signs=(NCCL, ECHO))),
    ("worker-lost", replace(LOST, signs=(ECHO,))),
    ("worker-lost", LOST),
    ("stalled", Ended(failure="stalled: 3 requests, and no token for 5min", verdict="stalled")),
    ("unhealthy", Ended(failure="3 checks in a row failed: 503", verdict="unhealthy")),
    ("load-stalled", Ended(failure="no progress for ready.stall, 10min: loading", verdict="load-stalled")),
    ("load-too-long", Ended(failure="not ready within ready.ceiling", verdict="load-too-long")),
    ("child-died", replace(KILLED, signs=(ECHO,))),
    ("engine-killed", KILLED),
    ("engine-crashed", replace(KILLED, exit=-11)),
    ("engine-quit", replace(EXITED, exit=0)),
    ("unknown", EXITED),
    ("unknown", Ended()),
    ("daemon-killed", Ended(result="signal", code="killed", status="KILL", doing="ready: kimi on 8 GPUs")),
    ("daemon-killed", Ended(result="core-dump", code="dumped", status="ABRT")),
    ("daemon-hung", Ended(result="watchdog", code="killed", status="KILL")),
    ("out-of-time", Ended(result="timeout")),
    ("not-set-up", Ended(result="resources")),
    ("hook-failed", Ended(result="exit-code")),
    ("defect", Ended(result="exit-code", code="exited", status="1")),
    ("unknown", Ended(result="a word of a later systemd")),
]


@pytest.mark.parametrize(("code", "ended"), TABLE)
def test_the_cause(code: str, ended: Ended) -> None:
    cause = classify(ended)
    assert cause.code == code
    assert (cause.text, cause.cure) == CAUSES[code]
    expected = Outcome.STOPPED if code == "stopped" else Outcome.REFUSED if ended.refused else Outcome.FAILED
    assert cause.outcome is expected


def test_every_cause_of_our_own_is_reached_or_made_by_a_reader() -> None:
    assert set(TEXTS) - {code for code, _ in TABLE} == {"vanished", "unwritten"}
    assert not set(TEXTS) & set(BY_CODE)


def test_the_evidence_shows_all_and_our_words_first() -> None:
    probes = ("200 in 1.0 s", "503 in 0.1 s")
    ended = replace(LOST, oom=2, xids=("Xid 45 of GPU 3",), nvml="it hangs", probes=probes, signs=(NCCL,))
    evidence = classify(ended).evidence
    assert evidence[0] == "lost 1 of 8 workers (pid 71)"
    assert evidence[1:] == (
        "the engine's main process then was ended by signal 9",
        "the kernel has ended 2 processes of this unit for memory (memory.events)",
        "the kernel log: Xid 45 of GPU 3",
        "NVML: it hangs",
        'the engine said 7 times (nccl): "NCCL error: unhandled system error"',
        "the last health checks: 200 in 1.0 s, 503 in 0.1 s",
    )


def test_the_unknown_shows_the_most_telling_lines() -> None:
    ended = replace(EXITED, lines=("KeyError: 'x'", "bye"))
    assert classify(ended).evidence[1:] == ("the engine said: \"KeyError: 'x'\"", 'the engine said: "bye"')


def test_a_killed_daemon_shows_what_it_was_at() -> None:
    evidence = classify(Ended(result="watchdog", code="killed", status="KILL", doing="ready: kimi")).evidence
    assert evidence == ("systemd says: watchdog killed KILL", "before that it said: ready: kimi")


def test_one_line() -> None:
    cause = classify(replace(EXITED, signs=(OOM,)))
    assert one_line(cause, 0) == f"failed: the memory of a GPU ran out (cuda-oom): {EXITED.failure}"
    assert "(cuda-oom, 1 time before)" in one_line(cause, 1)
    assert "(cuda-oom, 3 times before)" in one_line(cause, 3)
    assert one_line(classify(Ended(refusal=75, refused="port taken")), 4) == "refused: port taken"
    assert one_line(classify(Ended(stop=True)), 9) == "stopped"


def test_a_cure_names_the_unit() -> None:
    assert for_unit("gpu-lifecycle check UNIT", "a\\1b") == "gpu-lifecycle check a\\1b"
    left = [code for code, (_, cure) in CAUSES.items() if re.search(r"\bUNIT\b", for_unit(cure, "kimi"))]
    assert left == []


TEXT = st.text(max_size=50)
TEXTLINES = st.lists(TEXT).map(tuple)
VALUE = st.none() | st.text(max_size=9) | st.floats() | st.integers() | st.booleans()
KEYS = ("run", "failure", "exit", "oom", "xids", "refusal", "code", "outcome", "stop", "seconds_ready")


@given(
    st.builds(
        Ended,
        failure=TEXT,
        verdict=TEXT | st.sampled_from(sorted(TEXTS)),
        stop=st.booleans(),
        refusal=st.integers(),
        refused=TEXT,
        gpu=TEXT,
        exit=st.none() | st.integers(),
        oom=st.integers(0),
        xids=TEXTLINES,
        probes=TEXTLINES,
        lines=TEXTLINES,
        result=TEXT,
        code=TEXT,
        status=TEXT,
        doing=TEXT,
        after=TEXT,
    )
)
def test_everything_is_answered_on_one_line(ended: Ended) -> None:
    cause = classify(ended)
    assert all(line.isprintable() for line in cause.evidence)
    assert cause_of(cause_row(cause)) == cause or any(not line.strip() for line in cause.evidence)
    assert "\n" not in one_line(cause, 1)


@given(st.dictionaries(st.sampled_from(KEYS), VALUE))
def test_a_row_that_somebody_else_has_written_is_read_all_the_same(row: dict[str, Any]) -> None:
    classify(ended_of(row))
    cause_of(row)
    phases(row)


def test_phases_add_up() -> None:
    row: dict[str, Any] = {}
    for phase, seconds in ((Phase.PRE_START, 1.2), (Phase.LOADING, 60), (Phase.READY, 5), (Phase.SUSPECT, 1), (Phase.READY, 5)):
        spend(row, phase, seconds)
    spend(row, Phase.FAILED, 9.0)
    assert phases(row) == {"pre-start": 1.2, "loading": 60.0, "ready": 10.0, "suspect": 1.0}


def test_every_verdict_of_the_life_is_a_cause() -> None:
    """The words that ``fail`` is called with, and that of an engine which has ended, which other rules name better."""
    folder = Path(cause_texts.__file__).parent
    trees = [ast.parse((folder / name).read_text()) for name in ("lifecycle.py", "ending.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    failing = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "fail"]
    words = {node.args[3].value for node in failing if isinstance(node.args[3], ast.Constant)}
    assert words == {"worker-lost", "stalled", "unhealthy", "load-stalled", "load-too-long", "gpu-error"}
    assert words <= set(TEXTS)
