"""The unit's two root hooks: short, bounded, and the only part that may signal what is not the daemon's own child."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import BlindError, ConfigError, Exit, LifecycleError, UsageError
from gpu_lifecycle.facts import Gpu, Layout, Level, Phase, UnitName
from gpu_lifecycle.jobs.settings import load_config, parse, unit_cgroup
from gpu_lifecycle.jobs.state import StateFile, hand_on, note_holders
from gpu_lifecycle.rules.budget import Budget
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.notify import Notifier, status_line
from gpu_lifecycle.system.procfs import Proc

if TYPE_CHECKING:
    from gpu_lifecycle.jobs.fitness import Fitness
    from gpu_lifecycle.jobs.sweep import SweepResult
    from gpu_lifecycle.rules.config import Config

ROUNDS = 3  # of reaping, at most (jobs/sweep.py)
SWEEP_MARGIN = 120.0  # for the locks, the first answer of NVML and the scans
SHOW_EVERY = 1.0  # seconds between two STATUS lines or state files of a wait


class Stopped(BaseException):  # not an error: nothing that handles errors may swallow it
    """systemd ends the hook: the unit is to be stopped, or the hook's time is up."""


def bound(config: Config) -> float:
    """The longest that a sweep may take, in seconds: systemd must not cut it off before its own deadlines do."""
    limits = config.sweep
    return SWEEP_MARGIN + ROUNDS * (limits.term_grace + limits.exit_deadline) + 2 * limits.memory_deadline


class Hook:
    """What both hooks share: who we are, where events and words go."""

    def __init__(self, unit: UnitName, layout: Layout, phase: Phase) -> None:
        self.unit = unit
        self.layout = layout
        self.phase = phase
        self.run = os.environ.get("INVOCATION_ID", "")
        self.journal = Journal(unit.service, self.run)
        self.notifier = Notifier()
        self.state = StateFile.load(layout, unit, self.run)
        self._shown = 0.0
        self._complained = False
        self.probe = GpuProbe()
        self.fitness: Fitness | None = None  # of the claimed GPUs, once they are free

    def show(self, text: str) -> None:
        """Says what is being waited for, at most once a second."""
        if time.monotonic() - self._shown >= SHOW_EVERY:
            self._shown = time.monotonic()
            self.say(text)

    def say(self, text: str, **fields: object) -> bool:
        """Shows a text and keeps it. False where the state file could not be kept, which is told once."""
        self.notifier.send(status_line(f"{self.phase}: {text}"))
        hand_on(self.state, self.journal)
        complaint = self.state.save(self.phase, text, **fields)
        if complaint and not self._complained:
            self._complained = True
            self.journal.tell(Event("sight-partial", f"the state file is not kept: {complaint}"))
        return not complaint

    def must_be_inside(self) -> None:
        """Raises UsageError outside the unit: only there is it certain that no run of the unit is alive beside us."""
        if not unit_cgroup(Proc(), self.unit):
            raise UsageError(
                f"cannot run this hook: it is not part of {self.unit.service}, and only systemd runs it there",
                hint=f"by hand: gpu-lifecycle sweep {self.unit.name}",
            )

    def sweep(self, config: Config, *, survivors_only: bool, prove: bool = True) -> SweepResult:
        # Imported here, while the NVML helper is already starting beside us.
        self.journal.prepare()
        from gpu_lifecycle.jobs.fitness import examine
        from gpu_lifecycle.jobs.observe import Observer
        from gpu_lifecycle.jobs.runs import past_runs
        from gpu_lifecycle.jobs.sweep import Sweep
        from gpu_lifecycle.rules.verdict import Policy, Scene

        with self.probe as probe:
            if not survivors_only:
                from gpu_lifecycle.jobs.presence import await_gpus

                self.notifier.send(f"EXTEND_TIMEOUT_USEC={round(bound(config) * 1e6)}")
                await_gpus(probe, config, self.show)
            observer = Observer(probe)
            scene = Scene(
                unit=self.unit,
                policy=Policy(config.sweep.policy),
                protect=tuple(config.sweep.protect),
                cgroup=unit_cgroup(observer.proc, self.unit),
                survivors_only=survivors_only,
                past_runs=past_runs(self.layout, self.unit),
            )
            self.notifier.send(f"EXTEND_TIMEOUT_USEC={round(bound(config) * 1e6)}")
            result = Sweep(lambda: scene, config, self.layout, observer, self.journal, self.show).run(prove=prove)
            note_holders(self.state, result.judged)
            if result.status is Exit.OK and not survivors_only:
                self.fitness = examine(probe, [gpu.board for gpu in result.gpus], self.show)
            return result

    def close(self) -> None:
        self.probe.close()
        self.notifier.close()


