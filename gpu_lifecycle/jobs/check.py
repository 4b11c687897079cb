"""``check``: all that a start would check, changing nothing. Every finding, not the first one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import BusyError, ConfigError, Exit, LifecycleError
from gpu_lifecycle.facts import Finding, Gpu, GpuView, Layout, Level, UnitName, Verdict
from gpu_lifecycle.jobs.environment import given
from gpu_lifecycle.jobs.fitness import examine
from gpu_lifecycle.jobs.host import Around, check_host
from gpu_lifecycle.jobs.inspect import scene_for
from gpu_lifecycle.jobs.keys import SECONDS as KEY_SECONDS
from gpu_lifecycle.jobs.observe import Observation, Observer
from gpu_lifecycle.jobs.port import parents, taken_by
from gpu_lifecycle.jobs.preflight import Preflight
from gpu_lifecycle.jobs.printed import managed_units, print_json
from gpu_lifecycle.jobs.settings import load_config
from gpu_lifecycle.jobs.units import CONFIG_SECONDS, Loaded, ask_systemd, check_neighbours, check_unit, stopped_first
from gpu_lifecycle.rules.claims import claimed
from gpu_lifecycle.rules.nodes import capability_files, cure, lacking, missing
from gpu_lifecycle.rules.quantity import show_count
from gpu_lifecycle.rules.report import advice, describe
from gpu_lifecycle.rules.unexplained import Place, amount, explain
from gpu_lifecycle.rules.verdict import Scene
from gpu_lifecycle.rules.visible import variables
from gpu_lifecycle.system.devices import capability_nodes, find_devices, inner_namespace, open_handles, what_is
from gpu_lifecycle.system.files import is_no_file, must_answer
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.sockets import Listener, listeners_at, owner_of

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

NVML_SECONDS = 30.0
PROGRAM_SECONDS = 5.0
SILENT_HINT = "is its file system mounted, and does its server answer?"


def check(unit: UnitName, layout: Layout, *, as_json: bool) -> int:
    """Prints the findings; 0 where a start would go through, 78 for the set-up, 69 for GPUs and driver, 75 for "not now"."""
    found: list[Finding] = []
    statuses: list[Exit] = []
    for finding, status in _findings(unit, layout):
        found.append(finding)
        if finding.level is Level.ERROR:
            statuses.append(status)
    order = (Exit.CONFIG, Exit.UNAVAILABLE, Exit.NOPERM, Exit.TEMPFAIL)
    result = next((status for status in order if status in statuses), Exit.OK)
    if as_json:
        print_json({"schema": 1, "ok": result is Exit.OK, "findings": [_json(finding) for finding in found]})
    else:
        for finding in found:
            place = ": ".join(part for part in (finding.file, finding.key) if part)
            cure = f" ({finding.hint})" if finding.hint else ""
            print(f"{finding.level}: {f'{place}: ' if place else ''}{finding.message}{cure}")
        print(f"{unit.service}: {_verdict(result, [item.code for item in found if item.level is Level.ERROR])}")
    return result


def _verdict(result: Exit, errors: list[str]) -> str:
    if result is Exit.OK:
        return "a start would go through"
    if os.geteuid() != 0 and set(errors) == {"sight"}:  # a start is root's, who sees more
        return "whether a start would go through is not known: run check as root"
    return "a start would be refused"


def _json(finding: Finding) -> dict[str, object]:
    return {
        "level": str(finding.level),
        "code": finding.code,
        "message": finding.message,
        "hint": finding.hint or None,
        "file": finding.file or None,
        "key": finding.key or None,
    }


Found = Iterator[tuple[Finding, Exit]]


def _findings(unit: UnitName, layout: Layout) -> Found:
    with GpuProbe() as probe:
        probe.begin()  # it starts up while all else is read
        yield from _all(unit, layout, probe)


def _all(unit: UnitName, layout: Layout, probe: GpuProbe) -> Found:
    loaded = yield from _systemd(unit)
    try:
        must_answer(layout.config(unit), layout.config(unit), CONFIG_SECONDS)
        config = load_config(layout, unit)
    except LifecycleError as error:
        file, key = (error.file, error.key) if isinstance(error, ConfigError) else ("", "")
        place = f"{file}:{error.line}" if isinstance(error, ConfigError) and error.line else file
        yield Finding(Level.ERROR, "config", error.message, error.hint, place, key), error.status
        return
    yield from _command(config, layout.config(unit))
    yield from _shared_memory(unit, config, layout.config(unit))
    yield from _key(config, layout.config(unit))
    env, certain = yield from _environment(loaded, config)
    models = yield from _preflight(unit, config, env)
    try:  # all else is looked at while a child reads the files of the models
        view = probe.view(NVML_SECONDS)
        gpus = _claimed(view, config)
        rest = [*_set_up(unit, config, layout, loaded, env, gpus), *_neighbours(unit, layout, loaded, view, gpus)]
        rest += _gpus(unit, config, layout, probe, view, stopped_first(loaded.properties))
        yield from _models(models, gpus, certain=certain)
    finally:
        if models:
            models.close()
    yield from rest


def _preflight(unit: UnitName, config: Config, env: dict[str, str]) -> Generator[tuple[Finding, Exit], None, Preflight | None]:
    """None, and it is said: there is no process to read the files in."""
    try:
        return Preflight(config, unit.service, env)
    except BusyError as error:
        yield _no_process(error, Level.WARN), Exit.OK
        return None


def _claimed(view: GpuView, config: Config) -> tuple[Gpu, ...]:
    """None where they cannot be told: ``_gpus`` says why."""
    try:
        return claimed(view, config.gpus.claim, config.gpus.count)
    except LifecycleError:
        return ()


def _models(models: Preflight | None, gpus: tuple[Gpu, ...], *, certain: bool) -> Found:
    """``certain`` False: the engine's environment is not known in full, and with it where downloads are kept."""
    sizes = [gpu.total for gpu in gpus if gpu.total]
    for finding in models.findings(min(sizes, default=None)) if models else ():
        level = Level.WARN if finding.code == "model-offline" and not certain else finding.level
        yield replace(finding, level=level), Exit.CONFIG


