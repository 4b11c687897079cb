"""``status``: what the state file and systemd say about a unit, together."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.errors import BlindError, Exit, LifecycleError
from gpu_lifecycle.facts import Layout, Phase, UnitName
from gpu_lifecycle.jobs.follow import Show, as_lines, on_terminal, phase_and_text, shown_in_place
from gpu_lifecycle.jobs.printed import managed_units, print_json
from gpu_lifecycle.jobs.state import StateFile
from gpu_lifecycle.rules.quantity import show_duration, show_size
from gpu_lifecycle.rules.report import label_of
from gpu_lifecycle.rules.text import printable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpu_lifecycle.system.bus import UnitState

FOLLOW_SECONDS = 0.5
UNDER_WAY = (Phase.LOADING, Phase.WARMING, Phase.READY, Phase.SUSPECT)
ENDED = (Phase.READY, Phase.FAILED, Phase.DOWN)
# Of a run that the state file does not know systemd's word has to do: it says "active" after READY=1 (systemd.service(5)).
BY_SYSTEMD = {
    "activating": Phase.LOADING,
    "active": Phase.READY,
    "reloading": Phase.READY,
    "deactivating": Phase.STOPPING,
}
NO_WORD = "its state file is missing, or tells of another run: the phase is systemd's word"


def status(unit: UnitName | None, layout: Layout, *, as_json: bool, follow: bool) -> int:
    """Prints one unit's state, or all managed units'; with ``follow``, each change until each is ready or has ended."""
    units = [unit] if unit else managed_units(layout)
    if follow and units:
        return _follow(units, layout, as_json=as_json, named=unit is None)
    documents = [document(item, layout) for item in units]
    if as_json:
        print_json(documents[0] if unit else {"schema": 1, "units": documents})
    elif not documents:
        print(f"no managed unit: there is no config file in {layout.config_dir}")
    elif sys.stdout.isatty():
        _draw(documents)
    else:
        print("\n".join(_lines(item) for item in documents))
    return Exit.OK


def _draw(documents: list[dict[str, Any]]) -> None:
    from gpu_lifecycle.jobs.screen import unit_block
    from gpu_lifecycle.jobs.tables import console

    out = console()
    for number, item in enumerate(documents):
        if number:
            out.print()
        out.print(unit_block(item, time.time()))


def document(unit: UnitName, layout: Layout) -> dict[str, Any]:
    """The JSON of one unit. systemd's word on whether it is alive outranks a file that a dead run left."""
    state = StateFile.load(layout, unit)
    saved = state.document
    shown: dict[str, Any] = {
        "schema": 1,
        "unit": unit.service,
        "run": printable(saved.get("run") or "", 64) or None,
        "phase": saved.get("phase", str(Phase.DOWN)),
        "since": saved.get("since"),
        "progress": saved.get("progress"),
        "eta": saved.get("eta"),
        "text": saved.get("text") or "never started",
        "gpus": saved.get("gpus", []),
        "probes": saved.get("probes", []),
        "last_end": saved.get("last_end"),
        "systemd": None,
    }
    if shown["phase"] not in UNDER_WAY:
        shown["progress"] = shown["eta"] = None  # what a run that has died meanwhile left there
    if state.complaint:
        shown["text"] = f"its state file cannot be used: {state.complaint}"
    try:
        from gpu_lifecycle.system.bus import Bus

        with Bus() as bus:
            found = bus.unit_state(unit.service)
    except (BlindError, LifecycleError) as error:
        shown["text"] += f" (systemd cannot be asked: {error})"
        return shown
    shown["systemd"] = {
        "load": found.load,
        "active": found.active,
        "sub": found.sub,
        "result": found.result,
        "restarts": found.n_restarts,
    }
    over = _outranked(found, shown)
    shown.update(over if not state.complaint else over | {"text": shown["text"]})
    if found.load == "not-found":
        shown["text"] = f"the unit is not installed: gpu-lifecycle install {unit.name}"
    return shown


