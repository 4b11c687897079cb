"""What a unit's own settings break: drop-ins, edits by hand, and two units on one GPU. Pure.

What counts is what systemd has loaded (org.freedesktop.systemd1(5)); the files only tell where it is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.rules.text import printable, redact
from gpu_lifecycle.rules.unit_file import Setting, UnitText, difference, last, settings

CODES = {
    "unit-setting": "a setting of the unit breaks what gpu-lifecycle promises, or something that engines need",
    "unit-edited": "the installed unit file says something else than `gpu-lifecycle install` would write",
    "unit-not-reloaded": "the unit's files are newer than what systemd has read of them",
    "unit-file-unread": "a file of the unit could not be read: what it says is not judged",
    "directive-ignored": "a directive of the unit is newer than this systemd, which ignores it",
    "environment-silent": "a file that EnvironmentFile= names lies on a disk that does not answer: a start would hang there",
    "environment-file": "a file that EnvironmentFile= names cannot be read, and so systemd will not start the unit",
    "units-share-gpu": "two managed units claim one GPU, and nothing keeps them from running at once",
    "other-config": "the config of another unit cannot be read: whether it claims the same GPUs is not known",
}
INFINITE = 18446744073709551615  # UINT64_MAX: systemd's "infinity" and "not set"
OURS = "gpu_lifecycle"  # the word of our own commands in a unit
SHORTEST_START = 90.0  # seconds: the daemon asks for more time once it knows its GPUs, for which NVML may take 30


@dataclass(frozen=True, slots=True)
class Unit:
    """A loaded unit. ``properties`` are systemd's own, by name; ``wanted`` is what install writes."""

    name: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[UnitText, ...] = ()
    wanted: str = ""

    def get(self, name: str) -> Any:
        """A property; None where this systemd has none of that name."""
        return self.properties.get(name)

    def settings(self) -> tuple[Setting, ...]:
        return settings(self.files)


@dataclass(frozen=True, slots=True)
class Promise:
    """``kept`` is asked of the property's value; ``breaks`` says what is lost where it is not."""

    key: str
    kept: Callable[[Any], bool]
    breaks: str
    level: Level = Level.WARN
    prop: str = ""
    section: str = "Service"

    @property
    def property(self) -> str:
        return self.prop or self.key


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _runs(*words: str) -> Callable[[Any], bool]:
    """Whether one of the commands of an Exec...= is ours, with these words."""
    return lambda value: any(OURS in entry[1] and {*words} <= {*entry[1]} for entry in value)


def _as_root(value: Any) -> bool:
    """Whether our hook has its "+": full privileges. One that is not there at all is told by another promise."""
    mine = [entry for entry in value if OURS in entry[1] and "hook" in entry[1]]
    return not mine or any("privileged" in entry[2] for entry in mine)