def _set_up(
    unit: UnitName, config: Config, layout: Layout, loaded: Loaded, env: dict[str, str], gpus: tuple[Gpu, ...]
) -> Found:
    """The machine: all that does not depend on who holds the GPUs now."""
    minors = {gpu.minor for gpu in gpus} | {None}
    around = Around(
        unit,
        config,
        layout,
        env,
        loaded.properties,
        nodes=[node.path for node in find_devices().nodes if node.minor in minors],
        gpus=len(gpus) or config.gpus.count or 1,
        removes_ipc=loaded.removes_ipc,
        listeners=_listeners(config),
    )
    for finding in check_host(around):
        yield finding, Exit.TEMPFAIL if finding.code == "port-taken" else Exit.CONFIG


def _neighbours(unit: UnitName, layout: Layout, loaded: Loaded, view: GpuView, gpus: tuple[Gpu, ...]) -> Found:
    if loaded.properties:
        others = [other for other in managed_units(layout) if other != unit]
        for finding in check_neighbours(unit, layout, loaded, view, [gpu.uuid for gpu in gpus], others):
            yield finding, Exit.OK


def _listeners(config: Config) -> list[Listener]:
    """Those whom ``_ports`` judges; where they cannot be found out, it says so."""
    try:
        return listeners_at(config.server.endpoint(), Proc())
    except LifecycleError:
        return []


def _environment(loaded: Loaded, config: Config) -> Generator[tuple[Finding, Exit], None, tuple[dict[str, str], bool]]:
    """The engine's: what systemd gives the unit; without it, our own. False: a part of it could not be read here."""
    if not loaded.properties:
        return {**os.environ, **config.server.environment}, True
    found = given(loaded.properties, loaded.version)
    for finding in found.findings:
        yield finding, Exit.TEMPFAIL if finding.code == "environment-silent" else Exit.CONFIG
    return found.values | config.server.environment, found.certain