def _outranked(found: UnitState, shown: dict[str, Any]) -> dict[str, Any]:
    """What of a state file is wrong where systemd is further: of an end, of a start before our hook wrote, of another run."""
    over: dict[str, Any] = {"progress": None, "eta": None}
    begun = shown["phase"] == Phase.PRE_START and shown["run"] == found.invocation_id  # else it is of a hook that was cut off
    if found.active == "activating" and found.sub in ("condition", "start-pre") and not begun:
        return over | {"phase": str(Phase.PRE_START), "since": None, "text": "its pre-start hook begins"}
    if found.active in ("failed", "inactive"):
        return over | {"phase": str(Phase.FAILED if found.active == "failed" else Phase.DOWN)}
    if found.active not in BY_SYSTEMD or "auto-restart" in found.sub or shown["run"] == found.invocation_id:
        return {}
    over |= {"run": found.invocation_id, "phase": str(BY_SYSTEMD[found.active]), "since": None, "text": NO_WORD}
    return over | {"gpus": [], "probes": []}


def _lines(item: dict[str, Any]) -> str:
    since = item["since"]
    age = f" for {show_duration(max(0, round(time.time() - since)))}" if isinstance(since, int | float) else ""
    lines = [f"{item['unit']}: {item['phase']}{age}", f"  {printable(str(item['text']), 400)}"]
    if item["systemd"]:
        systemd = item["systemd"]
        again = f"; its next try at once: systemctl restart {item['unit']}" if "auto-restart" in str(systemd["sub"]) else ""
        lines.append(f"  systemd: {systemd['active']} ({systemd['sub']}), {systemd['restarts']} automatic restarts{again}")
    lines += _progress_line(item)
    lines += [_gpu_line(gpu) for gpu in item["gpus"] if isinstance(gpu, dict)]
    lines += [
        f"  {printable(str(probe.get('probe')), 40)}: {printable(str(probe.get('text')), 200)} in {probe.get('seconds')} s"
        for probe in item["probes"]
        if isinstance(probe, dict)
    ]
    end = item["last_end"]
    if isinstance(end, dict):
        lines.append(f"  last end: {printable(str(end.get('reason')), 60)}: {printable(str(end.get('text')), 400)}")
    return "\n".join(lines)


def _progress_line(item: dict[str, Any]) -> list[str]:
    """How far a load is. The file's numbers may be anything that is a number."""
    done, left = item["progress"], item["eta"]
    if item["phase"] not in (Phase.LOADING, Phase.WARMING) or not isinstance(done, int | float) or not 0 <= done <= 1:
        return []
    time_left = f", about {show_duration(round(left))} left" if isinstance(left, int | float) and 0 <= left < 1e6 else ""
    return [f"  progress: {int(done * 100)}%{time_left}"]


def _gpu_line(gpu: dict[str, Any]) -> str:
    used, total, own = (_size(gpu.get(key)) for key in ("memory_used", "memory_total", "memory_own"))
    mine = f", {show_size(own)} of it this unit's" if own is not None else ""
    return f"  GPU {label_of(gpu)}: {show_size(used)} of {show_size(total)} used{mine}"


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def _follow(units: list[UnitName], layout: Layout, *, as_json: bool, named: bool) -> int:
    """Exit status 0 only where the end of each is "ready"."""
    with _following(as_json=as_json, named=named) as show:
        while True:
            items = [document(unit, layout) for unit in units]
            show(items)
            if all(_settled(item) for item in items):
                return Exit.OK if all(item["phase"] == Phase.READY for item in items) else Exit.TEMPFAIL
            time.sleep(FOLLOW_SECONDS)


def _settled(item: dict[str, Any]) -> bool:
    """Whether it is at an end; where a start has just begun, the phase is still the end of the run before."""
    systemd = item["systemd"] or {}
    begun = systemd.get("active") == "activating" and "auto-restart" not in systemd["sub"]
    return item["phase"] in ENDED and not (begun and item["phase"] != Phase.READY)


def _following(*, as_json: bool, named: bool) -> AbstractContextManager[Show]:
    return shown_in_place() if on_terminal() and not as_json else as_lines(phase_and_text, named=named, as_json=as_json)
