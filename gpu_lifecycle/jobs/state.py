"""The state file of a unit: what ``status`` shows, and what one process of a run tells the next one.

Written by the root hooks and by the daemon, in turn, never at once; replaced atomically. Losing it loses words, never safety.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.errors import Exit, LifecycleError
from gpu_lifecycle.facts import Gpu, GpuView, Judged, Layout, Phase, UnitName, Verdict
from gpu_lifecycle.rules.account import since_began
from gpu_lifecycle.rules.budget import Budget, known
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.notice import HANDED_ON, Row, row_of, worst, worth_handing_on
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.system.files import read_state, write_state

if TYPE_CHECKING:
    from gpu_lifecycle.rules.lifecycle import Life
    from gpu_lifecycle.rules.readiness import Health, Look
    from gpu_lifecycle.system.journal import Journal

SCHEMA = 1
KEEP_EVERY = 5.0  # seconds


@dataclass
class StateFile:
    """The document of one unit, held in memory and saved as a whole."""

    layout: Layout
    unit: UnitName
    run: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    complaint: str = ""
    kept: float = 0.0  # when a run has saved it, seconds on the monotonic clock
    complained: bool = False

    @classmethod
    def load(cls, layout: Layout, unit: UnitName, run: str = "") -> StateFile:
        """The last document, or an empty one; a torn or foreign file counts as none, and ``complaint`` says why.

        The unit's own user may write there: what is not of the kind that we write is dropped, key by key.
        """
        found, complaint = read_state(layout.state(unit))
        document = clean(found) if found and found.get("schema") == SCHEMA else {}
        return cls(layout, unit, run, document, complaint)

    @property
    def refusal(self) -> tuple[Exit, str] | None:
        """What the pre-start hook of this very run found to be wrong."""
        refusal = self.document.get("refusal")
        if not refusal or not self.run or refusal.get("run") != self.run or refusal.get("status") not in list(Exit):
            return None
        return Exit(refusal["status"]), str(refusal.get("text", ""))

    @property
    def allowed(self) -> bool:
        """Whether the pre-start hook of this very run has proven the GPUs free."""
        return bool(self.run) and self.document.get("allowed") == self.run

    @property
    def smallest_gpu(self) -> int | None:
        """Bytes of memory of the smallest claimed GPU, as the pre-start hook of this very run saw it; None: not known."""
        rows = self.document.get("gpus") if self.allowed else None
        sizes = [row.get("memory_total") for row in rows or ()]
        return min((size for size in sizes if isinstance(size, int) and size > 0), default=None)

    @property
    def kernel_log(self) -> str:
        """Why the pre-start hook of this run could not hand the kernel log over; "" where it could, or was not asked."""
        return str(self.document.get("kernel_log") or "") if self.allowed else ""

    @property
    def budget(self) -> Budget:
        """What the chain of restarts has used up."""
        document = self.document
        return known(document.get("failed_starts", 0), document.get("same_failures", 0), document.get("failure") or "")

    def keep_budget(self, budget: Budget) -> None:
        self.document |= {"failed_starts": budget.failed, "same_failures": budget.same, "failure": budget.like}

    def keep_untold(self, rows: Iterable[Row]) -> None:
        """Keeps what people are to be told, for the next daemon. It is written with the next save."""
        before = self.document.get("untold") or []
        self.document["untold"] = [dict(row) for row in worst([*before, *rows], HANDED_ON)[0]]

    def write(self) -> str:
        """Writes the document as it is; returns "" or why it could not be written."""
        self.document["schema"] = SCHEMA
        try:
            write_state(self.layout.state(self.unit), self.document)
        except LifecycleError as error:
            self.complaint = str(error)
            return self.complaint
        return ""

    def take_untold(self) -> list[Row]:
        return self.document.pop("untold", None) or []

    def count_end(self, reason: str) -> None:
        """One more run has ended for this cause, since boot."""
        ends = self.document.get("ends") or {}
        known = ends.get(reason, 0)
        self.document["ends"] = ends | {reason: (known if isinstance(known, int) else 0) + 1}

    def note_reload(self, *, ok: bool, text: str) -> None:
        """How the last reload went, for the hook that has asked for it; counted, so that it can tell it from the one before."""
        number = (self.document.get("reload") or {}).get("number", 0)
        self.document["reload"] = {"number": number + 1, "ok": ok, "text": printable(text, 500)}

    def begun(self, boot: str) -> dict[str, Any]:
        """What the history will have of a run that begins now, in this boot of the machine (rules/account.py)."""
        return {"run": self.run, "boot": boot, "began": round(time.time(), 3), "zero": round(time.monotonic(), 3)}

    def note_reaped(self, count: int) -> None:
        """How many processes the sweep of this run has ended, and how long after its begin. Written with the next save."""
        account = self.document.get("account") or {}
        if count and account.get("run") == self.run:
            after = since_began(account, time.time(), time.monotonic())
            self.document["account"] = account | {"reaped": count, "reaped_after": round(after, 3)}

    def refused(self, status: Exit, text: str) -> dict[str, Any]:
        """... of this run, which is refused before there is an engine."""
        row = self.document.get("account") or {}
        mine = dict(row) if row.get("run") == self.run else {"run": self.run}
        lasted = round(since_began(mine, time.time(), time.monotonic()), 3)
        return {**mine, "refusal": int(status), "refused": text, "ended": round(time.time(), 3), "lasted": lasted}

    def save(self, phase: Phase, text: str, **fields: Any) -> str:
        """Writes the document; returns "" or why it could not be written (the caller says so once and goes on)."""
        now = round(time.time(), 3)
        if self.document.get("phase") != str(phase) or self.document.get("run") != self.run:
            self.document["since"] = now
        self.document.update(
            unit=self.unit.service, run=self.run, phase=str(phase), text=text, updated=now, **fields
        )
        return self.write()

    def keep(
        self,
        life: Life,
        look: Look | None,
        view: GpuView | None,
        gpus: tuple[Gpu, ...],
        journal: Journal,
        *,
        changed: bool,
        **more: Any,
    ) -> None:
        """Saves it for a run: at once on a change, else about as often as looks are made. A failure is told once."""
        now = time.monotonic()
        if not changed and now - self.kept < KEEP_EVERY:
            return
        self.kept = now
        complaint = self.save(life.phase, life.text, **state_fields(life, look, view, gpus), **more)
        if complaint and not self.complained:
            self.complained = True
            journal.tell(Event("sight-partial", f"the state file is not kept: {complaint}"))


def hand_on(state: StateFile, journal: Journal) -> None:
    """What a root hook has said goes to people by the next daemon: root runs no command of a user's."""
    heard = [event for event in journal.take_heard() if worth_handing_on(event.word)]
    if heard:
        state.keep_untold(row_of(event, state.unit.service, state.run, time.time()) for event in heard)


