"""Why a run has ended: one cause from all evidence, by rules in order. The first that answers, decides.

The order is from what cannot be argued with to what is a guess: our own refusal, the driver's word that the host has to act,
the kernel's count of processes ended for memory, the engine's own words, an Xid, our own verdict, how the process ended,
systemd's word. What no rule knows is unknown, and shows the most telling lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpu_lifecycle.rules.cause_texts import TEXTS
from gpu_lifecycle.rules.quantity import show_count
from gpu_lifecycle.rules.signatures import BY_CODE, Signs, first_cause
from gpu_lifecycle.rules.signatures_shape import Rank
from gpu_lifecycle.rules.text import printable

SHOWN = 500  # characters of one piece of evidence
SIGNS = 4  # of the engine's signatures that are shown
KILL = 9


class Outcome(StrEnum):
    STOPPED = "stopped"  # asked for
    REFUSED = "refused"  # before there was an engine
    FAILED = "failed"
    LOST = "lost"  # nobody was left to write its end


@dataclass(frozen=True, slots=True)
class Ended:
    """All that is known of one run's end. Nothing of it has to be there: "" and None are unknown."""

    failure: str = ""  # why it fails, in our own words
    verdict: str = ""  # ... and the kind of that, in one word (rules.ending)
    stop: bool = False  # the daemon has ended because it was asked to
    refusal: int = 0  # the status with which the start was refused
    refused: str = ""  # ... and why
    gpu: str = ""  # why no restart can help, by the kernel log
    exit: int | None = None  # of the engine's main process; negative for a signal
    oom: int = 0  # processes of the unit that the kernel ended for memory (memory.events)
    xids: tuple[str, ...] = ()
    nvml: str = ""
    probes: tuple[str, ...] = ()  # answers of the health endpoint, oldest first
    signs: Signs = ()  # rules.signatures.current
    lines: tuple[str, ...] = ()  # the engine's most telling lines
    spent: str = ""  # why it is not tried again
    result: str = ""  # systemd's SERVICE_RESULT, EXIT_CODE and EXIT_STATUS (systemd.exec(5))
    code: str = ""
    status: str = ""
    doing: str = ""  # what it was busy with, where nobody was left to say how it ended
    after: str = ""  # what the post-stop hook could not clear


@dataclass(frozen=True, slots=True)
class Cause:
    """``code`` is a key of ``CAUSES``; ``evidence`` what speaks for it, the strongest first."""

    code: str
    outcome: Outcome
    text: str
    cure: str
    evidence: tuple[str, ...] = ()


def classify(ended: Ended) -> Cause:
    """Always an answer; "unknown" is one."""
    code = next(found for rule in RULES if (found := rule(ended)))
    text, cure = CAUSES[code]
    return Cause(code, _outcome(ended, code), text, cure, _evidence(ended))


def _refused(ended: Ended) -> str:
    return f"refused-{ended.refusal}" if f"refused-{ended.refusal}" in TEXTS else "refused" if ended.refused else ""


def _host_has_to_act(ended: Ended) -> str:
    return "gpu-action" if ended.gpu else ""


def _clean(ended: Ended) -> str:
    if ended.failure or not (ended.stop or ended.result == "success"):
        return ""
    return "memory-held" if ended.after else "stopped"


def _host_memory(ended: Ended) -> str:
    return "host-oom" if ended.oom or ended.result == "oom-kill" else ""


def _said(ended: Ended) -> str:
    sign = first_cause(ended.signs)
    return sign.code if sign and BY_CODE[sign.code].rank is Rank.CAUSE else ""


def _xid(ended: Ended) -> str:
    return "gpu-error" if ended.verdict == "gpu-error" else ""


def _hinted(ended: Ended) -> str:
    """An effect whose cause nobody has named."""
    sign = first_cause(ended.signs)
    return sign.code if sign else ""


def _verdict(ended: Ended) -> str:
    return ended.verdict if ended.verdict in TEXTS else ""


def _echo(ended: Ended) -> str:
    return ended.signs[0].code if ended.verdict and ended.signs else ""


