"""What drop-ins and edits break, and two units on one GPU."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.unit_file import UnitText, difference, last, settings
from gpu_lifecycle.rules.units import CODES, INFINITE, Claim, Unit, shared, unit_findings, version_findings, version_number

PYTHON = ["/opt/x/bin/python", "-IB", "-m", "gpu_lifecycle"]


def command(*words: str, plus: bool = True) -> list[Any]:
    return [PYTHON[0], [*PYTHON, *words, "kimi.service"], ["privileged"] if plus else []]


SOUND: dict[str, Any] = {
    "Type": "notify", "NotifyAccess": "exec", "KillMode": "mixed", "SendSIGKILL": True, "KillSignal": 15,
    "Restart": "on-failure", "RestartPreventExitStatus": [[69, 77, 78], []], "SuccessExitStatus": [[], [15]],
    "RemainAfterExit": False, "RuntimeMaxUSec": INFINITE, "StartLimitIntervalUSec": 0, "TimeoutStartUSec": 900_000_000,
    "OOMPolicy": "continue", "LimitCORE": 0, "PrivateDevices": False, "DevicePolicy": "auto", "DeviceAllow": [],
    "ProcSubset": "all", "PrivateNetwork": False, "MemoryDenyWriteExecute": False, "DynamicUser": False,
    "User": "gpu-lifecycle", "RuntimeDirectoryPreserve": "yes", "FileDescriptorStoreMax": 1, "NeedDaemonReload": False,
    "ExecStartEx": [command("serve", plus=False)], "ExecStartPreEx": [command("hook", "pre-start")],
    "ExecStopPostEx": [command("hook", "post-stop")],
}  # fmt: skip


def found(unit: Unit) -> list[tuple[str, str, str]]:
    return [(str(item.level), item.code, item.key) for item in unit_findings(unit)]


def test_a_sound_unit_gives_no_finding() -> None:
    assert found(Unit("kimi.service", SOUND)) == []
    assert found(Unit("kimi.service")) == []  # nothing known of it


BROKEN: list[tuple[str, Any, str, str]] = [
    ("Type", "simple", "warn", "Type"),
    ("NotifyAccess", "all", "warn", "NotifyAccess"),
    ("NotifyAccess", "main", "warn", "NotifyAccess"),
    ("KillMode", "process", "warn", "KillMode"),
    ("KillMode", "control-group", "warn", "KillMode"),
    ("SendSIGKILL", False, "warn", "SendSIGKILL"),
    ("KillSignal", 2, "warn", "KillSignal"),
    ("Restart", "no", "info", "Restart"),
    ("RestartPreventExitStatus", [[78], []], "warn", "RestartPreventExitStatus"),
    ("SuccessExitStatus", [[1], [15]], "warn", "SuccessExitStatus"),
    ("RemainAfterExit", True, "warn", "RemainAfterExit"),
    ("RuntimeMaxUSec", 3600, "warn", "RuntimeMaxSec"),
    ("StartLimitIntervalUSec", 10_000_000, "warn", "StartLimitIntervalSec"),
    ("TimeoutStartUSec", 10_000_000, "warn", "TimeoutStartSec"),
    ("OOMPolicy", "stop", "warn", "OOMPolicy"),
    ("LimitCORE", INFINITE, "warn", "LimitCORE"),
    ("PrivateDevices", True, "error", "PrivateDevices"),
    ("DevicePolicy", "closed", "warn", "DevicePolicy"),
    ("DeviceAllow", [["/dev/kmsg", "r"]], "warn", "DeviceAllow"),
    ("ProcSubset", "pid", "warn", "ProcSubset"),
    ("PrivateNetwork", True, "warn", "PrivateNetwork"),
    ("PrivatePIDs", "yes", "warn", "PrivatePIDs"),
    ("MemoryDenyWriteExecute", True, "warn", "MemoryDenyWriteExecute"),
    ("DynamicUser", True, "warn", "DynamicUser"),
    ("User", "root", "warn", "User"),
    ("User", "", "warn", "User"),
    ("RuntimeDirectoryPreserve", "no", "warn", "RuntimeDirectoryPreserve"),
    ("FileDescriptorStoreMax", 0, "warn", "FileDescriptorStoreMax"),
    ("ExecStartEx", [["/usr/bin/python3", ["python3", "-m", "sglang"], []]], "warn", "ExecStart"),
    ("ExecStartPreEx", [], "error", "ExecStartPre"),
    ("ExecStartPreEx", [command("hook", "pre-start", plus=False)], "warn", "ExecStartPre"),
    ("ExecStopPostEx", [], "warn", "ExecStopPost"),
    ("ExecStopPostEx", [command("hook", "post-stop", plus=False)], "warn", "ExecStopPost"),
]


@pytest.mark.parametrize(("name", "value", "level", "key"), BROKEN)
def test_each_broken_promise_alone(name: str, value: Any, level: str, key: str) -> None:
    assert found(Unit("kimi.service", {**SOUND, name: value})) == [(level, "unit-setting", key)]


DROP_IN = UnitText("/etc/systemd/system/kimi.service.d/mine.conf", "# mine\n[Service]\nKillMode=process\nWatchdogSec=0\n")


def test_the_file_and_the_line_are_named() -> None:
    kill, watchdog = unit_findings(Unit("kimi.service", {**SOUND, "KillMode": "process"}, (DROP_IN,)))
    assert kill.file == "/etc/systemd/system/kimi.service.d/mine.conf:3"
    assert kill.message.startswith("KillMode=process: ")
    assert (watchdog.key, watchdog.file) == ("WatchdogSec", f"{DROP_IN.path}:4")


def test_what_systemd_has_loaded_counts_not_what_a_file_says() -> None:
    files = (UnitText("/a", "[Service]\nKillMode=process\n"), UnitText("/b", "[Service]\nKillMode=mixed\n"))
    assert found(Unit("kimi.service", SOUND, files)) == []


def test_a_unit_that_was_edited_names_its_line() -> None:
    wanted = "[Service]\n# why\nKillMode=mixed\nRestart=on-failure\n"
    sound = Unit("kimi.service", SOUND, (UnitText("/etc/x.service", wanted.replace("# why", "# other")),), wanted)
    assert found(sound) == []
    edited = UnitText("/etc/x.service", wanted.replace("Restart=on-failure", "Restart=no"))
    (item,) = unit_findings(Unit("kimi.service", SOUND, (edited,), wanted))
    assert (item.code, item.file, item.key) == ("unit-edited", "/etc/x.service:4", "Restart")
    assert '"Restart=no", and not "Restart=on-failure"' in item.message


def test_a_file_that_cannot_be_read_is_said() -> None:
    odd = Unit("kimi.service", SOUND, (UnitText("/x", problem="it is no regular file"),), "[Service]\n")
    assert found(odd) == [("warn", "unit-file-unread", "")]
    assert found(Unit("kimi.service", {**SOUND, "NeedDaemonReload": True})) == [("warn", "unit-not-reloaded", "")]


@pytest.mark.parametrize(
    ("text", "version", "keys"),
    [
        ("RestartSteps=3", "252.39-1~deb12u2", ["RestartSteps"]),
        ("RestartSteps=3", "257.4", []),
        ("Type=notify-reload", "252", ["Type"]),
        ("Type=notify", "252", []),
        ("KillMode=mixed", "247", [""]),
        ("RestartSteps=3", "who knows", []),
    ],
)
def test_what_this_systemd_ignores(text: str, version: str, keys: list[str]) -> None:
    unit = Unit("kimi.service", SOUND, (UnitText("/x", f"[Service]\n{text}\n"),))
    assert [item.key for item in version_findings(unit, version)] == keys


def test_versions() -> None:
    assert [version_number(text) for text in ("252 (252.1)", "v257.4", "", "x", "9" * 30)] == [252, 257, None, None, None]


A, B = frozenset(("GPU-a", "GPU-b")), frozenset(("GPU-b",))
X, Y = frozenset(("x.service",)), frozenset(("y.service",))


@pytest.mark.parametrize(
    ("mine", "other", "count"),
    [
        (Claim("x.service", A), Claim("y.service", B), 1),
        (Claim("x.service", A), Claim("y.service", frozenset(("GPU-c",))), 0),
        (Claim("x.service", A, Y, Y), Claim("y.service", B), 0),
        (Claim("x.service", A, Y), Claim("y.service", B, frozenset(), X), 0),
        (Claim("x.service", A), Claim("y.service", B, X, X), 0),
        (Claim("x.service", A, Y), Claim("y.service", B), 1),
        (Claim("x.service", A, frozenset(), Y), Claim("y.service", B), 1),
    ],
)
def test_two_units_on_one_gpu(mine: Claim, other: Claim, count: int) -> None:
    items = list(shared(mine, [other]))
    assert [item.code for item in items] == ["units-share-gpu"] * count
    assert all("claims 1 of this unit's 2 GPUs" in item.message for item in items)
    assert all(item.hint.startswith("systemctl edit x.service: [Unit] ") and "After=y.service" in item.hint for item in items)
    assert all(("Conflicts=y.service" in item.hint) is not bool(mine.conflicts) for item in items)


def test_lines_that_go_on_are_one() -> None:
    text = "[Service]\nExecStart=/bin/x \\\n  # not this\n  --y \\\n  --z\nKillMode=mixed\n[Unit]\nKillMode=no\n"
    read = settings((UnitText("/x", text),))
    assert [(item.line, item.key, item.value) for item in read] == [
        (2, "ExecStart", "/bin/x --y --z"),
        (6, "KillMode", "mixed"),
        (8, "KillMode", "no"),
    ]
    said = last(read, "KillMode")
    assert said
    assert said.place == "/x:6"


def test_differences() -> None:
    assert difference("[A]\nx=1\n", "[A]\n\n# c\nx=1") is None
    longer, shorter = difference("[A]\nx=1\ny=2\n", "[A]\nx=1\n"), difference("[A]\n", "[A]\nx=1\n")
    assert longer
    assert (longer.line, longer.has, longer.wanted) == (3, "y=2", "")
    assert shorter
    assert (shorter.has, shorter.wanted) == ("", "x=1")


@given(st.text(), st.text())
def test_any_text_is_read(one: str, two: str) -> None:
    unit = Unit("kimi.service", SOUND, (UnitText("/x", one), UnitText("/y", f"[Service]\n{two}")), two)
    for item in (*unit_findings(unit), *version_findings(unit, one)):
        assert item.code in CODES
        assert item.message.isprintable()


@given(st.dictionaries(st.sampled_from([*SOUND]), st.none() | st.integers() | st.text() | st.lists(st.integers()), max_size=5))
def test_any_property_is_judged(changes: dict[str, Any]) -> None:
    for item in unit_findings(Unit("kimi.service", {**SOUND, **changes})):
        assert item.code in CODES
