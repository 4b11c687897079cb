"""What ``why`` and ``runs`` print, from real files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.errors import UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.history import keep
from gpu_lifecycle.jobs.why import runs, why
from gpu_lifecycle.rules.account import cause_row
from gpu_lifecycle.rules.cause import Ended, classify
from gpu_lifecycle.rules.signatures import Sign
from gpu_lifecycle.system.procfs import Proc

UNIT = UnitName("gpu-lifecycle-test-unit")  # which systemd does not know
NOW = 1_700_000_000.0
OOM = Ended(failure="the engine exited with status 1", verdict="engine-exited", exit=1,
            signs=(Sign("cuda-oom", "CUDA out of memory", 1.0, 1.0),))  # fmt: skip


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(str(tmp_path))
    Path(made.var_dir(UNIT)).mkdir(parents=True)
    return made


def write(layout: Layout, run: str, began: float, ended: Ended | None = None, **more: Any) -> None:
    cause = cause_row(classify(ended)) | {"ended": began + 65.0} if ended else {}
    row = {"run": run, "began": began, "seconds_pre_start": 1.25, "seconds_loading": 60.0, **cause, **more}
    assert keep(layout, UNIT, row).complaint == ""


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def asked(capsys: pytest.CaptureFixture[str], layout: Layout, run: str = "") -> dict[str, Any]:
    why(UNIT, layout, run, as_json=True)
    document: dict[str, Any] = json.loads(shown(capsys))
    return document


def test_a_unit_without_a_history(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(UNIT, layout, "", as_json=False) == 0
    assert shown(capsys) == f"{UNIT.service}: no run of it has ended, as far as its history goes\n"
    assert runs(UNIT, layout, as_json=False) == 0
    assert shown(capsys) == f"{UNIT.service} has no history: no run of it is known\n"
    document = asked(capsys, layout)
    assert (document["run"], document["cause"], document["before"]["count"]) == (None, None, 0)


def test_the_last_end_in_full(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    write(layout, "aaaaaaaaaaaa", NOW, OOM)
    write(layout, "bbbbbbbbbbbb", NOW + 100, Ended(stop=True))
    write(layout, "cccccccccccc", NOW + 200, OOM, folder="/var/lib/x")
    why(UNIT, layout, "", as_json=False)
    lines = shown(capsys).splitlines()
    assert lines[0].startswith("run cccccccc failed at ")
    assert lines[0].endswith(" ago, after 1min 5s")
    assert lines[1:5] == [
        "  phases: pre-start 1.2s, loading 1min",
        "  cause: the memory of a GPU ran out (cuda-oom)",
        "  seen: the engine exited with status 1",
        '  seen: the engine said (cuda-oom): "CUDA out of memory"',
    ]
    assert lines[5].startswith("  what to do: see who else holds memory there")
    assert lines[6].startswith("  before: 1 of 2 earlier runs, the last at ")
    assert lines[7] == "  more: /var/lib/x; journalctl GPU_LIFECYCLE_RUN=cccccccccccc"
    document = asked(capsys, layout)
    assert document["before"] == {"count": 1, "of": 2, "last": NOW + 65.0}
    assert document["cause"]["code"] == "cuda-oom"
    assert document["run"]["phases"] == {"pre-start": 1.2, "loading": 60.0}
    why(UNIT, layout, "b", as_json=False)
    text = shown(capsys)
    assert "was stopped at" in text
    assert "  before: not so in the one earlier run that is known\n" in text


def test_a_run_that_is_not_there_or_not_the_only_one(layout: Layout) -> None:
    write(layout, "ab1", NOW, OOM)
    write(layout, "ab2", NOW, OOM)
    with pytest.raises(UsageError, match="there is no run x"):
        why(UNIT, layout, "x", as_json=False)
    with pytest.raises(UsageError, match="2 runs have an id ab"):
        why(UNIT, layout, "ab", as_json=False)


@pytest.mark.parametrize(("boot", "code"), [("another", "vanished"), ("", "unwritten")])
def test_a_run_whose_end_nobody_wrote(layout: Layout, capsys: pytest.CaptureFixture[str], boot: str, code: str) -> None:
    write(layout, "lost", NOW, boot=boot or Proc().boot_id)
    document = asked(capsys, layout)
    assert (document["cause"]["code"], document["run"]["outcome"], document["run"]["ended"]) == (code, "lost", None)
    why(UNIT, layout, "", as_json=False)
    assert "run lost was lost at a time that is not known" in shown(capsys)


def test_what_somebody_else_has_written_there_harms_no_terminal(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "\x1b[2J\n\u202e"
    write(layout, f"r{bad}", 1e18, OOM, evidence=f"{bad}\n{bad}", folder=bad, text=bad, systemd=bad)
    write(layout, "other", NOW, None, code=bad, outcome=bad)
    why(UNIT, layout, "r", as_json=False)
    runs(UNIT, layout, as_json=False)
    said = shown(capsys)
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert len([line for line in said.splitlines() if line.startswith("[2J")]) == 0


def test_the_table(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    write(layout, "aaaaaaaaaaaa", NOW, OOM)
    write(layout, "bbbbbbbbbbbb", time.time(), Ended(refusal=75, refused="port 30000 is taken"))
    runs(UNIT, layout, as_json=False)
    lines = shown(capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", "bbbbbbbb", "aaaaaaaa"]
    assert "refused  refused-75: port 30000 is taken" in lines[1]
    assert "failed" in lines[2]
    assert "cuda-oom: the engine exited with status 1" in lines[2]


def test_what_is_refused_again_and_again_is_one_line(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    write(layout, "end", NOW - 100, OOM)
    for number in range(40):
        write(layout, f"run{number}", NOW + number, Ended(refusal=75, refused=f"process {4000 + number} holds 76 GiB of GPU 1"))
    runs(UNIT, layout, as_json=False)
    lines = shown(capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", "run39", "end"]
    assert "refused, 40 times" in lines[1]
    why(UNIT, layout, "", as_json=False)
    assert "before: 39 of 40 earlier runs, 40 in a row since the first at 2023-11-1" in shown(capsys)
    assert asked(capsys, layout)["before"]["count"] == 39