def _systemd(unit: UnitName) -> Generator[tuple[Finding, Exit], None, Loaded]:
    """What is wrong with the unit itself. Returns what systemd has loaded of it, nothing where it does not answer."""
    try:
        found = ask_systemd(unit)
    except LifecycleError as error:
        yield Finding(Level.WARN, "no-systemd", error.message, error.hint), Exit.OK
        return Loaded()
    load = found.properties.get("LoadState")
    if load == "loaded":
        for finding in check_unit(unit, found):
            yield finding, Exit.CONFIG
        return found
    if load == "not-found":
        hint = f"gpu-lifecycle install {unit.name}"
        yield Finding(Level.ERROR, "not-installed", f"{unit.service} is not installed", hint), Exit.CONFIG
    else:
        text = f"systemd says that {unit.service} is {load}"
        yield Finding(Level.ERROR, "unit-broken", text, f"systemctl status {unit.service}"), Exit.CONFIG
    return Loaded()


def _command(config: Config, file: str) -> Found:
    """The program of the engine: there, a file, executable by somebody. What the unit's own user may, it says at the start."""
    from gpu_lifecycle.system.program import State, look_at

    program, key = config.server.command[0], "server.command"
    try:
        state = look_at(program, PROGRAM_SECONDS)
    except BusyError as error:
        yield _no_process(error), Exit.TEMPFAIL
        return
    if state is State.MISSING:
        yield Finding(Level.ERROR, "command-missing", f"{program} is not there", "correct the path", file, key), Exit.CONFIG
    elif state is State.NO_PROGRAM:
        text = f"{program} cannot be executed"
        yield Finding(Level.ERROR, "command-not-executable", text, f"ls -l {program}", file, key), Exit.CONFIG
    elif state is State.UNSEEN:
        text = f"{program} cannot be looked at as this user"
        yield Finding(Level.WARN, "command-unseen", text, f"namei -l {program}", file, key), Exit.OK
    elif state is State.SILENT:
        text = f"{program} was not read within {PROGRAM_SECONDS:g} s"
        yield Finding(Level.ERROR, "command-silent", text, SILENT_HINT, file, key), Exit.TEMPFAIL


def _no_process(error: BusyError, level: Level = Level.ERROR) -> Finding:
    return Finding(level, "no-process", error.message, error.hint)


def _shared_memory(unit: UnitName, config: Config, file: str) -> Found:
    from gpu_lifecycle.rules.shared_memory import judge
    from gpu_lifecycle.system.bus import Bus

    mounted = None
    with contextlib.suppress(LifecycleError), Bus() as bus:  # that systemd does not answer is said above
        mounted = bus.own_shm(unit.service) if bus.unit_state(unit.service).load == "loaded" else None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # what the kernel takes a tmpfs's share of
    for finding in judge(config.server.shm_size, memory, mounted, unit.service, unit.name, file):
        yield finding, Exit.OK


def _key(config: Config, file: str) -> Found:
    """The file of the engine's key. A credential is there only while the unit runs; what its user may read, the start says."""
    path, key = config.server.api_key_file or "", "server.api_key_file"
    if not path.startswith("/"):
        return
    try:
        if is_no_file(path, path, KEY_SECONDS):
            text, hint = f"{path} is not there, or no file", "correct the path"
            yield Finding(Level.ERROR, "key-missing", text, hint, file, key), Exit.CONFIG
    except BusyError as error:
        yield Finding(Level.ERROR, "key-silent", error.message, error.hint, file, key), error.status


def _gpus(
    unit: UnitName, config: Config, layout: Layout, probe: GpuProbe, view: GpuView, stopped: frozenset[str] = frozenset()
) -> Found:
    try:
        gpus = claimed(view, config.gpus.claim, config.gpus.count)
        variables(view, gpus, config.server, {})
    except LifecycleError as error:
        key = error.key if isinstance(error, ConfigError) else ""
        yield Finding(Level.ERROR, "gpus", error.message, error.hint, key=key), error.status
        return
    yield Finding(Level.INFO, "gpus", f"{show_count(len(gpus), 'GPU')} found, driver {view.driver}"), Exit.OK
    observer = Observer(probe)
    wrong = {path: what_is(path) for path in observer.devices.wrong}
    caps = capability_nodes(capability_files(gpus))
    names = lacking(observer.devices.nodes, wrong, gpus, caps)
    for text in missing(observer.devices.nodes, wrong, gpus, caps):
        yield Finding(Level.ERROR, "node", text, cure(names, wrong, caps)), Exit.UNAVAILABLE
    for path, what in wrong.items():
        hint = f"remove it and let the driver make it: {cure([path.rpartition('/')[2]], [path], caps)}"
        yield Finding(Level.WARN, "wrong-node", f"{path} is no node of the NVIDIA driver: {what}", hint), Exit.OK
    yield from _fitness(probe, [gpu.board for gpu in gpus])
    yield from _holders(scene_for(unit, config, layout), config, observer, [gpu.uuid for gpu in gpus], view, stopped)