_NO_PLUS = "without its + the hook sees its own user's processes only"
PROMISES = (
    Promise("Type", _is("notify"), "the unit counts as active before the model answers"),
    Promise("NotifyAccess", _is("exec"), "the engine can speak for the unit (all), or the hooks get no time (main)"),
    Promise("KillMode", _is("mixed"), "a stop cuts open streams (control-group), or leaves processes alive (process, none)"),
    Promise("SendSIGKILL", _is(True), "what ignores SIGTERM outlives a stop"),
    Promise("KillSignal", _is(15), "the daemon takes SIGTERM for a stop, and drains"),
    Promise("Restart", _is("on-failure", "always"), "a server that fails stays down", Level.INFO),
    Promise(
        "RestartPreventExitStatus",
        lambda value: {69, 77, 78} <= {*value[0]},
        "a fault that only a person can cure (69, 77, 78) is started again and again",
    ),
    Promise(
        "SuccessExitStatus",
        lambda value: not value[0],
        "a run that failed counts as a success, and is not restarted",
    ),
    Promise("RemainAfterExit", _is(False), "the unit counts as active although its engine has ended"),
    Promise("RuntimeMaxSec", _is(INFINITE), "systemd ends a server that is well", prop="RuntimeMaxUSec"),
    Promise(
        "StartLimitIntervalSec",
        _is(0),
        "a tenant that stays on the GPUs leaves the unit failed for good",
        prop="StartLimitIntervalUSec",
        section="Unit",
    ),
    Promise(
        "TimeoutStartSec",
        lambda value: value >= SHORTEST_START * 1e6,
        f"below {show_duration(SHORTEST_START)} systemd may end a start before the daemon can ask for more time",
        prop="TimeoutStartUSec",
    ),
    Promise("OOMPolicy", _is("continue"), "systemd ends the unit before the daemon can name the cause"),
    Promise("LimitCORE", _is(0), "a worker that crashes writes a core as large as its mappings, hundreds of GB"),
    Promise("PrivateDevices", _is(False), "the unit does not see the GPUs: the engine cannot start", Level.ERROR),
    Promise("DevicePolicy", _is("auto"), "a GPU whose node is not allowed by name is refused"),
    Promise("DeviceAllow", _is([]), "a GPU whose node is not in this list, or comes after the start, is refused"),
    Promise("ProcSubset", _is("all"), "the daemon can read neither boot id nor memory"),
    Promise("PrivateNetwork", _is(False), "nobody outside the unit reaches the server"),
    Promise("PrivatePIDs", _is("no", False), "the pids that NVML tells are not those of the unit"),
    Promise("MemoryDenyWriteExecute", _is(False), "engines compile code while they run, and may not"),
    Promise("DynamicUser", _is(False), "each run is another user: what an earlier one left is not known as its own"),
    Promise("User", lambda value: value not in ("", "root", "0"), "the engine runs as root"),
    Promise("RuntimeDirectoryPreserve", _is("yes"), "the state of a run is lost with it: its hooks cannot tell what it was"),
    Promise("FileDescriptorStoreMax", lambda value: value >= 1, "the kernel log is not handed over: Xids are not noticed"),
    Promise("ExecStart", _runs("serve"), "the unit does not start gpu-lifecycle: nothing is watched", prop="ExecStartEx"),
    Promise(
        "ExecStartPre",
        _runs("hook", "pre-start"),
        "without its pre-start hook each start is refused",
        Level.ERROR,
        prop="ExecStartPreEx",
    ),
    Promise("ExecStartPre", _as_root, _NO_PLUS, prop="ExecStartPreEx"),
    Promise("ExecStopPost", _runs("hook", "post-stop"), "what survives a stop is not reaped", prop="ExecStopPostEx"),
    Promise("ExecStopPost", _as_root, _NO_PLUS, prop="ExecStopPostEx"),
)

# The version that brought a directive (systemd's NEWS). An older one ignores it, with a line in the journal at most.
SINCE = {
    "RestartSteps": 254, "RestartMaxDelaySec": 254, "RestartMode": 254, "OpenFile": 253, "MemoryZSwapMax": 253,
    "ImportCredential": 254, "DelegateSubgroup": 254, "MemoryPressureWatch": 254,
    "SurviveFinalKillSignal": 255, "MemoryZSwapWriteback": 256, "PrivatePIDs": 257,
    "RootEphemeral": 254, "FileDescriptorStorePreserve": 254, "StartupMemoryMax": 252, "LogFilterPatterns": 253,
    "CoredumpReceive": 255, "NFTSet": 255, "BindLogSockets": 257, "PrivateBPF": 258, "ManagedOOMMemoryPressureDurationSec": 257,
}  # fmt: skip
OLDEST = 252  # what the units were made for and tested with


def unit_findings(unit: Unit) -> Iterator[Finding]:
    """Everything about one unit alone."""
    for file in unit.files:
        if file.problem:
            text = f"{printable(file.path, 300)} was not read: {file.problem}"
            yield Finding(Level.WARN, "unit-file-unread", text, "make it a small text file", printable(file.path, 300))
    if unit.get("NeedDaemonReload"):
        text = "the unit's files have changed since systemd has read them: a start goes by the old ones"
        yield Finding(Level.WARN, "unit-not-reloaded", text, "systemctl daemon-reload")
    yield from _edited(unit)
    yield from _promises(unit)


