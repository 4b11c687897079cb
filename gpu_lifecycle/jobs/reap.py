"""Ends processes that were judged so: pidfd first, identity again, still a holder, then the signal; harder step by step."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack

from gpu_lifecycle.facts import Judged
from gpu_lifecycle.jobs.observe import Observer
from gpu_lifecycle.rules.quantity import show_count, show_duration
from gpu_lifecycle.system.pidfd import Held, hold, make_room, wait_gone
from gpu_lifecycle.system.threads import thaw_below

STOP_ROUNDS = 8  # a fork storm is stopped in rounds, each with a new look, before anything of it is killed
Look = Callable[[], list[Judged]]


class Reaper:
    """Ends one set of victims. ``look`` finds what is to be reaped now: children that came up meanwhile are found by it."""

    def __init__(
        self, observer: Observer, grace: float, deadline: float, show: Callable[[str], None], look: Look, cgroup: str = ""
    ) -> None:
        self.observer = observer
        self.cgroup = cgroup  # the unit's own, which may be thawed
        self.grace = grace
        self.deadline = deadline
        self.show = show
        self.look = look
        self.held: dict[Held, Judged] = {}
        self.refused: set[Held] = set()
        self.stack = ExitStack()

    def reap(self, victims: list[Judged]) -> list[tuple[Judged, str]]:
        """Returns every victim with its end: "ended" (SIGTERM was enough), "killed", "survived", or "let-go" of the GPU."""
        make_room()
        with self.stack:
            self._hold(victims)
            rest = self._terminate()
            killed = self._kill(rest) if rest else []
            # Thawed before SIGKILL is pending, a storm would go on; left frozen, so would be what the next run puts there.
            thaw_below(self.cgroup, {item.process.cgroup for item in self.held.values()}, self.observer.proc)
            left = self._wait(killed, self.deadline, "to die after SIGKILL")
            return [(item, self._result(grip, killed, left)) for grip, item in self.held.items()]

    def _result(self, grip: Held, killed: list[Held], left: list[Held]) -> str:
        if grip in left or grip in self.refused:
            return "survived"
        if grip in killed:
            return "killed"
        return "ended" if grip.gone() else "let-go"

    def _hold(self, victims: list[Judged]) -> list[Held]:
        """Opens a pidfd for each that is not held yet; one that is gone, or is another by now, is left out."""
        known = {item.process.identity for item in self.held.values()}
        fresh = [hold(item.process.identity, self.observer.proc) for item in victims if item.process.identity not in known]
        grips = [self.stack.enter_context(grip) for grip in fresh if grip]
        by_identity = {item.process.identity: item for item in victims}
        self.held |= {grip: by_identity[grip.identity] for grip in grips}
        return grips

    def _terminate(self) -> list[Held]:
        """SIGTERM to the roots of the trees first, for an engine ends its own children best; then to all. Who still lives?"""
        pids = {item.process.pid for item in self.held.values()}
        roots = [grip for grip, item in self.held.items() if item.process.ppid not in pids]
        others = [grip for grip in self.held if grip not in roots]
        self._signal(roots, signal.SIGTERM)
        if others:
            self._wait(list(self.held), self.grace / 2, "to end after SIGTERM to their parents")
            self._signal(others, signal.SIGTERM)
        return self._wait(list(self.held), self.grace / 2 if others else self.grace, "to end after SIGTERM")

    def _kill(self, rest: list[Held]) -> list[Held]:
        """Stops all that is left, looks for what it has forked meanwhile, stops that, too; then kills all of it at once.

        SIGSTOP cannot be caught, and what is stopped forks no more, so each round leaves fewer that do.
        """
        targets, fresh, killed = list(rest), list(rest), list[Held]()
        try:
            for _ in range(STOP_ROUNDS):
                self._signal(fresh, signal.SIGSTOP)
                self.show(f"stopping {show_count(len(targets), 'process')} that did not end after SIGTERM")
                fresh = self._hold(self.look())
                if not fresh:
                    break
                targets += fresh
            killed = self._signal(targets, signal.SIGKILL)
        finally:  # also where a stop of the unit interrupts this: one that is not ended must not stay stopped by us
            for grip in set(targets) - set(killed) - self.refused:
                grip.send(signal.SIGCONT)
        return killed

    def _signal(self, grips: list[Held], number: signal.Signals) -> list[Held]:
        """Signals those that still are what they were judged for, and returns them; the others have let go of the GPU."""
        sent: list[Held] = []
        for grip in grips:
            if grip.gone() or not self._still_ours(self.held[grip]):
                continue
            try:
                grip.send(number)
            except PermissionError:
                self.refused.add(grip)  # a security module forbids it even to root
                continue
            sent.append(grip)
        return sent

    def _still_ours(self, item: Judged) -> bool:
        """Still in our cgroup, or still holding an NVIDIA device, just before a signal. The pidfd says that it is the same."""
        process = item.process
        if item.rule == "leftover-cgroup":
            return self.observer.proc.cgroup(process.pid) == process.cgroup
        if item.rule == "leftover-marker" and not process.devices:
            return self.observer.proc.marked(process.pid) == (process.marker_unit, process.marker_run)
        return bool(self.observer.scanner.held(process.pid)[0] & process.devices)  # of those that it was judged for

    def _wait(self, grips: list[Held], seconds: float, what: str) -> list[Held]:
        def tick(left: int, time_left: float) -> None:
            self.show(f"waiting for {show_count(left, 'process')} {what}, {show_duration(round(time_left))} left")

        return wait_gone(grips, seconds, tick)