def _fitness(probe: GpuProbe, claim: list[str]) -> Found:
    fitness = examine(probe, claim, lambda _: None, wait=0)
    for text in fitness.unknown:
        yield Finding(Level.WARN, "fitness-unknown", text, "see nvidia-smi -q"), Exit.OK
    for item in fitness.unfit:
        yield item.finding, item.status if item.finding.level is Level.ERROR else Exit.OK


def _holders(
    scene: Scene, config: Config, observer: Observer, claim: list[str], view: GpuView, stopped: frozenset[str]
) -> Found:
    listeners = listeners_at(config.server.endpoint(), observer.proc)
    pids = {item.inode: owner_of(item.inode, observer.proc.pids(), observer.proc) for item in listeners}
    seen = observer.look(scene, claim, config.sweep.free_below, view, [pid for pid in pids.values() if pid])
    for limit in seen.sight.limits:
        yield Finding(Level.ERROR, "sight", f"not everything can be seen: {limit}"), Exit.TEMPFAIL
    for item in seen.judged:
        if item.verdict is Verdict.CONFLICT and item.owner.name in stopped:
            text = f"{describe(item)} would be gone by then: systemd stops {item.owner.name} first (Conflicts=)"
            yield Finding(Level.INFO, "would-stop", text), Exit.OK
        elif item.verdict is Verdict.CONFLICT:
            yield Finding(Level.ERROR, "conflict", f"{describe(item)} is in the way: {item.why}{advice(item)}"), Exit.TEMPFAIL
        elif item.verdict is Verdict.REAP:
            yield Finding(Level.INFO, "would-reap", f"{describe(item)} would be reaped: {item.why}"), Exit.OK
    yield from _ports(config, observer, listeners, seen, pids)
    yield from _memory(config, claim, view, seen)


def _ports(
    config: Config, observer: Observer, listeners: list[Listener], seen: Observation, pids: dict[int, int | None]
) -> Found:
    """Who has the engine's port now: fine if it is this unit's own run, or would be reaped."""
    fine = {item.process.pid for item in seen.judged if item.rule == "current-run" or item.verdict is Verdict.REAP}
    ending = parents([item for item in seen.judged if item.verdict is Verdict.REAP])
    where = config.server.endpoint().uds or f"port {config.server.endpoint().port}"
    for listener in listeners:
        if pids[listener.inode] in fine:
            continue
        taken, key = taken_by(listener, observer.proc), "server.command"
        if taken.pid in ending:
            text = f"{where} is taken by {taken.who}, whose workers would be reaped: a start gives it time to end by itself"
            hint = f"if it does not: {taken.cure.removeprefix('to clear it: ')}"
            yield Finding(Level.INFO, "port-taken", text, hint, key=key), Exit.OK
        else:
            yield Finding(Level.ERROR, "port-taken", f"{where} is taken by {taken.who}", taken.cure, key=key), Exit.TEMPFAIL


def _memory(config: Config, claim: list[str], view: GpuView, seen: Observation) -> Found:
    """Memory that nobody visible holds: a start would wait for it, and refuse at the deadline."""
    mine = [(gpu, amount(gpu, seen.judged)) for gpu in view.gpus if gpu.uuid in claim]
    parts = [(gpu, size) for gpu, size in mine if size and size > config.sweep.free_below]
    if parts:
        here = {item.process.pid for item in seen.judged if item.process.devices}
        text, cure = explain(parts, here, Place(inner_namespace(), open_handles()))
        yield Finding(Level.ERROR, "memory-unexplained", text, cure), Exit.TEMPFAIL
