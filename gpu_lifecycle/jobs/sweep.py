"""The sweep: lock, look, judge, reap, look again, prove. Every wait has a deadline and is shown.

An interrupted sweep leaves nothing half done that the next one would not finish: it keeps no state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import ConfigError, Exit, LifecycleError
from gpu_lifecycle.facts import Gpu, GpuView, Judged, Layout, Verdict
from gpu_lifecycle.jobs.observe import Observation, Observer
from gpu_lifecycle.rules.claims import Release, claimed, judge_release
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.quantity import show_count, show_duration
from gpu_lifecycle.rules.report import advice, describe, judged_fields, memory_text
from gpu_lifecycle.rules.verdict import Scene
from gpu_lifecycle.system.devices import inner_namespace, open_handles
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.locks import hold_gpus
from gpu_lifecycle.system.sockets import listeners_at, owner_of

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

LOCK_SECONDS = 30.0
NVML_SECONDS = 30.0  # without persistence mode the first question initialises each GPU: 1 to 3 s per GPU
ROUNDS = 3  # a process that forks while it is ended leaves work for another round
POLL_FIRST, POLL_LAST = 0.05, 1.0


class Outcome(StrEnum):
    FREE = "free"
    CONFLICT = "conflict"
    STUCK = "stuck"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SweepResult:
    """How a sweep ended. ``results`` says per pid: "ended" (SIGTERM was enough), "killed" or "survived"."""

    outcome: Outcome
    text: str
    judged: tuple[Judged, ...] = ()
    results: dict[int, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    seconds: float = 0.0

    @property
    def status(self) -> Exit:
        return Exit.OK if self.outcome is Outcome.FREE else Exit.TEMPFAIL


class Sweep:
    """One sweep of one unit's claim. ``show(text)`` is told what is being waited for."""

    def __init__(
        self,
        scene: Callable[[], Scene],
        config: Config,
        layout: Layout,
        observer: Observer,
        journal: Journal,
        show: Callable[[str], None],
    ) -> None:
        self.find_scene = scene  # asked again once the locks are held: a start may have come in between
        self.scene = scene()
        self.config = config
        self.layout = layout
        self.observer = observer
        self.journal = journal
        self.show = show
        self.results: dict[int, str] = {}
        self.reaped: dict[int, Judged] = {}
        self.told: set[tuple[int, str]] = set()
        self.began = time.monotonic()

    def claim(self) -> tuple[tuple[Gpu, ...], GpuView]:
        """The claimed GPUs. Raises UnavailableError or ConfigError; after a stop, an unknown claim is an empty one."""
        self.show("asking NVML for the GPUs")
        view = self.observer.probe.view(NVML_SECONDS)
        try:
            return claimed(view, self.config.gpus.claim, self.config.gpus.count), view
        except LifecycleError as error:
            if not self.scene.survivors_only:
                raise
            self.journal.tell(Event("nvml-trouble", str(error)))
            return (), view

    def run(self, *, prove: bool = True) -> SweepResult:
        """The whole sweep. Raises LifecycleError where it could not begin.

        Without ``prove`` the memory is waited for only where something was reaped.
        """
        self.began = time.monotonic()
        gpus, view = self.claim()
        uuids = [gpu.uuid for gpu in gpus]
        with hold_gpus(self.layout, uuids, LOCK_SECONDS, lambda text, left: self.show(f"{text}, {left:.0f} s left")):
            self.scene = self.find_scene()
            self.journal.tell(Event("sweep-started", f"sweep of {show_count(len(uuids), 'GPU')}, policy {self.scene.policy}"))
            seen = self._reap_rounds(uuids, view)
            if self.results and uuids and any(item.verdict is Verdict.CONFLICT for item in seen.judged):
                seen = self._after_release(seen, uuids)
            return self._conclude(seen, uuids if prove or self.results else [], gpus)

    def rehearse(self) -> SweepResult:
        """What ``run`` would do: looks and judges, signals nobody."""
        gpus, view = self.claim()
        seen = self._look([gpu.uuid for gpu in gpus], view)
        reap = [item for item in seen.judged if item.verdict is Verdict.REAP]
        conflicts = [item for item in seen.judged if item.verdict is Verdict.CONFLICT]
        held = [gpu.label for gpu in gpus if self._unexplained(gpu, reap)]
        outcome = Outcome.CONFLICT if conflicts else Outcome.FREE if seen.sight.full and not held else Outcome.UNKNOWN
        text = f"{show_count(len(reap), 'process')} would be reaped, {len(conflicts)} in the way"
        if held:
            text += f"; memory that no visible process explains is held on GPU {', '.join(map(str, held))}"
        return SweepResult(outcome, text, seen.judged, {}, gpus, self._seconds())

    def _unexplained(self, gpu: Gpu, reap: list[Judged]) -> bool:
        """Whether a GPU would still not count as free without what would be reaped."""
        theirs = sum(item.memory.get(gpu.uuid) or 0 for item in reap)
        return gpu.used is None or gpu.used - theirs > self.config.sweep.free_below

    def _seconds(self) -> float:
        return round(time.monotonic() - self.began, 3)

    def _look(self, uuids: list[str], view: GpuView | None = None) -> Observation:
        view = view or self.observer.probe.view(NVML_SECONDS)
        seen = self.observer.look(self.scene, uuids, self.config.sweep.free_below, view, self._listeners())
        for limit in seen.sight.limits:
            if (0, limit) not in self.told:
                self.told.add((0, limit))
                self.journal.tell(Event("sight-partial", f"not everything could be seen: {limit}"))
        return seen

    def _listeners(self) -> set[int]:
        """Who has the engine's port: a leftover there is judged and reaped like one that holds a GPU."""
        try:
            listeners = listeners_at(self.config.server.endpoint(), self.observer.proc)
        except ConfigError:
            return set()
        return {pid for item in listeners if (pid := owner_of(item.inode, self.observer.proc.pids(), self.observer.proc))}

    def _reap_rounds(self, uuids: list[str], view: GpuView) -> Observation:
        """Reaps until a look finds nothing to reap, or what is left cannot be ended."""
        self.show("looking for processes that hold the GPUs")
        seen = self._look(uuids, view)
        for _ in range(ROUNDS):
            victims = [item for item in seen.judged if item.verdict is Verdict.REAP]
            if not victims or all(self.results.get(item.process.pid) == "survived" for item in victims):
                break
            self._reap(victims, uuids, view)
            seen = self._look(uuids)
        self._tell_verdicts(seen)
        return seen

    def _tell_verdicts(self, seen: Observation) -> None:
        """One event per decision about what stays; what was reaped has been told."""
        words = {Verdict.SPARE: "holder-spared"}
        if not self.scene.survivors_only:  # after a stop nobody is in the way of anything
            words[Verdict.CONFLICT] = "holder-conflict"
        for item in seen.judged:
            key = (item.process.pid, item.rule)
            if item.verdict in words and key not in self.told and item.rule not in ("init", "ourselves"):
                self.told.add(key)
                verb = "left alone" if item.verdict is Verdict.SPARE else "in the way"
                text = f"{verb}: {describe(item)}, because {item.why}{advice(item)}"
                self.journal.tell(Event(words[item.verdict], text, judged_fields(item)))

    def _reap(self, victims: list[Judged], uuids: list[str], view: GpuView) -> None:
        from gpu_lifecycle.jobs.reap import Reaper  # most sweeps find nobody, and a hook pays for each import

        def look() -> list[Judged]:
            return [item for item in self._look(uuids, view).judged if item.verdict is Verdict.REAP]

        limits = self.config.sweep
        reaper = Reaper(self.observer, limits.term_grace, limits.exit_deadline, self.show, look, self.scene.cgroup)
        for item, result in reaper.reap(victims):
            self._tell_reaped(item, result)

    def _tell_reaped(self, item: Judged, result: str) -> None:
        if result == "let-go":
            self.journal.tell(
                Event("holder-spared", f"left alone: {describe(item)}, it has let go of the GPU", judged_fields(item))
            )
            return
        self.results[item.process.pid] = result
        self.reaped[item.process.pid] = item
        fields = judged_fields(item)
        if result == "survived":
            self.journal.tell(Event("holder-survived", f"cannot end {self._stuck(item)}", fields))
            return
        signals = "SIGTERM, then SIGKILL" if result == "killed" else "SIGTERM"
        self.journal.tell(Event("holder-reaped", f"reaped {describe(item)} with {signals}, because {item.why}", fields))

    def _stuck(self, item: Judged) -> str:
        from gpu_lifecycle.rules.stuck import diagnose
        from gpu_lifecycle.system.threads import look_closely

        return f"{describe(item)}: {diagnose(look_closely(item.process.identity, self.observer.proc))}"

    def _after_release(self, seen: Observation, uuids: list[str]) -> Observation:
        """Judges again once what was reaped has let its memory go: who seemed in the way may only have been beside it."""
        _, view = self._wait_release(uuids, seen)
        again = self._look(uuids, view)
        self._tell_verdicts(again)
        return again

    def _conclude(self, seen: Observation, uuids: list[str], gpus: tuple[Gpu, ...]) -> SweepResult:
        survivors = [item for item in seen.judged if item.verdict is Verdict.REAP]
        conflicts = [item for item in seen.judged if item.verdict is Verdict.CONFLICT]
        if survivors:
            text = "cannot end " + "; nor ".join(self._stuck(item) for item in survivors[:3])
            return self._result(Outcome.STUCK, text, seen, gpus)
        if conflicts and not self.scene.survivors_only:
            text = "in the way: " + "; ".join(describe(item) + advice(item) for item in conflicts[:3])
            return self._result(Outcome.CONFLICT, text, seen, gpus)
        if not seen.sight.full and not self.scene.survivors_only:
            return self._result(Outcome.UNKNOWN, "not everything could be seen: " + "; ".join(seen.sight.limits), seen, gpus)
        return self._prove(seen, uuids, gpus)

    def _prove(self, seen: Observation, uuids: list[str], gpus: tuple[Gpu, ...]) -> SweepResult:
        """Process exit is one gate, memory release is the other, with a deadline of its own.

        The view that the last look judged by is the first sample: a whole scan lies between it and the next one.
        """
        if not uuids:
            blind = f"; the release of memory cannot be proven: {seen.view.error.text}" if seen.view.error else ""
            return self._result(Outcome.FREE, f"nothing of this unit is left{blind}", seen, gpus)
        release, view = self._wait_release(uuids, seen)
        shown = tuple(gpu for gpu in view.gpus if gpu.uuid in uuids)
        if release.free:
            self.journal.tell(
                Event("memory-released", f"memory of {show_count(len(uuids), 'GPU')} is free: {memory_text(shown)}")
            )
            return self._result(Outcome.FREE, f"{show_count(len(uuids), 'GPU')} free", seen, shown)
        seen = self._look(uuids, view)
        self._tell_verdicts(seen)
        holding = [item for item in seen.judged if any(uuid in release.held for uuid in item.memory)]
        if self.scene.survivors_only and holding:
            text = f"nothing of this unit is left; others hold memory: {describe(holding[0])}"
            return self._result(Outcome.FREE, text, seen, shown)
        who = "; ".join(describe(item) + advice(item) for item in holding[:3])
        why = f"{release.text}; by {who}" if who else self._unexplained_text(shown, seen.judged) or release.text
        text = f"memory is still held after {show_duration(self.config.sweep.memory_deadline)}: {why}"
        for uuid in release.held:
            self.journal.tell(Event("memory-held", text, {"GPU_LIFECYCLE_GPU": uuid}))
        outcome = Outcome.UNKNOWN if view.error else Outcome.CONFLICT if holding else Outcome.STUCK
        return self._result(outcome, text, seen, shown or gpus)

    def _wait_release(self, uuids: list[str], seen: Observation) -> tuple[Release, GpuView]:
        """Looks at the memory, quickly at first and slower later, until it is free and steady or the time is up.

        A holder that comes up meanwhile, or that this unit may not touch, ends the wait for nobody: the deadline does.
        """
        deadline = time.monotonic() + self.config.sweep.memory_deadline
        samples = [seen.view]
        pause = POLL_FIRST
        while True:
            samples = [*samples[-1:], self.observer.probe.view(NVML_SECONDS)]
            release = judge_release(samples, uuids, self.config.sweep.free_below)
            left = deadline - time.monotonic()
            if release.free or left <= 0 or self._others_hold(samples[-1], release):
                return release, samples[-1]
            self._tell_unexplained(samples[-1], release, seen)
            self.show(f"waiting for GPU memory: {release.text}, {show_duration(round(left))} left")
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, POLL_LAST)

    def _tell_unexplained(self, view: GpuView, release: Release, seen: Observation) -> None:
        """Once for each GPU. What was just reaped explains memory for a while: then the deadline tells."""
        new = [gpu for gpu in view.gpus if gpu.uuid in release.held and (0, gpu.uuid) not in self.told]
        if self.results or not (text := self._unexplained_text(new, seen.judged)):
            return
        self.told |= {(0, gpu.uuid) for gpu in new}
        fields = {"GPU_LIFECYCLE_GPU": " ".join(gpu.uuid for gpu in new)}
        self.journal.tell(Event("memory-unexplained", f"memory that no visible process explains: {text}", fields))

    def _unexplained_text(self, gpus: Sequence[Gpu], judged: Sequence[Judged]) -> str:
        """What is known of memory that nobody visible holds; "" where there is none, or a figure is unknown."""
        from gpu_lifecycle.rules.unexplained import Place, amount, explain

        parts = [(gpu, size) for gpu in gpus if (size := amount(gpu, judged)) and size > self.config.sweep.free_below]
        here = {item.process.pid for item in judged if item.process.devices}
        return "; ".join(explain(parts, here, Place(inner_namespace(), open_handles()))) if parts else ""

    def _others_hold(self, view: GpuView, release: Release) -> bool:
        """True where living holders, not a teardown, explain all that is held: waiting would not help."""
        explained = [self._explained(gpu, release) for gpu in view.gpus if gpu.uuid in release.held]
        return bool(explained) and all(explained)

    def _explained(self, gpu: Gpu, release: Release) -> bool:
        used = release.held.get(gpu.uuid)
        living = [entry for entry in gpu.processes or () if self.observer.scanner.held(entry.pid)[0]]
        if used is None or not living:
            return False
        return used - sum(entry.memory or 0 for entry in living) <= self.config.sweep.free_below

    def _result(self, outcome: Outcome, text: str, seen: Observation, gpus: tuple[Gpu, ...]) -> SweepResult:
        still = {item.process.pid for item in seen.judged}
        gone = tuple(item for pid, item in self.reaped.items() if pid not in still)
        result = SweepResult(outcome, text, gone + seen.judged, dict(self.results), gpus, self._seconds())
        told = f", {text}" if outcome is not Outcome.CONFLICT else ""  # each conflict has had its own event
        self.journal.tell(Event("sweep-finished", f"sweep ended in {result.seconds:.2f} s: {outcome}{told}"))
        return result
