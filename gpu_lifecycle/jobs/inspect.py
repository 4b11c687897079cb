"""The commands that look: ``holders``, ``gpus``, and ``sweep`` by hand."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.errors import BlindError, ConfigError, Exit, LifecycleError, NotPermittedError
from gpu_lifecycle.facts import GpuView, Judged, Layout, UnitName
from gpu_lifecycle.jobs.fitness import examine
from gpu_lifecycle.jobs.observe import Observer
from gpu_lifecycle.jobs.printed import managed_units, print_json
from gpu_lifecycle.jobs.runs import past_runs
from gpu_lifecycle.jobs.settings import load_config
from gpu_lifecycle.jobs.sweep import NVML_SECONDS, Sweep, SweepResult
from gpu_lifecycle.rules import config as defaults
from gpu_lifecycle.rules.claims import named
from gpu_lifecycle.rules.fitness import state
from gpu_lifecycle.rules.report import gpu_json, holder_json, sight_json
from gpu_lifecycle.rules.unexplained import amount
from gpu_lifecycle.rules.verdict import Policy, Scene
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.journal import Journal

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

FREE_BELOW = defaults.Sweep.free_below  # no unit is meant here, whose config could say another one
WATCH_EVERY = 2.0  # seconds between two looks of gpus --watch


def scene_for(unit: UnitName | None, config: Config | None, layout: Layout) -> Scene:
    """How a command by hand judges: what belongs to a run that is alive now is spared."""
    if unit is None or config is None:
        return Scene(unit=UnitName("none"), policy=Policy.OWNED)
    from gpu_lifecycle.system.bus import Bus

    run = cgroup = ""
    unknown = False
    try:
        with Bus() as bus:
            state = bus.unit_state(unit.service)
        if state.active not in ("inactive", "failed"):
            run, cgroup = state.invocation_id or "unknown", state.control_group
    except BlindError:
        unknown = True  # without the bus a run may be alive: nothing that bears this unit's marker is touched
    policy, protect, runs = Policy(config.sweep.policy), tuple(config.sweep.protect), past_runs(layout, unit)
    return Scene(unit, policy, protect, cgroup, run, run_unknown=unknown, past_runs=runs)


def holders(unit: UnitName | None, layout: Layout, *, as_json: bool) -> int:
    """Prints every holder with its verdict, for one unit or (as the default policy sees it) for all GPUs."""
    unit = unit or _only(layout)
    config = load_config(layout, unit) if unit else None
    with GpuProbe() as probe:
        observer = Observer(probe)
        view = probe.view(NVML_SECONDS)
        claim = _claim_of(config, view)
        seen = observer.look(scene_for(unit, config, layout), claim, config.sweep.free_below if config else sys.maxsize, view)
    shown = [item for item in seen.judged if item.process.devices and item.rule != "ourselves"]
    if as_json:
        print_json({"schema": 1, "sight": sight_json(seen.sight), "holders": [holder_json(item) for item in shown]})
    else:
        from gpu_lifecycle.jobs.tables import holders_table, show

        show(holders_table(shown, view, seen.sight))
    return Exit.OK


def _only(layout: Layout) -> UnitName | None:
    """The managed unit, where there is just one: its policy is what a person means by a verdict then."""
    units = managed_units(layout)
    return units[0] if len(units) == 1 else None


def _claim_of(config: Config | None, view: GpuView) -> list[str]:
    if config is None or view.error:
        return [gpu.uuid for gpu in view.gpus]
    try:
        return [gpu.uuid for gpu in named(view, config.gpus.claim)]
    except LifecycleError as error:
        print(f"gpu-lifecycle: {error}", file=sys.stderr)
        return []


def gpus(layout: Layout, *, as_json: bool, watch: bool = False) -> int:
    """Prints every GPU, who claims it, and how much of its memory no visible process explains.

    ``watch`` goes on doing so until it is interrupted; a look that fails is told, and the next one is made. JSON is then one
    document on each line.
    """
    with GpuProbe() as probe:
        observer = Observer(probe)
        if not watch:
            _show_gpus(_gpu_rows(layout, observer), as_json=as_json)
        while watch:
            try:
                _show_gpus(_gpu_rows(layout, observer), as_json=as_json, again=True)
            except LifecycleError as error:
                print(f"gpu-lifecycle: {error}", file=sys.stderr)
            time.sleep(WATCH_EVERY)
    return Exit.OK


def _gpu_rows(layout: Layout, observer: Observer) -> list[dict[str, Any]]:
    """Raises UnavailableError where NVML shows nothing."""
    probe = observer.probe
    view = probe.view(NVML_SECONDS)
    uuids = [gpu.uuid for gpu in view.gpus]
    seen = observer.look(Scene(unit=UnitName("none")), uuids, FREE_BELOW, view)
    fitness = {} if view.error else {item.uuid: item for item in examine(probe, uuids, lambda _: None, wait=0).health}
    if view.error:
        from gpu_lifecycle.rules.claims import trouble

        raise trouble("cannot look at the GPUs", view.error)
    claims = _claims(layout, view)
    return [
        gpu_json(gpu, claims.get(gpu.uuid, []), amount(gpu, seen.judged), state(fitness.get(gpu.board))) for gpu in view.gpus
    ]


def _show_gpus(rows: list[dict[str, Any]], *, as_json: bool, again: bool = False) -> None:
    if as_json:
        print_json({"schema": 1, "gpus": rows}, indent=None if again else 2)
    else:
        from gpu_lifecycle.jobs.tables import gpus_table, show

        show(gpus_table(rows), clear=again)


def _claims(layout: Layout, view: GpuView) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for unit in managed_units(layout):
        try:
            config = load_config(layout, unit)
            mine = named(view, config.gpus.claim)
        except (ConfigError, LifecycleError) as error:
            print(f"gpu-lifecycle: {error}", file=sys.stderr)
            continue
        for gpu in mine:
            found.setdefault(gpu.uuid, []).append(unit.service)
    return found


def sweep(unit: UnitName, layout: Layout, *, as_json: bool, dry_run: bool) -> int:
    """The sweep by hand. What belongs to a run of the unit that is alive is spared."""
    if os.geteuid() != 0 and not dry_run:
        raise NotPermittedError(
            "cannot sweep: only root may end other users' processes", hint="run it with sudo, or with --dry-run"
        )
    config = load_config(layout, unit)
    journal = Journal(unit.service, terminal=not as_json, by_hand=True)
    show = _shower()
    with GpuProbe() as probe:
        job = Sweep(lambda: scene_for(unit, config, layout), config, layout, Observer(probe), journal, show)
        result = job.rehearse() if dry_run else job.run()
        ours = job.observer.ours()
    listed = [item for item in result.judged if item.process.pid not in ours]
    if as_json:
        print_json(_sweep_json(result, listed))
    else:
        from gpu_lifecycle.jobs.tables import show as show_table
        from gpu_lifecycle.jobs.tables import sweep_table

        show_table(sweep_table(result.outcome, result.text, listed, result.results))
    return result.status


def _shower() -> Any:
    """Waits are shown on a terminal only: one line that is written over."""
    if not sys.stderr.isatty():
        return lambda _text: None
    return lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _sweep_json(result: SweepResult, listed: list[Judged]) -> dict[str, Any]:
    rows = [holder_json(item, result.results.get(item.process.pid), with_result=True) for item in listed]
    return {
        "schema": 1,
        "outcome": str(result.outcome),
        "text": result.text,
        "holders": rows,
        "gpus": [gpu_json(gpu) for gpu in result.gpus],
        "seconds": result.seconds,
    }
