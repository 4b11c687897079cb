"""The unit's main process: whether it may run at all, then the daemon, then the exit status that systemd sees.

What only the daemon needs is read while others work: NVML opens, and a child looks for what would make the start fail.
"""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import BusyError, ConfigError, Exit, LifecycleError
from gpu_lifecycle.facts import HANDOVER, Layout, Level, Phase, UnitName
from gpu_lifecycle.jobs.doubts import Doubts
from gpu_lifecycle.jobs.keys import must_have_key
from gpu_lifecycle.jobs.settings import load, unit_cgroup
from gpu_lifecycle.jobs.state import StateFile
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.verdict import FOREGROUND
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.notify import Notifier, status_line
from gpu_lifecycle.system.procfs import Proc

if TYPE_CHECKING:
    from gpu_lifecycle.facts import Finding
    from gpu_lifecycle.jobs.serve import Daemon

DOUBTS = 10  # told at a start, each as an event of its own
PROGRAM_SECONDS = 10.0  # a program on a disk that sleeps is read within that


def serve(unit: UnitName, layout: Layout) -> Exit:
    """Runs the unit until it ends; returns the exit status of the design. The caller exits with it."""
    run, managed = run_name(unit)
    journal = Journal(unit.service, run)
    notifier = Notifier()
    state = StateFile.load(layout, unit, run)
    probe = GpuProbe()
    try:
        if os.environ.get(HANDOVER):
            return _run(_taken_over(unit, layout, journal, notifier, state, probe))
        if state.refusal:
            notifier.send(status_line(f"refused: {state.refusal[1]}"))
            _tell_refusal(unit, layout, state, journal)
            return state.refusal[0]
        if managed:
            _must_be_allowed(state)
        return _run(_started(unit, layout, journal, notifier, state, probe))
    except LifecycleError as error:
        refused = _refused(error, journal, notifier, state)
        if not managed:  # under systemd the post-stop hook has the last word
            from gpu_lifecycle.jobs.last_word import last_word

            last_word(layout, unit, state, journal, "", "")
        _tell_refusal(unit, layout, state, journal)
        return refused
    except Exception:  # noqa: BLE001 - the boundary: a defect is told with its traceback, and the unit restarts
        journal.tell(Event("defect", f"gpu-lifecycle has failed:\n{traceback.format_exc(limit=-3)}"))
        traceback.print_exc()
        return Exit.DEFECT
    finally:
        probe.close()
        notifier.close()


def _started(
    unit: UnitName, layout: Layout, journal: Journal, notifier: Notifier, state: StateFile, probe: GpuProbe
) -> Daemon:
    """The daemon of a run that begins. SIGTERM ends this at once. Raises ConfigError or BusyError."""
    config, text = load(layout, unit)
    must_have_key(config.server, os.environ, layout.config(unit))
    probe.begin()
    notifier.send(status_line("reading the engine's program"))
    _must_answer(config.server.command[0])
    notifier.send(status_line("reading the files of the models"))
    with Doubts(unit, layout, config, state.smallest_gpu) as doubts:
        from gpu_lifecycle.jobs.serve import Daemon

        found = doubts.found()
    _must_not_be_doomed(found, journal, unit)
    return Daemon(unit, layout, config, text, journal, notifier, state, probe)


def _taken_over(
    unit: UnitName, layout: Layout, journal: Journal, notifier: Notifier, state: StateFile, probe: GpuProbe
) -> Daemon:
    """The daemon of a run that another version of this program, in this process, has begun. Raises LifecycleError."""
    from gpu_lifecycle.jobs.reload import merged, taken_over
    from gpu_lifecycle.jobs.serve import Daemon

    handover = taken_over()
    config = merged(handover.config, handover.latest, layout.config(unit))
    return Daemon(unit, layout, config, handover.config, journal, notifier, state, probe, handover)


def _run(daemon: Daemon) -> Exit:
    import asyncio
    import gc

    gc.freeze()  # what a daemon needs at all it needs to its end
    gc.enable()
    return asyncio.run(daemon.main())


def _tell_refusal(unit: UnitName, layout: Layout, state: StateFile, journal: Journal) -> None:
    from gpu_lifecycle.jobs.outlets import tell_refusal

    tell_refusal(unit, layout, state, journal)


def run_name(unit: UnitName) -> tuple[str, bool]:
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


def _must_not_be_doomed(found: list[Finding], journal: Journal, unit: UnitName) -> None:
    """Tells what makes this start doubtful. Raises ConfigError where it would fail for certain."""
    errors = [item for item in found if item.level is Level.ERROR]
    doubts = [item for item in found if item.level is Level.WARN]
    for item in doubts[:DOUBTS]:
        journal.tell(Event("start-doubtful", f"{item.message} ({item.hint})" if item.hint else item.message))
    if len(doubts) > DOUBTS:
        text = f"{len(doubts) - DOUBTS} more doubts about this start: gpu-lifecycle check {unit.name}"
        journal.tell(Event("start-doubtful", text))
    if errors:
        said = "; ".join(f"{item.message} ({item.hint})" for item in errors[:3])
        more = f"; and {len(errors) - 3} more: gpu-lifecycle check {unit.name}" if len(errors) > 3 else ""
        raise ConfigError(said + more)


def _must_answer(program: str) -> None:
    """Raises BusyError where the program's disk hangs: executing it would then take the daemon along.

    And where no process can be made that looks: none could be made for the engine either.
    """
    from gpu_lifecycle.system.program import State, look_at

    if look_at(program, PROGRAM_SECONDS) is State.SILENT:
        raise BusyError(
            f"cannot start the engine: {program} was not read within {PROGRAM_SECONDS:g} s",
            hint="is its file system mounted, and does its server answer?",
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
    end = {"reason": f"refused-{error.status.value}", "text": text}
    state.save(Phase.FAILED, f"refused: {text}", last_end=end, account=state.refused(error.status, text))
    return error.status
