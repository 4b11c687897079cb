"""The resident daemon: the unit's main process. A loop that feeds ``rules.lifecycle.step`` and does what it says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, assert_never

from gpu_lifecycle.errors import BlindError, BusyError, Exit, LifecycleError
from gpu_lifecycle.facts import ErrorClass, Gpu, Layout, Phase, UnitName
from gpu_lifecycle.jobs.evidence import Evidence, Scene
from gpu_lifecycle.jobs.kernel import KernelEar
from gpu_lifecycle.jobs.look import Looker, own_pids
from gpu_lifecycle.jobs.settings import load_config, unit_cgroup
from gpu_lifecycle.jobs.state import StateFile, probe_row, state_fields
from gpu_lifecycle.rules import lifecycle as life_rules
from gpu_lifecycle.rules.claims import claimed
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.lifecycle import Life, Limits, step
from gpu_lifecycle.rules.readiness import Look, Needs, min_used_for
from gpu_lifecycle.rules.verdict import FOREGROUND
from gpu_lifecycle.system.cgroup import Cgroup
from gpu_lifecycle.system.engine import Family, become_subreaper, ended, engine_environment, reap_adopted, start
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.notify import Notifier, status_line
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.weights import weights_size

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

NVML_SECONDS = 30.0
LOADING_INTERVAL = 0.5  # seconds between two looks at a load
WARMING_INTERVAL = 0.2  # ... once the engine listens: READY=1 is near
ENDING_INTERVAL = 0.1  # ... at the processes that are to end
HISTORY = 60  # of the last looks, for evidence
KERNEL_INTERVAL = 1.0  # ... at the kernel log; also at once when the engine ends
TICK = 1.0  # at least this often time itself is an event while loading


def serve(unit: UnitName, layout: Layout) -> Exit:
    """Runs the unit until it ends; returns the exit status of the design. The caller exits with it."""
    run, managed = _run_name(unit)
    journal = Journal(unit.service, run)
    notifier = Notifier()
    state = StateFile.load(layout, unit, run)
    try:
        refusal = state.refusal
        if refusal:
            notifier.send(status_line(f"refused: {refusal[1]}"))
            return refusal[0]
        if managed:
            _must_be_allowed(state)
        config = load_config(layout, unit)
        return asyncio.run(Daemon(unit, layout, config, journal, notifier, state).main())
    except LifecycleError as error:
        return _refused(error, journal, notifier, state)
    except Exception:  # noqa: BLE001 - the boundary: a defect is told with its traceback, and the unit restarts
        journal.tell(Event("defect", f"gpu-lifecycle has failed:\n{traceback.format_exc(limit=-3)}"))
        traceback.print_exc()
        return Exit.DEFECT
    finally:
        notifier.close()


def _run_name(unit: UnitName) -> tuple[str, bool]:
    """The name of this run, and whether systemd runs it.

    INVOCATION_ID counts only inside the unit: a shell inherits one from whatever started it. A run in the foreground names
    its daemon instead, so that a sweep can see whether the run is alive.
    """
    proc = Proc()
    run = os.environ.get("INVOCATION_ID", "")
    if run and unit_cgroup(proc, unit):
        return run, True
    identity = proc.identity(os.getpid())
    return f"{FOREGROUND}{os.getpid()}.{identity.start_ticks if identity else 0}", False


def _must_be_allowed(state: StateFile) -> None:
    """Raises BusyError where the hook has not finished: systemd goes on after a hook that was ended by SIGTERM."""
    if not state.allowed:
        raise BusyError(
            "cannot start the engine: the pre-start hook has not proven the GPUs free for this run",
            hint=f"was it interrupted, or taken out of the unit? systemctl cat {state.unit.service}",
        )


def _refused(error: LifecycleError, journal: Journal, notifier: Notifier, state: StateFile) -> Exit:
    text = str(error)
    journal.tell(
        Event(
            "start-refused",
            f"start refused with status {error.status.value}: {text}",
            {"GPU_LIFECYCLE_STATUS": str(error.status.value)},
        )
    )
    notifier.send(status_line(f"refused: {text}"))
    state.save(Phase.FAILED, f"refused: {text}", last_end={"reason": f"refused-{error.status.value}", "text": text})
    return error.status


class Daemon:
    """One run. Owns the engine, the NVML helper and the loop; decides nothing."""

    def __init__(
        self, unit: UnitName, layout: Layout, config: Config, journal: Journal, notifier: Notifier, state: StateFile
    ) -> None:
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
        self.engine: subprocess.Popen[bytes] | None = None
        self.looker = Looker(config, self.proc, self.family, self.probe)
        self.gpus: tuple[Gpu, ...] = ()
        self.kernel = KernelEar(layout, journal)
        self.last: Look | None = None
        self.saved = 0.0
        self.complained = False
        self.life: Life | None = None
        self.history: deque[dict[str, object]] = deque(maxlen=HISTORY)
        self.evidence = Evidence(layout, unit, state.run, self.proc)
        self.keeping_away: asyncio.Task[None] | None = None
        self.before: subprocess.Popen[bytes] | None = None  # stop.before
        self.oom_before = 0

    async def main(self) -> Exit:
        """The whole run. Raises LifecycleError where the engine could not be started at all."""
        watcher: asyncio.Task[None] | None = None
        listener: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            self.notifier.send(status_line("asking NVML for the claimed GPUs"))
            gpus = await self._claim_or_stop()
            if gpus is None:
                return Exit.OK
            self.gpus = gpus
            self.kernel.begin(gpus, self.state.kernel_log)
            self.life = Life(self._limits(), budget=self.state.budget)
            await self._start_engine(loop)
            watcher = asyncio.create_task(self._watch())
            listener = asyncio.create_task(self._listen())
            for task in (watcher, listener):
                task.add_done_callback(lambda _: self.events.put_nowait(life_rules.Tick(-1)))
            return await self._loop(watcher, listener)
        finally:
            await self._close(loop, watcher, listener)

    def _signalled(self, number: signal.Signals) -> None:
        """What asks for a stop. A terminal that closes does, too; under systemd a stray SIGHUP must not end the engine.

        systemd counts a death by SIGHUP as a clean end (systemd.service(5), SuccessExitStatus=): no restart. It is
        handled, not ignored, for an ignored signal would stay ignored in the engine (execve(2)).
        """
        if number is not signal.SIGHUP or not self.notifier.connected:
            self.events.put_nowait(life_rules.StopRequested())

    async def _claim_or_stop(self) -> tuple[Gpu, ...] | None:
        """The claimed GPUs, or None where a stop was requested first: a stop works in every phase."""
        asking = asyncio.create_task(self._claim())
        stopping = asyncio.create_task(self.events.get())
        await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            stopping.cancel()
            return asking.result()
        self.notifier.send("STOPPING=1", status_line("stopped before the engine was started"))
        self.probe.interrupt()
        asking.cancel()
        return None

    async def _claim(self) -> tuple[Gpu, ...]:
        """The claimed GPUs; a trouble of NVML that may pass is waited out for a while."""
        deadline = time.monotonic() + NVML_SECONDS
        while True:
            view = await asyncio.to_thread(self.probe.view, NVML_SECONDS)
            passing = view.error is not None and view.error.kind is ErrorClass.RETRY
            if not passing or time.monotonic() > deadline:
                return claimed(view, self.config.gpus.claim, self.config.gpus.count)
            await asyncio.sleep(1.0)

    def _limits(self) -> Limits:
        """The config's times; looks are frequent enough for systemd's watchdog whatever the config says."""
        config = self.config
        interval = config.watch.interval
        if self.notifier.watchdog:
            interval = min(interval, self.notifier.watchdog / 4)
        min_used = config.ready.min_used
        if min_used == "auto":
            min_used = min_used_for(weights_size(config.server.target() or ""), len(self.gpus))
        return Limits(
            needs=Needs({gpu.uuid: gpu.index for gpu in self.gpus}, min_used),
            stall=config.ready.stall,
            ceiling=config.ready.ceiling,
            interval=interval,
            probe_timeout=config.watch.timeout,
            failures=config.watch.failures,
            drain=config.stop.drain,
            term_grace=config.sweep.term_grace,
            exit_deadline=config.sweep.exit_deadline,
            before=config.stop.before_limit if config.stop.before else 0.0,
        )

    async def _start_engine(self, loop: asyncio.AbstractEventLoop) -> None:
        become_subreaper()
        self.oom_before = self.family.oom_kills()
        environment = engine_environment(os.environ, self.config.server.environment, self.unit, self.state.run)
        # In a thread: a program on a dead network file system must not keep a stop from being heard.
        self.engine = await asyncio.to_thread(start, self.config.server.command, environment, self.layout.config(self.unit))
        pidfd = os.pidfd_open(self.engine.pid)
        loop.add_reader(pidfd, self._engine_ended, loop, pidfd)
        self.events.put_nowait(life_rules.Started(self.engine.pid))

    def _engine_ended(self, loop: asyncio.AbstractEventLoop, pidfd: int) -> None:
        """The pidfd is readable: the main process has ended. Its status is taken here, once."""
        loop.remove_reader(pidfd)
        os.close(pidfd)
        assert self.engine
        self._hear()  # the reason before the end
        self.events.put_nowait(life_rules.EngineExited(self.engine.wait(), self.family.oom_kills() - self.oom_before))

    # The loop

    async def _loop(self, *watchers: asyncio.Task[None]) -> Exit:
        assert self.life
        while self.life.status is None:
            event = await self._next_event()
            for watcher in watchers:
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
        preset = self.config.server.preset
        while self.life.stage == 0:
            path = preset.live_path if self.life.was_ready else preset.ready_path
            try:
                self.last = await self.looker.look(uuids, path, self._probe_deadline())
                self.history.append(probe_row(self.last) | {"at": round(time.time(), 1)})
                self.kernel.know(identity.pid for identity in self.last.alive)
                self.events.put_nowait(life_rules.Looked(self.last))
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

    def _probe_deadline(self) -> float:
        """Below the watchdog's half, so that a slow answer is judged here before systemd judges us."""
        limit = self.config.watch.timeout
        return min(limit, self.notifier.watchdog / 2) if self.notifier.watchdog else limit

    def _interval(self) -> float:
        assert self.life
        if self.life.phase in (Phase.READY, Phase.SUSPECT):
            return self.life.limits.interval
        bound = self.last is not None and self.last.socket.listening
        return WARMING_INTERVAL if bound else LOADING_INTERVAL

    # Effects

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
                self.keeping_away = asyncio.create_task(self._run_before())
            case life_rules.Gather(why):
                await self._gather(why)
            case life_rules.Finish():
                pass  # the loop sees the status in the state
            case _:
                assert_never(effect)

    async def _run_before(self) -> None:
        """stop.before, with the engine's environment but none of the service manager's; its time is the machine's to watch."""
        command = self.config.stop.before or ()
        environment = engine_environment(os.environ, {}, self.unit, self.state.run)
        try:
            self.before = await asyncio.to_thread(start, command, environment, self.layout.config(self.unit))
        except LifecycleError as error:
            self.events.put_nowait(life_rules.BeforeEnded(f"cannot be run: {error.message}"))
            return
        status = await ended(self.before)
        self.events.put_nowait(life_rules.BeforeEnded(f"exited with status {status}" if status else ""))

    async def _gather(self, why: str) -> None:
        """Evidence, before anything is signalled. It fails nothing: a run that ends has to end."""
        living = own_pids(self.family, self.probe) or {}
        scene = Scene(why, living, self.looker.view, list(self.history), (), self.config.server.command[0])
        try:
            folder = await asyncio.to_thread(self.evidence.gather, scene)
        except OSError as error:
            self.journal.tell(Event("sight-partial", f"no evidence of this is kept: {error}"))
            return
        self.journal.tell(Event("evidence-kept", f"evidence of this is kept in {folder}"))

    def _children(self) -> set[int]:
        """Whose end is waited for elsewhere."""
        return {child.pid for child in (self.engine, self.before) if child}

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

    async def _close(self, loop: asyncio.AbstractEventLoop, *watchers: asyncio.Task[None] | None) -> None:
        self.probe.interrupt()
        for watcher in watchers:
            if watcher:
                watcher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watcher
        self.kernel.close()
        if self.keeping_away:
            self.keeping_away.cancel()
            await asyncio.wait({self.keeping_away})
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
        await self.looker.close()
        if self.engine and self.engine.poll() is None:
            self._signal_all(signal.SIGKILL)  # only after a defect of ours: nothing may outlive its watcher
            self.engine.wait()
        self.probe.close()
        reap_adopted(self._children())