def note_holders(state: StateFile, judged: Sequence[Judged]) -> None:
    """How many processes held a GPU in the sweep of a hook, by verdict; without the hook's own."""
    holders = [item.verdict for item in judged if item.gpus and item.rule != "ourselves"]
    state.document["holders"] = {str(verdict): holders.count(verdict) for verdict in Verdict}


def clean(found: dict[str, Any]) -> dict[str, Any]:
    """Only the keys that we write, each only with a value of its kind."""
    return {key: found[key] for key, fits in KINDS.items() if key in found and fits(found[key])}


def _text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62


def _number(value: object) -> bool:
    return value is None or _whole(value) or (isinstance(value, float) and abs(value) < 1e15)


def _rows(value: object) -> bool:
    """A list of flat objects: sizes, texts, truth values."""
    return isinstance(value, list) and all(_object(row) and row is not None for row in value)


def _object(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, dict) and all(_text(item) or _number(item) or isinstance(item, bool) for item in value.values())


KINDS: dict[str, Callable[[object], bool]] = {
    "schema": _whole,
    "unit": _text,
    "run": _text,
    "phase": lambda value: value in list(Phase),
    "since": _number,
    "updated": _number,
    "text": _text,
    "progress": _number,
    "eta": _number,
    "gpus": _rows,
    "probes": _rows,
    "engine_pid": lambda value: value is None or _whole(value),
    "failed_starts": _whole,
    "same_failures": _whole,
    "failure": _text,
    "refusal": _object,
    "reload": _object,
    "allowed": _text,
    "kernel_log": _text,
    "last_end": _object,
    "untold": _rows,
    "holders": _object,
    "ends": _object,
    "account": _object,
}


def state_fields(life: Life, look: Look | None, view: GpuView | None, gpus: tuple[Gpu, ...]) -> dict[str, object]:
    """What ``status --json`` shows beside the phase."""
    seen = {gpu.uuid: gpu for gpu in view.gpus} if view else {}
    shown = [
        {
            "uuid": gpu.uuid,
            "index": gpu.index,
            "label": gpu.label,
            "memory_total": gpu.total,
            "memory_used": seen[gpu.uuid].used if gpu.uuid in seen else None,
            "memory_own": life.memory.get(gpu.uuid),
        }
        for gpu in gpus
    ]
    probes = probe_rows(look) if look else []
    return {
        "gpus": shown,
        "probes": probes,
        **_progress(life),
        "engine_pid": life.engine or None,
        "failed_starts": life.budget.failed,
        "same_failures": life.budget.same,
        "failure": life.budget.like,
        "refusal": None,
    }


def _progress(life: Life) -> dict[str, float | None]:
    """How far the load is (0..1), and the seconds that it may still take: a guess, None where there is none to make."""
    if life.stage:
        return {"progress": None, "eta": None}
    if life.was_ready:
        return {"progress": 1.0, "eta": 0.0}
    digits = None if life.progress is None else round(life.progress, 3)
    return {"progress": digits, "eta": None if life.eta is None else round(life.eta, 1)}


def probe_rows(look: Look) -> list[dict[str, object]]:
    """What was asked in one look, and the answers, as ``status --json`` shows them."""
    from gpu_lifecycle.rules.readiness import NOT_ASKED

    asked = {"health": None if look.health == NOT_ASKED else look.health, "token": look.signs.token}
    rows: list[dict[str, object]] = [_row(name, health) for name, health in asked.items() if health is not None]
    if look.signs.waited is not None:
        seconds = round(look.signs.waited, 3)
        rows.append({"probe": "token", "ok": None, "code": None, "text": "no answer yet", "seconds": seconds})
    return rows + _metrics(look)


def _row(name: str, health: Health) -> dict[str, object]:
    return {
        "probe": name,
        "ok": health.ok,
        "code": health.code,
        "text": health.text,
        "seconds": round(health.seconds, 3),
    }


def _metrics(look: Look) -> list[dict[str, object]]:
    """The counters, as text: they are evidence for whoever reads what a stalled engine had shown."""
    scrape, counters = look.signs.scrape, look.signs.counters
    if scrape is None:
        return []
    text = scrape.text or "none of the engine's counters is on the page"
    if counters:
        shown = {"running": counters.running, "queued": counters.queued, **counters.progress, **counters.levels}
        text = ", ".join(f"{name} {'unknown' if value is None else format(value, '.10g')}" for name, value in shown.items())
    return [{"probe": "metrics", "ok": counters is not None, "code": None, "text": text, "seconds": None}]