def pre_start(unit: UnitName, layout: Layout) -> Exit:
    """Sweeps, then proves that the claimed GPUs are there and free.

    A permanent refusal is recorded for ``serve``, the main process, and the hook itself succeeds:
    ``RestartPreventExitStatus=`` does not look at hooks (systemd.service(5)), so its own 78 would be restarted.
    """
    hook = Hook(unit, layout, Phase.PRE_START)
    signal.signal(signal.SIGTERM, _raise_stopped)
    try:
        hook.must_be_inside()
        pause, why = _pause(hook)
        if not pause:  # else it would hold the GPUs open meanwhile
            hook.probe.begin()
        account = hook.state.begun(Proc().boot_id)
        hook.say("reading the config", refusal=None, allowed=None, engine_pid=None, gpus=[], probes=[], account=account)
        config = load_config(layout, unit)
        _wait(hook, pause, why)
        result = hook.sweep(config, survivors_only=False)
        hook.state.note_reaped(len(result.results))
        if result.status is not Exit.OK:
            return _refuse(hook, result.status, result.text)
        return _unfit(hook) or _port_free(hook, config, result) or _allow(hook, result)
    except UsageError:
        raise
    except LifecycleError as error:
        return _refuse(hook, error.status, str(error))
    except Stopped:
        return _interrupted(hook)
    finally:
        hook.close()


def _raise_stopped(_number: int, _frame: object) -> None:
    raise Stopped


