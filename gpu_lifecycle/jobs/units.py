"""Reads what systemd has loaded of a unit and of those beside it, and judges it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Finding, GpuView, Layout, Level, UnitName
from gpu_lifecycle.rules.claims import named
from gpu_lifecycle.rules.units import Claim, Unit, shared, unit_findings, version_findings
from gpu_lifecycle.system.files import must_answer
from gpu_lifecycle.system.unit_files import read_unit_files

CONFIG_SECONDS = 5.0  # for the disk of a config to answer


@dataclass(frozen=True, slots=True)
class Loaded:
    """What systemd says: of the unit (its properties, {} where it does not know it), and of itself."""

    properties: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    removes_ipc: bool = False


def ask_systemd(unit: UnitName) -> Loaded:
    """Raises BlindError and the like where systemd does not answer; without logind only RemoveIPC= stays unknown."""
    from gpu_lifecycle.system.bus import Bus

    with Bus() as bus:
        properties = bus.settings(unit.service)
        version = bus.version()
        try:
            removes = bus.removes_ipc()
        except LifecycleError:
            removes = False
    return Loaded(properties, version, removes)


def check_unit(unit: UnitName, loaded: Loaded) -> Iterator[Finding]:
    """What the unit's own files and drop-ins break."""
    from gpu_lifecycle.jobs.install import unit_text

    paths = [loaded.properties.get("FragmentPath"), *(loaded.properties.get("DropInPaths") or ())]
    files = read_unit_files(path for path in paths if path)
    made = Unit(unit.service, loaded.properties, files, unit_text(unit))
    yield from unit_findings(made)
    yield from version_findings(made, loaded.version)


def check_neighbours(
    unit: UnitName, layout: Layout, loaded: Loaded, view: GpuView, mine: Sequence[str], others: Sequence[UnitName]
) -> Iterator[Finding]:
    """Other managed units that claim a GPU of this one. A unit that is not installed cannot be started, and does not count."""
    found: list[Claim] = []
    for other in others:
        try:
            claim = _claim(other, layout, view)
        except LifecycleError as error:
            text = f"whether {other.service} claims GPUs of this unit is not known: {error.message}"
            yield Finding(Level.INFO, "other-config", text, f"gpu-lifecycle check {other.name}", layout.config(other))
            continue
        found += [claim] if claim else []
    yield from shared(Claim(unit.service, frozenset(mine), _conflicts(loaded.properties), _ordered(loaded.properties)), found)


def _claim(unit: UnitName, layout: Layout, view: GpuView) -> Claim | None:
    """None: it is not installed. Raises what reading its config, its claim and the bus raise."""
    from gpu_lifecycle.jobs.settings import load_config
    from gpu_lifecycle.system.bus import Bus

    with Bus() as bus:
        properties = bus.settings(unit.service)
    if properties.get("LoadState") != "loaded":
        return None
    must_answer(layout.config(unit), layout.config(unit), CONFIG_SECONDS)
    config = load_config(layout, unit)
    gpus = named(view, config.gpus.claim)
    return Claim(unit.service, frozenset(gpu.uuid for gpu in gpus), _conflicts(properties), _ordered(properties))


def _conflicts(properties: Mapping[str, Any]) -> frozenset[str]:
    return frozenset((*(properties.get("Conflicts") or ()), *(properties.get("ConflictedBy") or ())))


def _ordered(properties: Mapping[str, Any]) -> frozenset[str]:
    return frozenset((*(properties.get("After") or ()), *(properties.get("Before") or ())))


def stopped_first(properties: Mapping[str, Any]) -> frozenset[str]:
    """The units that systemd stops, and waits for, before it starts this one (systemd.unit(5), Conflicts=)."""
    return _conflicts(properties) & _ordered(properties)
