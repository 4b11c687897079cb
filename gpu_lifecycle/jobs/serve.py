"""The resident daemon: a loop that feeds ``rules.lifecycle.step`` and does what it says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from typing import assert_never

from gpu_lifecycle import __version__
from gpu_lifecycle.errors import BlindError, BusyError, Exit, LifecycleError
from gpu_lifecycle.facts import Gpu, Layout, Phase, UnitName
from gpu_lifecycle.jobs.before import Before
from gpu_lifecycle.jobs.evidence import Evidence, Scene
from gpu_lifecycle.jobs.kernel import KernelEar
from gpu_lifecycle.jobs.keys import EngineKey
from gpu_lifecycle.jobs.limits import claim_or_stop, limits_for, probe_deadline
from gpu_lifecycle.jobs.look import Looker, own_pids
from gpu_lifecycle.jobs.output import end_output, go_on, output_of, pack_output
from gpu_lifecycle.jobs.reload import Plan, prepare, replace_process
from gpu_lifecycle.jobs.settings import unit_cgroup
from gpu_lifecycle.jobs.state import StateFile, probe_rows, state_fields
from gpu_lifecycle.rules import lifecycle as life_rules
from gpu_lifecycle.rules.config import Config
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.handover import Handover, pack, unpack
from gpu_lifecycle.rules.lifecycle import Life, step
from gpu_lifecycle.rules.readiness import Look
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.system.cgroup import Cgroup
from gpu_lifecycle.system.engine import Adopted, Family, become_subreaper, engine_environment, reap_adopted, start
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.notify import Notifier, status_line
from gpu_lifecycle.system.procfs import Proc

LOADING_INTERVAL = 0.5  # seconds between two looks at a load
WARMING_INTERVAL = 0.2  # ... once the engine listens: READY=1 is near
ENDING_INTERVAL = 0.1  # ... at the processes that are to end
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HANDLED = (*SIGNALS, signal.SIGUSR1)  # each would end a program that does not handle it (yet)
HISTORY = 60  # of the last looks, for evidence
KERNEL_INTERVAL = 1.0  # ... at the kernel log; also at once when the engine ends
TICK = 1.0  # at least this often time itself is an event while loading


class Daemon:
    """One run. Owns the engine, the NVML helper and the loop; decides nothing."""

    def __init__(
        self,
        unit: UnitName,
        layout: Layout,
        config: Config,
        text: str,
        journal: Journal,
        notifier: Notifier,
        state: StateFile,
        handover: Handover | None = None,
    ) -> None:
        """``text`` is that of the config which the engine was started with, or is to be started with.

        With ``handover`` the run goes on that another version of this program has begun.
        """
        self.text = text
        self.latest = handover.latest if handover else text
        self.handover = handover
        self.plan: Plan | None = None
        self.reloading: asyncio.Task[None] | None = None
        self.unit = unit
        self.layout = layout
        self.config = config
        self.journal = journal
        self.notifier = notifier
        self.state = state
        self.proc = Proc()
        cgroup = unit_cgroup(self.proc, unit)
        self.family = Family(self.proc, Cgroup(cgroup) if cgroup else None)
        self.probe = GpuProbe()
        self.events: asyncio.Queue[life_rules.LifeEvent] = asyncio.Queue()
        self.engine: subprocess.Popen[bytes] | Adopted | None = None
        self.key = EngineKey(config.server, os.environ)
        self.looker = Looker(config, self.proc, self.family, self.probe, self.key)
        self.gpus: tuple[Gpu, ...] = ()
        self.kernel = KernelEar(layout, journal)
        self.last: Look | None = None
        self.saved = 0.0
        self.complained = False
        self.life: Life | None = None
        self.history: deque[dict[str, object]] = deque(maxlen=HISTORY)
        self.evidence = Evidence(layout, unit, state.run, self.proc, self.key.secrets)
        file = layout.config(unit)
        self.before = Before(unit, state.run, file, lambda text: self.events.put_nowait(life_rules.BeforeEnded(text)))
        self.began = time.time()
        self.oom_before = 0
        self.output = output_of(unit, state.run, config.server.preset.name, handover, self.key.secrets)
        self.watchers: list[asyncio.Task[None]] = []

    async def main(self) -> Exit:
        """The whole run. Raises LifecycleError where the engine could not be started at all."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGUSR1, lambda: self.looker.release(self.journal))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # the one before this, if any, has left them to us
        try:
            if not await (self._take_over(loop, self.handover) if self.handover else self._begin(loop)):
                return Exit.OK
            while True:
                self._start_watching()
                status = await self._loop()
                if status is not None:
                    return status
                await self._give_way(loop)
        finally:
            await self._close(loop)

    async def _begin(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Starts the engine. False where a stop came first."""
        self.notifier.send(status_line("asking NVML for the claimed GPUs"))
        found = await claim_or_stop(self.probe, self.config, self.events.get())
        if found is None:
            self.notifier.send("STOPPING=1", status_line("stopped before the engine was started"))
            return False
        gpus, visible = found
        self.gpus = gpus
        self.looker.begin(gpus)
        self.kernel.begin(gpus, self.state.kernel_log)
        self.life = Life(limits_for(self.config, gpus, self.notifier.watchdog), budget=self.state.budget)
        await self._start_engine(loop, visible)
        return True

    def _start_watching(self) -> None:
        self.watchers = [asyncio.create_task(self._watch()), asyncio.create_task(self._listen())]
        for task in self.watchers:
            task.add_done_callback(lambda _: self.events.put_nowait(life_rules.Tick(-1)))

    async def _take_over(self, loop: asyncio.AbstractEventLoop, handover: Handover) -> bool:
        """Goes on with a run that the program before this one, in this very process, has begun."""
        become_subreaper()
        self.gpus = handover.gpus
        self.looker.begin(self.gpus)
        self.kernel.begin(handover.gpus, self.state.kernel_log, skip=False)
        self.life = unpack(handover.life, limits_for(self.config, handover.gpus, self.notifier.watchdog))
        self.oom_before = handover.oom
        self.engine = Adopted(self.life.engine)
        if self.life.was_ready:
            self.looker.generated = None  # that was shown before
        self._mind_engine(loop)
        if handover.stop:
            self.events.put_nowait(life_rules.StopRequested())
        code = f"version {__version__}" + (f" in place of {handover.version}" if handover.version != __version__ else "")
        self._answer_reload(ok=True, text=f"reloaded, {code}; {handover.changes}")
        return True

    async def _reload(self) -> None:
        """Whatever is wrong is found before anything is given up, and told to whoever waits."""
        assert self.life
        try:
            if self.life.stage:
                raise BusyError("the run is ending")
            self.plan = await prepare(self.layout.config(self.unit), self._packed())
        except LifecycleError as error:
            self._answer_reload(ok=False, text=f"not reloaded, all stays as it was: {error}")
        self.events.put_nowait(life_rules.Tick(-1))

    def _packed(self, *, stop: bool = False) -> Handover:
        assert self.life
        plan = self.plan or Plan(self.latest, "")
        return Handover(self.state.run, pack(self.life), self.gpus, self.text, plan.latest, __version__, plan.changes,
                        self.oom_before, stop, pack_output(self.output))  # fmt: skip

    def _answer_reload(self, *, ok: bool, text: str) -> None:
        self.journal.tell(Event("reloaded" if ok else "reload-refused", text))
        number = (self.state.document.get("reload") or {}).get("number", 0)
        self.state.document["reload"] = {"number": number + 1, "ok": ok, "text": printable(text, 500)}
        self._save(changed=True)

    async def _give_way(self, loop: asyncio.AbstractEventLoop) -> None:
        """Becomes the installed code, which goes on from here; where that fails, this one does.

        All threads are ended first: a signal that one of them took would be lost. What is asked for meanwhile stays pending,
        or is in the queue and handed over.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        self.output.rest()
        await self._stop_watching()
        await self.looker.close()
        self.probe.close()
        await loop.shutdown_default_executor()
        await asyncio.sleep(0)
        asked = [self.events.get_nowait() for _ in range(self.events.qsize())]
        kept = [event for event in asked if not isinstance(event, (life_rules.Tick, life_rules.Looked))]
        try:
            if all(isinstance(event, life_rules.StopRequested) for event in kept):
                self.kernel.keep_open()
                self.output.keep_open()
                replace_process(self._packed(stop=bool(kept)))
        except OSError as error:
            self._answer_reload(ok=False, text=f"not reloaded, all stays as it was: {error.strerror}")
        self.plan = None
        self.output.begin(loop)
        self.looker = Looker(self.config, self.proc, self.family, self.probe, self.key)
        self.looker.begin(self.gpus)
        for event in kept:
            self.events.put_nowait(event)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)

    def _signalled(self, number: signal.Signals) -> None:
        """What asks for a stop. A terminal that closes does, too; under systemd SIGHUP asks for a reload.

        systemd counts a death by SIGHUP as a clean end (systemd.service(5), SuccessExitStatus=): no restart. It is
        handled, not ignored, for an ignored signal would stay ignored in the engine (execve(2)).
        """
        if number is not signal.SIGHUP:
            self.events.put_nowait(life_rules.StopRequested())
        elif not self.notifier.connected:
            if not (self.life and self.life.stopping):  # a terminal that closes may say so twice: that is no hurry
                self.events.put_nowait(life_rules.StopRequested())
        elif self.life and (self.reloading is None or self.reloading.done()):
            self.reloading = asyncio.create_task(self._reload())

    async def _start_engine(self, loop: asyncio.AbstractEventLoop, visible: dict[str, str]) -> None:
        become_subreaper()
        self.oom_before = self.family.oom_kills()
        server, file = self.config.server, self.layout.config(self.unit)
        environment = engine_environment(os.environ, server.environment | visible, self.unit, self.state.run)
        # In a thread: a program on a dead network file system must not keep a stop from being heard.
        self.engine = await asyncio.to_thread(start, server.command, environment, file, self.output.open())
        self._mind_engine(loop)
        self.events.put_nowait(life_rules.Started(self.engine.pid))

    def _mind_engine(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self.engine
        self.output.begin(loop)
        pidfd = os.pidfd_open(self.engine.pid)
        loop.add_reader(pidfd, self._engine_ended, loop, pidfd)

    def _engine_ended(self, loop: asyncio.AbstractEventLoop, pidfd: int) -> None:
        """The pidfd is readable: the main process has ended. Its status is taken here, once."""
        loop.remove_reader(pidfd)
        os.close(pidfd)
        assert self.engine
        self._hear()  # the reason before the end
        oom = self.family.oom_kills() - self.oom_before
        self.events.put_nowait(life_rules.EngineExited(self.engine.wait(), oom, self.output.words))

    async def _loop(self) -> Exit | None:
        """None: the installed code is to take over."""
        assert self.life
        while self.life.status is None:
            if self.plan and not self.life.stage:
                return None
            event = await self._next_event()
            for watcher in self.watchers:
                if watcher.done():
                    watcher.result()  # a watcher that failed must not leave an engine unwatched
            before = self.life
            self.life, effects = step(self.life, event, time.monotonic())
            for effect in effects:
                await self._do(effect)
            self._save(changed=before.text != self.life.text or before.phase is not self.life.phase)
        return self.life.status

    async def _next_event(self) -> life_rules.LifeEvent:
        assert self.life
        pause = ENDING_INTERVAL if self.life.stage else TICK if not self.life.was_ready else None
        try:
            async with asyncio.timeout(pause):
                return await self.events.get()
        except TimeoutError:
            reap_adopted(self._children())
            living = own_pids(self.family, self.probe) if self.life.stage else None
            return life_rules.Tick(-1 if living is None else len(living))  # -1: not known, so never "all have ended"

    async def _watch(self) -> None:
        """Looks at the engine again and again until the end begins."""
        assert self.life
        uuids = tuple(gpu.uuid for gpu in self.gpus)
        while self.life.stage == 0:
            try:
                self.last = await self.looker.look(uuids, self.life, probe_deadline(self.config, self.notifier.watchdog))
                self.history += [row | {"at": round(time.time(), 1)} for row in probe_rows(self.last)]
                self.kernel.know(identity.pid for identity in self.last.alive)
                self.events.put_nowait(life_rules.Looked(self.last, self.output.load))
            except BlindError as error:
                self.journal.tell(Event("sight-partial", str(error)))
            reap_adopted(self._children())
            await asyncio.sleep(self._interval())

    async def _listen(self) -> None:
        """Reads the kernel log to the very end of the run: what broke the GPU may be said after the engine has failed."""
        while True:
            self._hear()
            await asyncio.sleep(KERNEL_INTERVAL)

    def _hear(self) -> None:
        for said in self.kernel.hear(lambda: own_pids(self.family, self.probe) or ()):
            self.events.put_nowait(said)

    def _interval(self) -> float:
        assert self.life
        if self.life.phase in (Phase.READY, Phase.SUSPECT):
            return self.life.limits.interval
        bound = self.last is not None and self.last.socket.listening
        return WARMING_INTERVAL if bound else LOADING_INTERVAL

    async def _do(self, effect: life_rules.Effect) -> None:
        match effect:
            case life_rules.Notify(lines, status):
                self.notifier.send(*lines, *((status_line(status),) if status else ()))
            case life_rules.Tell(event):
                self.journal.tell(event)
            case life_rules.SignalMain():
                self._signal_main()
            case life_rules.SignalAll(kill):
                self._signal_all(signal.SIGKILL if kill else signal.SIGTERM)
            case life_rules.RunBefore():
                self.before.begin(self.config.stop.before or ())
            case life_rules.Gather(why):
                await self._gather(why)
            case life_rules.Finish():
                pass  # the loop sees the status in the state
            case _:
                assert_never(effect)

    async def _gather(self, why: str) -> None:
        """Evidence, before anything is signalled. It fails nothing: a run that ends has to end."""
        living = own_pids(self.family, self.probe) or {}
        environment = dict(os.environ) | self.config.server.environment
        since = None if self.life and self.life.was_ready else self.began
        scene = Scene(
            why, living, self.looker.view, self.history, self.output.tail(), self.config.server.command[0], environment, since
        )
        try:
            folder, locks = await asyncio.to_thread(self.evidence.gather, scene)
        except OSError as error:
            self.journal.tell(Event("sight-partial", f"no evidence of this is kept: {error}"))
            return
        self.journal.tell(Event("evidence-kept", f"evidence of this is kept in {folder}"))
        if locks:
            self.journal.tell(Event("build-locked", f"the load may have waited for a lock: {locks}"))

    def _children(self) -> set[int]:
        """Whose end is waited for elsewhere."""
        return {child.pid for child in (self.engine, self.before.process) if child}

    def _signal_main(self) -> None:
        if self.engine and self.engine.poll() is None:
            self.engine.send_signal(signal.SIGTERM)  # our own unreaped child: its pid cannot mean another process

    def _signal_all(self, number: signal.Signals) -> None:
        living = own_pids(self.family, self.probe) or {}
        for refused in self.family.signal(living.values(), number):
            self.journal.tell(Event("sight-partial", refused))

    def _save(self, *, changed: bool) -> None:
        """Keeps the state file: at once on a change, else about as often as looks are made."""
        assert self.life
        go_on(self.output, self.life.phase, self.journal)
        now = time.monotonic()
        if not changed and now - self.saved < 5.0:
            return
        self.saved = now
        complaint = self.state.save(
            self.life.phase, self.life.text, **state_fields(self.life, self.last, self.looker.view, self.gpus)
        )
        if complaint and not self.complained:
            self.complained = True
            self.journal.tell(Event("sight-partial", f"the state file is not kept: {complaint}"))

    async def _stop_watching(self) -> None:
        self.probe.interrupt()
        for watcher in self.watchers:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        self.watchers = []

    async def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        await self._stop_watching()
        self.kernel.close()
        await self.before.close()
        if self.reloading:
            self.reloading.cancel()
            await asyncio.wait({self.reloading})
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        await self.looker.close()
        if self.engine and self.engine.poll() is None:
            self._signal_all(signal.SIGKILL)  # only after a defect of ours: nothing may outlive its watcher
            self.engine.wait()
        self.probe.close()
        end_output(self.output, self.journal)
        reap_adopted(self._children())