def _how_it_ended(ended: Ended) -> str:
    if not ended.verdict or ended.exit is None or ended.exit > 0:
        return ""
    if ended.exit == 0:
        return "engine-quit"
    return "engine-killed" if ended.exit == -KILL else "engine-crashed"


def _daemon(ended: Ended) -> str:
    """The daemon or a hook itself has ended badly, and nothing was wrong with the engine as far as is known."""
    if ended.failure:
        return ""
    if ended.result == "exit-code" and not ended.code:
        return "hook-failed"
    if ended.result == "exit-code":
        return "defect" if ended.status == "1" else ""
    words = {"watchdog": "daemon-hung", "signal": "daemon-killed", "core-dump": "daemon-killed", "timeout": "out-of-time",
             "resources": "not-set-up", "protocol": "not-set-up"}  # fmt: skip
    return words.get(ended.result, "")


def _unknown(_: Ended) -> str:
    return "unknown"


RULES: tuple[Callable[[Ended], str], ...] = (
    _refused,
    _host_has_to_act,
    _clean,
    _host_memory,
    _said,
    _xid,
    _hinted,
    _verdict,
    _echo,
    _how_it_ended,
    _daemon,
    _unknown,
)
CAUSES = {**TEXTS, **{code: (item.text, item.cure) for code, item in BY_CODE.items()}}


def _outcome(ended: Ended, code: str) -> Outcome:
    if code == "stopped":
        return Outcome.STOPPED
    return Outcome.REFUSED if ended.refusal or ended.refused else Outcome.FAILED


def _evidence(ended: Ended) -> tuple[str, ...]:
    found = [ended.refused, ended.gpu, ended.failure if ended.failure != ended.gpu else "", *_process(ended)]
    found += [f"the kernel log: {text}" for text in ended.xids if text not in (ended.gpu, ended.failure)]
    found += [f"NVML: {ended.nvml}"] if ended.nvml else []
    found += [f'the engine said{_times(sign.count)} ({sign.code}): "{sign.line}"' for sign in ended.signs[:SIGNS]]
    known = first_cause(ended.signs) or not (ended.failure or ended.verdict)
    found += [] if known else [f'the engine said: "{line}"' for line in ended.lines]
    found += [f"the last health checks: {', '.join(ended.probes)}"] if ended.probes and ended.failure else []
    found += [f"it is not tried again: {ended.spent}"] if ended.spent else []
    found += [f"after the stop: {ended.after}"] if ended.after else []
    return tuple(printable(text, SHOWN) for text in found if text)


def _process(ended: Ended) -> list[str]:
    found = []
    if ended.exit is not None and ended.failure and ended.verdict != "engine-exited":
        how = f"was ended by signal {-ended.exit}" if ended.exit < 0 else f"exited with status {ended.exit}"
        found.append(f"the engine's main process then {how}")
    if ended.oom:
        found.append(f"the kernel has ended {show_count(ended.oom, 'process')} of this unit for memory (memory.events)")
    if ended.result and not (ended.failure or ended.refused) and ended.result != "success":
        found.append(f"systemd says: {' '.join(text for text in (ended.result, ended.code, ended.status) if text)}")
        found += [f"before that it said: {ended.doing}"] if ended.doing else []
    return found


def _times(count: int) -> str:
    return f" {count} times" if count > 1 else ""


def for_unit(cure: str, name: str) -> str:
    """A cure with the unit's name in its commands."""
    return re.sub(r"\bUNIT\b", lambda _: name, cure)


def one_line(cause: Cause, before: int) -> str:
    """For STATUS= and the journal; ``before``: how many earlier runs have ended for the same cause."""
    words = cause.evidence[0] if cause.evidence else ""
    if cause.outcome is Outcome.STOPPED:
        return cause.text
    if cause.outcome is Outcome.REFUSED:
        return f"refused: {words or cause.text}"
    times = f", {show_count(before, 'time')} before" if before else ""
    return f"failed: {cause.text} ({cause.code}{times})" + (f": {words}" if words else "")
