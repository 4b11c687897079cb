"""The resident daemon: a loop that feeds ``rules.lifecycle.step`` and does what it says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

from gpu_lifecycle import __version__
from gpu_lifecycle.errors import BlindError, BusyError, Exit, LifecycleError
from gpu_lifecycle.facts import Gpu, Identity, Layout, Phase, UnitName
from gpu_lifecycle.jobs.account import Account
from gpu_lifecycle.jobs.before import Before
from gpu_lifecycle.jobs.drain import DrainWatch
from gpu_lifecycle.jobs.evidence import Evidence, Scene
from gpu_lifecycle.jobs.kernel import KernelEar, KernelNews
from gpu_lifecycle.jobs.keys import EngineKey
from gpu_lifecycle.jobs.limits import claim_or_stop, limits_for, probe_deadline
from gpu_lifecycle.jobs.loads import Loads, load_fields
from gpu_lifecycle.jobs.look import Looker, own_pids
from gpu_lifecycle.jobs.main_process import MainProcess
from gpu_lifecycle.jobs.outlets import Outlets
from gpu_lifecycle.jobs.output import end_output, go_on, output_of, pack_output
from gpu_lifecycle.jobs.reload import Plan, prepare, replace_process
from gpu_lifecycle.jobs.settings import unit_cgroup
from gpu_lifecycle.jobs.state import StateFile, probe_rows
from gpu_lifecycle.rules import lifecycle as life_rules
from gpu_lifecycle.rules.config import Config
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.handover import Handover, pack, unpack
from gpu_lifecycle.rules.lifecycle import BeforeEnded, Life, step
from gpu_lifecycle.rules.pace import look_after, tick_after
from gpu_lifecycle.rules.readiness import Look
from gpu_lifecycle.system.cgroup import Cgroup
from gpu_lifecycle.system.engine import Family, become_subreaper, engine_environment, reap_adopted
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.notify import Notifier, status_line
from gpu_lifecycle.system.probe import load_client
from gpu_lifecycle.system.procfs import Proc

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HANDLED = (*SIGNALS, signal.SIGUSR1)  # each would end a program that does not handle it (yet)
HISTORY = 60  # of the last looks, for evidence
THREADS = 4  # for what may block: programs, files
KERNEL_INTERVAL = 1.0  # ... at the kernel log; also at once when the engine ends


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
        probe: GpuProbe,
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
        self.probe = probe
        self.events: asyncio.Queue[life_rules.LifeEvent] = asyncio.Queue()
        self.key = EngineKey(config.server, os.environ, journal.tell)
        self.looker = Looker(config, self.proc, self.family, self.probe, self.key)
        self.gpus: tuple[Gpu, ...] = ()
        self.kernel = KernelEar(layout, journal)
        self.news = KernelNews(self.kernel, self._advice, self._living, self.events.put_nowait)
        self.loads = Loads(layout, unit, config, self.proc, journal)
        self.drain = DrainWatch(config, self.key, self._serves, self.events.put_nowait)
        self.last: Look | None = None
        self.life: Life | None = None
        self.history: deque[dict[str, object]] = deque(maxlen=HISTORY)
        self.evidence = Evidence(layout, unit, state.run, self.proc, self.key.secrets)
        self.before = Before(unit, state.run, layout.config(unit), lambda text: self.events.put_nowait(BeforeEnded(text)))
        self.began = time.time()
        self.output = output_of(unit, state.run, config.server.preset.name, handover, self.key.secrets)
        self.output.moved = lambda load: self.events.put_nowait(life_rules.Heard(load))
        self.engine = MainProcess(self.family, self.output, self.news, self.events.put_nowait)
        self.account = Account(layout, unit, state, journal, self.output, handover.start if handover else None)
        self.outlets = Outlets(config, unit, state, journal, self.family.apart)
        self.watchers: list[asyncio.Task[None]] = []

    async def main(self) -> Exit:
        """The whole run. Raises LifecycleError where the engine could not be started at all."""
        loop = asyncio.get_running_loop()
        self._have_threads(loop)
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGUSR1, lambda: self.looker.release(self.journal))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # the one before this, if any, has left them to us
        try:
            if not await (self._take_over(self.handover) if self.handover else self._begin()):
                return Exit.OK
            while True:
                self._start_watching()
                status = await self._loop()
                if status is not None:
                    return status
                await self._give_way(loop)
        finally:
            await self._close(loop)

    async def _begin(self) -> bool:
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
        limits = limits_for(self.config, gpus, self.notifier.watchdog)
        self.life = Life(await asyncio.to_thread(self.loads.limits, limits, gpus), budget=self.state.budget)
        await self._start_engine(visible)
        return True

    def _start_watching(self) -> None:
        self.outlets.begin()
        self.watchers = [asyncio.create_task(self._watch()), asyncio.create_task(self._listen())]
        for task in self.watchers:
            task.add_done_callback(lambda _: self.events.put_nowait(life_rules.Tick(-1)))

    async def _take_over(self, handover: Handover) -> bool:
        """Goes on with a run that the program before this one, in this very process, has begun."""
        become_subreaper()
        self.gpus = handover.gpus
        self.looker.begin(self.gpus)
        self.kernel.begin(handover.gpus, self.state.kernel_log, skip=False)
        limits = limits_for(self.config, handover.gpus, self.notifier.watchdog)
        self.life = unpack(handover.life, await asyncio.to_thread(self.loads.limits, limits, handover.gpus))
        if self.life.was_ready:
            self.looker.generated = None  # that was shown before
        self.engine.adopt(self.life.engine, handover.oom)
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
            self.key.must_be_back()
            self.plan = await prepare(self.layout.config(self.unit), self._packed())
        except LifecycleError as error:
            self._answer_reload(ok=False, text=f"not reloaded, all stays as it was: {error}")
        self.events.put_nowait(life_rules.Tick(-1))

    def _packed(self, *, stop: bool = False) -> Handover:
        assert self.life
        plan = self.plan or Plan(self.latest, "")
        return Handover(self.state.run, pack(self.life), self.gpus, self.text, plan.latest, __version__, plan.changes,
                        self.engine.oom_before, stop, pack_output(self.output), self.account.start.pack())  # fmt: skip

    def _answer_reload(self, *, ok: bool, text: str) -> None:
        self.journal.tell(Event("reloaded" if ok else "reload-refused", text))
        self.state.note_reload(ok=ok, text=text)
        self._save(changed=True)

    async def _give_way(self, loop: asyncio.AbstractEventLoop) -> None:
        """Becomes the installed code, which goes on from here; where that fails, this one does.

        All threads are ended first: a signal that one of them took would be lost. What is asked for meanwhile stays pending,
        or is in the queue and handed over.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        self.output.rest()
        await self._stop_watching()
        await self.outlets.rest()
        await self.engine.settle()
        await self.looker.close()
        self.probe.close()
        self.threads.shutdown()
        await asyncio.sleep(0)
        asked = [self.events.get_nowait() for _ in range(self.events.qsize())]
        kept = [event for event in asked if not isinstance(event, (life_rules.Tick, life_rules.Looked, life_rules.Heard))]
        try:
            if all(isinstance(event, life_rules.StopRequested) for event in kept):
                self.key.must_be_back()
                self.kernel.keep_open()
                self.output.keep_open()
                replace_process(self._packed(stop=bool(kept)))
        except (OSError, BusyError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._answer_reload(ok=False, text=f"not reloaded, all stays as it was: {why}")
        self.plan = None
        self._have_threads(loop)
        self.output.begin(loop)
        self.looker = Looker(self.config, self.proc, self.family, self.probe, self.key)
        self.looker.begin(self.gpus)
        for event in kept:
            self.events.put_nowait(event)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)

    def _have_threads(self, loop: asyncio.AbstractEventLoop) -> None:
        """A pool that may be ended and made anew, which the loop's own may not."""
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="daemon")
        loop.set_default_executor(self.threads)

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

    async def _start_engine(self, visible: dict[str, str]) -> None:
        become_subreaper()
        server = self.config.server
        environment = engine_environment(os.environ, server.environment | visible, self.unit, self.state.run)
        pid = await self.engine.start(server.command, environment, self.layout.config(self.unit))
        self.events.put_nowait(life_rules.Started(pid))

    async def _advice(self) -> dict[str, int]:
        return await self.looker.recovery_actions()  # of the looker that there is now

    def _living(self) -> dict[int, Identity]:
        return own_pids(self.family, self.probe) or {}

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
            self.account.note(self.life, event)
            if self.life.was_ready and not before.was_ready:
                self._save(changed=True)  # first: whoever waits for READY=1 may ask at once
            for effect in effects:
                await self._do(effect)
            self._save(changed=before.text != self.life.text or before.phase is not self.life.phase)
        await self.account.close()
        return self.life.status

    async def _next_event(self) -> life_rules.LifeEvent:
        assert self.life
        try:
            async with asyncio.timeout(tick_after(self.life)):
                return await self.events.get()
        except TimeoutError:
            reap_adopted(self._children())
            living = own_pids(self.family, self.probe) if self.life.stage else None
            return life_rules.Tick(-1 if living is None else len(living))  # -1: not known, so never "all have ended"

    async def _watch(self) -> None:
        """Looks at the engine again and again until the end begins."""
        assert self.life
        uuids = tuple(gpu.uuid for gpu in self.gpus)
        await asyncio.to_thread(load_client)
        while self.life.stage == 0:
            try:
                look = await self.looker.look(uuids, self.life, probe_deadline(self.config, self.notifier.watchdog))
                if self.life.stage:
                    return  # its questions were given up
                self.last = look
                self.history += [row | {"at": round(time.time(), 1)} for row in probe_rows(self.last)]
                self.kernel.know(identity.pid for identity in self.last.alive)
                read, doing = await self.loads.seen(self.life, self.last.alive)
                self.events.put_nowait(life_rules.Looked(self.last, self.output.load, read, doing))
            except BlindError as error:
                self.journal.tell(Event("sight-partial", str(error)))
            reap_adopted(self._children())
            await self.output.pause(look_after(self.life, self.last, self.output.serving()))

    async def _listen(self) -> None:
        """Reads the kernel log to the very end of the run: what broke the GPU may be said after the engine has failed."""
        while True:
            await self.news.hear()
            await asyncio.sleep(KERNEL_INTERVAL)

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
            case life_rules.Remember(loaded):
                self.loads.keep(loaded)
            case life_rules.Finish():  # the loop sees the status in the state
                pass
            case _:
                assert_never(effect)

    async def _gather(self, why: str) -> None:
        """Evidence, before anything is signalled."""
        environment = dict(os.environ) | self.config.server.environment
        since = None if self.life and self.life.was_ready else self.began
        known = (why, self._living(), self.looker.view, self.history, self.output.tail(), self.config.server.command[0])
        scene = Scene(*known, environment, since, load_fields(self.life))
        self.account.row["folder"] = await self.evidence.keep(scene, self.journal)

    def _children(self) -> set[int]:
        """Whose end is waited for elsewhere."""
        return {child.pid for child in (self.engine.child, self.before.process) if child} | self.family.apart

    def _signal_main(self) -> None:
        self.looker.pulse.give_up()
        self.engine.terminate()
        if self.life and self.life.phase is Phase.DRAINING:
            self.drain.begin()

    def _serves(self, aside: bool) -> bool:
        living = self._living()
        return self.looker.page_is_ours(living) if aside else self.looker.socket(living).ours

    def _signal_all(self, number: signal.Signals) -> None:
        self.looker.pulse.give_up()
        for refused in self.family.signal(self._living().values(), number):
            self.journal.tell(Event("sight-partial", refused))

    def _save(self, *, changed: bool) -> None:
        assert self.life
        go_on(self.output, self.life.phase, self.journal)
        account, seen = self.account.row, (self.life, self.last, self.looker.view, self.gpus)
        self.state.keep(*seen, self.journal, changed=changed, account=account)
        self.outlets.see(*seen, account)

    async def _stop_watching(self) -> None:
        self.probe.interrupt()
        for watcher in self.watchers:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        self.watchers = []

    async def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        await self._stop_watching()
        await self.outlets.close(self.life, self.events)
        self.kernel.close()
        await self.before.close()
        await self.drain.close()
        await self.loads.close()
        await self.engine.close()
        if self.reloading:
            self.reloading.cancel()
            await asyncio.wait({self.reloading})
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        await self.looker.close()
        if self.engine.child and self.engine.runs:
            self._signal_all(signal.SIGKILL)  # only after a defect of ours: nothing may outlive its watcher
            self.engine.child.wait()
        self.probe.close()
        end_output(self.output, self.journal)
        reap_adopted(self._children())