def _interrupted(hook: Hook) -> Exit:
    """A hook that dies by SIGTERM would make a plain stop end as "failed"; one that exits 0 would let a start go on.

    So it exits 0 and leaves a refusal for ``serve``, which only a start that goes on all the same will read.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    text = "the sweep was interrupted by a stop"
    hook.say(text, refusal={"run": hook.run, "status": int(Exit.TEMPFAIL), "text": text})
    return Exit.OK


def _pause(hook: Hook) -> tuple[float, str]:
    """Seconds that this try waits, and why: earlier ones failed, or somebody is about to reset a GPU.

    A start by hand begins a new chain, and waits for nothing. systemd 252 has no growing RestartSec= (RestartSteps= came with
    254), nor does one reset it after a good run.
    """
    budget, off = hook.state.budget, 0.0
    if os.path.exists(hook.layout.released):
        from gpu_lifecycle.jobs.release import held_off

        off = held_off(hook.layout)
    if not budget.failed and not off:
        return 0.0, ""
    from gpu_lifecycle.system.bus import Bus

    try:
        with Bus() as bus:
            state = bus.unit_state(hook.unit.service)
    except LifecycleError:
        return 0.0, ""  # whether this is a restart is not known: better one try too many
    if not state.n_restarts:
        hook.state.keep_budget(Budget())
        return 0.0, ""
    pause = budget.pause(state.restart) if budget.failed else 0.0
    if off > pause:
        return off, "somebody has had NVML let go of (gpu-lifecycle gpus --release)"
    return pause, f"{budget.failed} runs in a row have failed"


def _wait(hook: Hook, seconds: float, why: str) -> None:
    """Shown, and ended at once by a stop."""
    if seconds <= 0:
        return
    hook.journal.tell(Event("start-delayed", f"{why}: the next start waits {show_duration(round(seconds, 1))}"))
    hook.notifier.send(f"EXTEND_TIMEOUT_USEC={round((seconds + SWEEP_MARGIN) * 1e6)}")
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        hook.show(f"waiting {show_duration(round(left))} more: {why}")
        time.sleep(min(left, SHOW_EVERY))


def _unfit(hook: Hook) -> Exit | None:
    """Tells all that is doubtful about the claimed GPUs, and refuses where one cannot work."""
    fitness = hook.fitness
    if fitness is None:
        return None
    for text in fitness.unknown:
        hook.journal.tell(Event("nvml-trouble", text))
    errors = [item for item in fitness.unfit if item.finding.level is Level.ERROR]
    for item in fitness.unfit:
        if item not in errors:
            text = f"{item.finding.message}; {item.finding.hint}"
            hook.journal.tell(Event("gpu-doubtful", text, {"GPU_LIFECYCLE_GPU": item.uuid}))
    if not errors:
        return None
    worst = next((item.status for item in errors if item.status.permanent), errors[0].status)
    said = "; ".join(f"{item.finding.message} ({item.finding.hint})" for item in errors[:3])
    more = f"; and {len(errors) - 3} more: gpu-lifecycle check {hook.unit.name}" if len(errors) > 3 else ""
    return _refuse(hook, worst, said + more)


def _port_free(hook: Hook, config: Config, result: SweepResult) -> Exit | None:
    from gpu_lifecycle.jobs.port import await_port

    problem = await_port(config, [item for item in result.judged if item.process.pid in result.results], hook.show)
    return _refuse(hook, Exit.TEMPFAIL, problem) if problem else None


def _refuse(hook: Hook, status: Exit, text: str) -> Exit:
    hook.journal.tell(
        Event(
            "start-refused",
            f"start refused with status {status.value}: {text}",
            {"GPU_LIFECYCLE_STATUS": str(status.value)},
        )
    )
    end = {"reason": f"refused-{status.value}", "text": text}
    refusal = {"run": hook.run, "status": int(status), "text": text} if status.permanent else None
    kept = hook.say(f"refused: {text}", refusal=refusal, last_end=end, account=hook.state.refused(status, text))
    return Exit.OK if refusal and kept else status


def _allow(hook: Hook, result: SweepResult) -> Exit:
    from gpu_lifecycle.jobs.remains import clear
    from gpu_lifecycle.jobs.runs import remember

    try:
        remember(hook.layout, hook.unit, hook.run)
    except LifecycleError as error:
        hook.journal.tell(Event("sight-partial", f"this run's id is not kept: {error}"))
    warning = clear(hook.unit, _user_of, hook.journal, hook.show)
    text = f"GPUs swept in {result.seconds:.1f} s: {result.text}" + (f"; {warning}" if warning else "")
    hook.journal.tell(Event("start-allowed", text))
    gpus = [_gpu_state(gpu) for gpu in result.gpus]
    hook.say(text, gpus=gpus, allowed=hook.run, kernel_log=_hand_over_kernel_log(hook))
    return Exit.OK


def _hand_over_kernel_log(hook: Hook) -> str:
    """Opens the kernel log and gives it to the service manager, which passes it to the main process.

    Returns why that could not be done, for the daemon to say; "" where it was.
    """
    from gpu_lifecycle.system.kmsg import NAME, KernelLog

    hook.notifier.forget(NAME)  # the one of the run before
    try:
        with KernelLog.open(hook.layout.kernel_log) as log:
            return "" if hook.notifier.store(NAME, log.fd) else "no kernel log: the service manager did not take it"
    except BlindError as error:
        return str(error)


def _user_of(service: str) -> str:
    from gpu_lifecycle.system.bus import unit_user

    return unit_user(service)


def _gpu_state(gpu: Gpu) -> dict[str, object]:
    return {"uuid": gpu.uuid, "index": gpu.index, "label": gpu.label, "memory_total": gpu.total, "memory_used": gpu.used}


def post_stop(unit: UnitName, layout: Layout) -> Exit:
    """Reaps what the run left and proves its memory released. Runs beside siblings that are still alive."""
    hook = Hook(unit, layout, Phase.POST_STOP)
    try:
        hook.must_be_inside()
        hook.probe.begin()
        phase_before = str(hook.state.document.get("text", ""))
        hook.say("looking for survivors")
        config = _config_or_defaults(hook)
        import gpu_lifecycle.jobs.last_word  # noqa: F401 - read while the NVML helper starts, not after its last answer

        result = hook.sweep(config, survivors_only=True, prove=_engine_ran(hook))
        return _ended(hook, result, phase_before)
    except UsageError:
        raise
    except LifecycleError as error:
        hook.journal.tell(Event("memory-held", f"cannot prove that the GPUs were released: {error}"))
        _last_word(hook, "", str(error))
        hook.say(f"cannot prove that the GPUs were released: {error}", last_end=_last_end(str(error)))
        return error.status
    finally:
        hook.close()


def _engine_ran(hook: Hook) -> bool:
    """False where the start was refused: memory that others hold is then not this run's to wait for.

    Without EXIT_CODE systemd never started the main process (systemd.exec(5)); a permanent refusal is our own record.
    """
    return bool(os.environ.get("EXIT_CODE")) and hook.state.refusal is None


def _config_or_defaults(hook: Hook) -> Config:
    """Survivors are reaped even where the config has been broken since the start."""
    try:
        return load_config(hook.layout, hook.unit)
    except (ConfigError, LifecycleError) as error:
        hook.journal.tell(Event("sight-partial", f"sweeping with the default config: {error}"))
        return parse('[server]\nengine = "custom"\ncommand = ["/bin/true", "--port", "1"]\n', "defaults")


def _ended(hook: Hook, result: SweepResult, before: str) -> Exit:
    failed = os.environ.get("SERVICE_RESULT", "success") != "success"
    hook.phase = Phase.FAILED if failed else Phase.DOWN
    line = _last_word(hook, before, "" if result.status is Exit.OK else result.text)
    if result.status is Exit.OK:
        text = line.removeprefix("failed: ") if failed else "stopped"
        hook.say(f"{text}; GPUs: {result.text}", last_end=_last_end(before), **_afterwards(result))
        return Exit.OK
    hook.phase = Phase.FAILED
    hook.say(f"after the stop: {result.text}", last_end=_last_end(result.text), **_afterwards(result))
    return result.status


def _last_word(hook: Hook, before: str, after: str) -> str:
    """Why the run has ended, in one line: told, and kept in the history."""
    from gpu_lifecycle.jobs.last_word import last_word

    return last_word(hook.layout, hook.unit, hook.state, hook.journal, before, after)


def _afterwards(result: SweepResult) -> dict[str, object]:
    """What of the run's state no longer holds."""
    return {"gpus": [_gpu_state(gpu) for gpu in result.gpus], "probes": [], "engine_pid": None}


def _last_end(text: str) -> dict[str, str]:
    """What ended the run: systemd's own word (systemd.exec(5), SERVICE_RESULT), and our last text."""
    return {
        "reason": os.environ.get("SERVICE_RESULT", "unknown"),
        "text": text,
        "exit_code": os.environ.get("EXIT_CODE", ""),
        "exit_status": os.environ.get("EXIT_STATUS", ""),
    }


Hooks: dict[str, Callable[[UnitName, Layout], Exit]] = {"pre-start": pre_start, "post-stop": post_stop}
