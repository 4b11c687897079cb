"""Look at everything once, and judge it: the part that ``holders``, ``sweep`` and both hooks share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Gpu, GpuView, Identity, Judged, Owner, OwnerKind, Process, Scan, Sight
from gpu_lifecycle.rules.claims import full_gpus
from gpu_lifecycle.rules.owners import owner_of
from gpu_lifecycle.rules.verdict import FOREGROUND, Case, Scene, in_cgroup, judge, marks
from gpu_lifecycle.system.devices import Devices, find_devices
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.holders import Scanner
from gpu_lifecycle.system.procfs import Proc


@dataclass(frozen=True, slots=True)
class Observation:
    """One look: who holds what, and what is to happen to them."""

    scan: Scan
    view: GpuView
    judged: tuple[Judged, ...]
    sight: Sight


class Observer:
    """Looks as often as asked; keeps what does not change between looks."""

    def __init__(self, probe: GpuProbe) -> None:
        self.proc = Proc()
        self.devices: Devices = find_devices()
        self.scanner = Scanner(self.proc, self.devices)
        self.probe = probe
        self._ancestors = frozenset(self.proc.ancestors(os.getpid()))

    def ours(self) -> frozenset[int]:
        """This program, what started it, and its helpers: never touched."""
        return self._ancestors | self.probe.pids

    def look(
        self, scene: Scene, claim: Sequence[str], free_below: int, view: GpuView, extra: Collection[int] = ()
    ) -> Observation:
        """Scans, joins with NVML's ``view``, and judges. ``claim`` are UUIDs.

        ``extra`` are processes that are judged although they hold nothing, such as who listens on the engine's port.
        """
        scan = self.scanner.scan(scene.cgroup)
        others = [process for pid in extra if (process := self.proc.describe(pid))]
        limits = [self._blocking(identity) for identity in scan.blocked]
        scan = replace(scan, sight=scan.sight.plus(*limits))
        scene = replace(
            scene,
            ours=scene.ours | self.ours(),
            full=full_gpus(view, claim, free_below) if not view.error else frozenset(claim),
            sight_full=scan.sight.full,
        )
        processes = {process.pid: process for process in (*others, *scan.members, *scan.holders)}
        scene = replace(scene, live_runs=self._live_runs(processes.values()))
        memory = memory_of(view, processes)
        owners, marked = self._owners(processes.values(), scene)
        chain = _init_chain(scan.holders)
        judged = tuple(
            judge(
                replace(
                    self._case(process, owners[process.pid], memory.get(process.pid, {}), claim, view, chain, scene),
                    marker_alive=marked.get(process.marker_unit, False),
                ),
                scene,
            )
            for process in processes.values()
        )
        sight = scan.sight.plus(*(f"NVML: {view.error.text}",) if view.error else ())
        return Observation(scan, view, judged, sight)

    def _blocking(self, identity: Identity) -> str:
        from gpu_lifecycle.rules.stuck import diagnose
        from gpu_lifecycle.system.threads import look_closely

        stat = self.proc.stat(identity.pid)
        title = self.proc.title(identity.pid, stat) if stat else ""
        why = diagnose(look_closely(identity, self.proc))
        return f'process {identity.pid} "{title}" blocks whoever looks at its memory mappings: {why}'

    def _live_runs(self, processes: Collection[Process]) -> frozenset[str]:
        """The runs outside systemd, named by the markers, whose daemon is alive."""
        named = {process.marker_run for process in processes if process.marker_run.startswith(FOREGROUND)}
        return frozenset(run for run in named if self._daemon_lives(run))

    def _daemon_lives(self, run: str) -> bool:
        pid, _, ticks = run.removeprefix(FOREGROUND).partition(".")
        if not (pid.isdecimal() and ticks.isdecimal()):
            return True  # not a name that we give: nothing is known of it
        return self.proc.is_alive(Identity(self.proc.boot_id, int(pid), int(ticks)))

    def _case(
        self,
        process: Process,
        owner: Owner,
        memory: dict[str, int | None],
        claim: Sequence[str],
        view: GpuView,
        chain: frozenset[int],
        scene: Scene,
    ) -> Case:
        minors = {self.devices.minor_of(rdev) for rdev in process.devices} - {None}
        gpus = tuple(gpu.uuid for gpu in view.gpus if gpu.minor in minors and self._holds(gpu, process, memory, scene))
        concerned = tuple(uuid for uuid in claim if uuid in gpus or uuid in memory)
        return Case(
            process=process,
            owner=owner,
            gpus=gpus,
            claimed=concerned,
            uvm=any(self.devices.is_uvm(rdev) for rdev in process.devices),
            memory=memory,
            parent_is_init=process.pid in chain,
        )

    def _holds(self, gpu: Gpu, process: Process, memory: dict[str, int | None], scene: Scene) -> bool:
        """Instances of one GPU (MIG) share its node: only NVML tells who holds which; what this unit left may be in any."""
        return not gpu.parent or gpu.uuid in memory or marks(process, scene)

    def _owners(self, processes: Collection[Process], scene: Scene) -> tuple[dict[int, Owner], dict[str, bool | None]]:
        """Who owns each process, and which other units that markers name are alive.

        The bus is asked only about units of others: of ours, the cgroup says enough.
        """
        owners = {process.pid: owner_of(process.cgroup) for process in processes}
        others = [process.pid for process in processes if not in_cgroup(process, scene.cgroup)]
        markers = {process.marker_unit for process in processes} - {"", scene.unit.service}
        alive = units_alive({owners[pid].name for pid in others if owners[pid].kind is OwnerKind.UNIT} | markers)
        return {
            pid: replace(owner, alive=alive.get(owner.name)) if owner.kind is OwnerKind.UNIT else owner
            for pid, owner in owners.items()
        }, {name: alive[name] for name in markers}


def units_alive(names: set[str]) -> dict[str, bool | None]:
    """Which units are alive. None: a unit of a user's own manager, or a bus that does not answer."""
    system = {name for name in names if "/" not in name}
    alive: dict[str, bool | None] = dict.fromkeys(names)
    if not system:
        return alive
    from gpu_lifecycle.system.bus import Bus

    try:
        with Bus() as bus:
            for name in system:
                # A name from a process's environment may be anything: what it breaks is its own answer.
                with contextlib.suppress(LifecycleError):
                    alive[name] = bus.unit_state(name).active not in ("inactive", "failed")
    except LifecycleError:
        return alive  # no bus: unknown stays None, and the rules spare what is unknown
    return alive


def memory_of(view: GpuView, processes: dict[int, Process]) -> dict[int, dict[str, int | None]]:
    """NVML's figures, only for processes that ``/proc`` shows as holders: NVML lists dead and reused pids too."""
    found: dict[int, dict[str, int | None]] = {}
    for gpu in view.gpus:
        for entry in gpu.processes or ():
            process = processes.get(entry.pid)
            if process and process.devices:
                found.setdefault(entry.pid, {})[gpu.uuid] = entry.memory
    return found


def _init_chain(holders: Sequence[Process]) -> frozenset[int]:
    """Holders whose line of parents up to process 1 consists of holders only: nobody else can answer for them."""
    parents = {process.pid: process.ppid for process in holders}
    found = set()
    for pid in parents:
        at, seen = pid, {pid}
        while (up := parents[at]) in parents and up not in seen:
            seen.add(up)
            at = up
        if parents[at] == 1:
            found.add(pid)
    return frozenset(found)