def _edited(unit: Unit) -> Iterator[Finding]:
    if not unit.wanted or not unit.files or unit.files[0].problem:
        return
    own = unit.files[0]
    found = difference(own.text, unit.wanted)
    if found is None:
        return
    has, wanted = (f'"{printable(redact(text), 160)}"' if text else "nothing" for text in (found.has, found.wanted))
    text = f"this unit file is not the one that install would write: line {found.line} has {has}, and not {wanted}"
    hint = f"put what you changed into a drop-in (systemctl edit {unit.name}), move the file away, and install again"
    yield Finding(Level.WARN, "unit-edited", text, hint, f"{own.path}:{found.line}", found.has.partition("=")[0][:60])


def _promises(unit: Unit) -> Iterator[Finding]:
    found = unit.settings()
    for promise in PROMISES:
        value = unit.get(promise.property)
        if value is not None and not _kept(promise, value):
            yield _broken(unit, found, promise)
    said = last(found, "WatchdogSec")  # the property is only set while the unit runs
    if said and said.value in ("", "0", "0s", "0min", "infinity"):
        text = f"WatchdogSec={said.value}: a daemon that hangs is not noticed"
        yield Finding(Level.WARN, "unit-setting", text, _take_out(unit, said), said.place, "WatchdogSec")


def _kept(promise: Promise, value: Any) -> bool:
    """A value of a form that nobody has seen yet is no reason to say anything."""
    try:
        return promise.kept(value)
    except (TypeError, IndexError, KeyError):
        return True


def _broken(unit: Unit, found: Sequence[Setting], promise: Promise) -> Finding:
    said = last(found, promise.key, promise.section)
    value = printable(redact(said.value), 120) if said else ""
    text = f"{promise.key}={value}: {promise.breaks}"
    place = said.place if said else ""
    return Finding(promise.level, "unit-setting", text, _take_out(unit, said), place, promise.key)


def _take_out(unit: Unit, said: Setting | None) -> str:
    if said is None:
        return f"set it as the packaged unit does: systemctl edit {unit.name}"
    return f"take it out of {printable(said.path, 200)}, and systemctl daemon-reload"


def version_number(text: str) -> int | None:
    """``252.39-1~deb12u2``, ``v257.4``: the first number; None: there is none."""
    found = re.match(r"v?([0-9]{1,5})(?![0-9])", text)
    return int(found[1]) if found else None


def version_findings(unit: Unit, version: str) -> Iterator[Finding]:
    """What this systemd is too old for."""
    number = version_number(version)
    if number is None:
        return
    if number < OLDEST:
        text = f"systemd is {number}, and the unit was made for {OLDEST} or newer: settings that it does not know are ignored"
        yield Finding(Level.WARN, "directive-ignored", text, "use a newer distribution")
    for said in unit.settings():
        since = 253 if (said.key, said.value) == ("Type", "notify-reload") else SINCE.get(said.key, 0)
        if since > number:
            text = f"{printable(said.key, 60)}= came with systemd {since}, and this is {number}: it is ignored"
            yield Finding(Level.WARN, "directive-ignored", text, _take_out(unit, said), said.place, printable(said.key, 60))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a managed unit claims: UUIDs; the units that it cannot run beside, and those that it is ordered with."""

    unit: str
    gpus: frozenset[str]
    conflicts: frozenset[str] = frozenset()
    ordered: frozenset[str] = frozenset()  # after or before which it starts


def shared(mine: Claim, others: Sequence[Claim]) -> Iterator[Finding]:
    """Other units that claim a GPU of this one, where systemd does not stop the one before it starts the other.

    Conflicts= alone sets no order (systemd.unit(5)): the start would meet the other one while it still drains.
    """
    for other in others:
        both = mine.gpus & other.gpus
        conflict = other.unit in mine.conflicts or mine.unit in other.conflicts
        if not both or (conflict and (other.unit in mine.ordered or mine.unit in other.ordered)):
            continue
        claims = f"{other.unit} claims {len(both)} of this unit's {len(mine.gpus)} GPUs"
        edit = f"systemctl edit {mine.unit}: [Unit] "
        if conflict:
            text = f"{claims}, and Conflicts= has no After= beside it: the second one starts before the first has ended"
            hint = f"{edit}After={other.unit}"
        else:
            text = (
                f"{claims}, and neither has Conflicts= with the other: the second one to start waits for as long as the first "
                "one runs"
            )
            hint = f"{edit}Conflicts={other.unit} and After={other.unit}; or give each its own GPUs"
        yield Finding(Level.WARN, "units-share-gpu", text, hint, key="gpus.claim")
