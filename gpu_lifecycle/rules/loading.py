"""How far a load is and how long it may still take: from what earlier loads took, from the weights' size where none is known.

Nothing here decides anything: a guess is shown, and that is all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_lifecycle.rules.life import Life
from gpu_lifecycle.rules.loads import Learned, Loaded
from gpu_lifecycle.rules.phases import Step, left
from gpu_lifecycle.rules.quantity import show_count, show_duration, show_size
from gpu_lifecycle.rules.readiness import Look, progress_of

MOST = 0.99  # of a load that is not ready; the rest is READY=1
FIRST_SHARE = 0.9  # of a load of which nothing is learned, the weights are taken for so much
MOST_LEFT = 86400.0  # seconds; a guess of more is none
SHOWN_IN_SECONDS = 600.0
SLOW = 10.0  # seconds that a step may be late before that is said
QUIET = 30.0  # seconds without progress before that is said
READ_CHUNK = 64 << 20  # bytes; what a process reads beside the weights, day in and day out, is less


@dataclass(frozen=True, slots=True)
class Guess:
    """``part`` of the step and ``progress`` of the load (0..1), seconds that are ``left``; None: not known.

    ``slow``: it takes longer than it usually does.
    """

    part: float | None = None
    progress: float | None = None
    left: float | None = None
    slow: bool = False


def guess(life: Life, look: Look, now: float) -> Guess:
    """What can be said of a load at this look. It may be less than was said before: see ``further``."""
    step, spent = Step(life.engine_step), now - since(life)
    part = _part(life, look)
    if life.limits.learned.count:
        return expect(life.limits.learned, step, spent, part)
    share = FIRST_SHARE if step > Step.WEIGHTS else None if part is None else FIRST_SHARE * part
    return Guess(part, share, None if part is None else _sane(left(part, spent)))


def expect(usual: Learned, step: Step, spent: float, part: float | None) -> Guess:
    """Of a load like those that ``usual`` sums up, ``spent`` seconds into ``step``, of which ``part`` is done (None: unseen).

    How fast this load is counts the more, the further the step is: a disk may be slower today.
    """
    before = sum(seconds for at, seconds in usual.steps.items() if at < step)
    after = sum(seconds for at, seconds in usual.steps.items() if at > step)
    here = usual.steps.get(step, 0.0)
    whole = before + here + after
    if part is None:
        done = min(spent / here, 1.0) if here > 0 else 1.0
        here_left = max(here - spent, 0.0)
        slow = spent > here + max(SLOW, whole / 2)
    else:
        done = min(max(part, 0.0), 1.0)
        rest = left(done, spent)
        now_takes = here if rest is None else spent + rest
        here_left = (1 - done) * ((1 - done) * here + done * now_takes)
        slow = False
    progress = (before + done * here) / whole if whole > 0 else None
    return Guess(part, progress, None if slow else _sane(here_left + after), slow)


def further(before: float | None, seen: float | None) -> float | None:
    """A load's progress, which never goes back, and is never all of it."""
    if seen is None:
        return before
    return max(before or 0.0, min(max(seen, 0.0), MOST))


def _sane(seconds: float | None) -> float | None:
    return seconds if seconds is not None and 0 <= seconds < MOST_LEFT else None


def since(life: Life) -> float:
    """When the step began."""
    return life.step_since if life.engine_step else life.began


def _part(life: Life, look: Look) -> float | None:
    """How much of the step is done, by what can be seen of it; None: it shows nothing."""
    if life.total:
        return life.done / life.total
    step = Step(life.engine_step)
    if step not in (Step.NONE, Step.WEIGHTS):
        return None
    wanted = life.limits.needs.gpus
    whole: Mapping[str, int] = dict.fromkeys(wanted, life.limits.weights)
    if step is Step.NONE and life.limits.learned.memory:
        whole = life.limits.learned.memory  # an engine without phases: all that it held when it was ready
    held = [(look.memory.get(uuid) or 0) / whole[uuid] for uuid in wanted if whole.get(uuid)]
    expected = life.limits.learned.read or life.limits.weights * len(wanted)
    read = life.read / expected if expected and step is Step.WEIGHTS else 0.0
    # An engine may take the memory for all weights before it reads them: then it shows nothing.
    return next((part for part in (min(held, default=0.0), read) if 0 < part < 1), None)


# What is kept of it


def took(life: Life, now: float) -> str:
    """The steps that are over and the one that ends now, with their seconds: plain text, for a handover."""
    return f"{life.took} {life.engine_step}={now - since(life):.2f}".lstrip()


def durations(text: str) -> dict[Step, float]:
    """Back from text, which another version may have written: what does not fit is left out."""
    found: dict[Step, float] = {}
    for word in text.split():
        number, _, seconds = word.partition("=")
        try:
            found[Step(int(number))] = max(0.0, float(seconds))
        except ValueError:
            continue
    return found


def loaded(life: Life, look: Look, now: float) -> Loaded:
    """What there is to learn of a load that is ready now."""
    memory = {uuid: amount for uuid, amount in look.memory.items() if amount}
    return Loaded(durations(took(life, now)), memory, life.read or None)


def steps_text(life: Life, now: float) -> str:
    """The steps that are over, with the one that ends now; not those that say nothing or took no tenth of a second."""
    known = durations(took(life, now)).items()
    shown = [(step, round(seconds, 1)) for step, seconds in known if step not in (Step.NONE, Step.SERVING)]
    return ", ".join(f"{step.words} {show_duration(seconds)}" for step, seconds in shown if seconds)


# Progress as evidence


def has_read_on(life: Life, read: int | None) -> bool:
    """Whether so much more was read that it is the weights: until they are loaded, and in amounts that only they have."""
    if read is None or life.engine_step > Step.WEIGHTS:
        return False
    chunk = max(READ_CHUNK, life.limits.weights * len(life.limits.needs.gpus) // 100)
    return read // chunk > life.read // chunk


def silent(life: Life, now: float) -> float:
    """Seconds without progress where that is worth a word, else 0."""
    quiet = now - life.progressed
    return quiet if life.engine and quiet >= min(QUIET, life.limits.stall / 2) else 0.0


def stalled(life: Life, now: float) -> tuple[str, str]:
    """Why a load without progress is ended, in words; and what makes another such end the same one."""
    words = Step(life.engine_step).words
    ago = show_duration(round(now - life.progressed))
    last = f"the last was {life.last_progress}, {ago} ago" if life.last_progress else "there was none at all"
    doing = f"; what its processes were doing: {life.doing}" if life.doing and life.doing not in life.text else ""
    limit = f"no progress for ready.stall, {show_duration(life.limits.stall)}"
    return f"{limit}: {life.text}; {last}{doing}", f"{limit} while {words}"


# Words


def loading_text(look: Look, reasons: tuple[str, ...], life: Life, now: float, seen: Guess) -> str:
    """One line on how far a load is: what is resident, how long it may take, and what is still missing."""
    step = Step(life.engine_step)
    weights = step <= Step.WEIGHTS and seen.part is not None
    held = _held(look, life)
    details = ([f"{life.done} of {life.total}"] if life.total else []) + ([held] if weights else [])
    shown = "" if seen.part is None else f" {int(seen.part * 100)}% ({', '.join(details)})"
    more = "" if weights else f": {held}"
    return f"{_words(look, step)}{shown}{_pace(life, now, seen)}{more}; not ready: {reasons[0]}"


def _words(look: Look, step: Step) -> str:
    """Some engines have their port open from the beginning: what they say themselves counts more."""
    return "warming up" if look.bound_by_us and not in_load(step) else step.words


def in_load(step: int) -> bool:
    """Whether an engine that says this of itself is still at its load, whatever its port answers."""
    return Step.INIT <= step <= Step.GRAPHS


def _pace(life: Life, now: float, seen: Guess) -> str:
    """How long it has taken, and may still take; or how long nothing has moved."""
    so_far = show_duration(round(now - life.began))
    quiet, usual = silent(life, now), life.limits.learned.count
    if quiet:
        doing = f" ({life.doing})" if life.doing else ""
        return f" for {so_far}, no progress for {show_duration(round(quiet))}{doing}"
    if seen.slow:
        return f", slower than {f'the last {usual} starts' if usual > 1 else 'the last start'}, for {so_far}"
    if seen.left is None or seen.left < 0.5:
        return f" for {so_far}"
    time = show_duration(round(seen.left)) if seen.left >= SHOWN_IN_SECONDS else f"{math.ceil(seen.left)} s"
    return f", about {time} left{'' if usual else ' of it'} after {so_far}"


def _held(look: Look, life: Life) -> str:
    amounts = [amount or 0 for amount in look.memory.values()]
    if not any(amounts):
        return "no GPU memory yet"
    loading = life.engine_step <= Step.WEIGHTS and life.limits.weights > max(amounts)
    held = _span(amounts, life.limits.weights if loading else None)
    return f"{held} on each of {show_count(len(life.limits.needs.gpus), 'GPU')}"


def _span(amounts: list[int], whole: int | None) -> str:
    """``31.2 of 72.9 GiB``: a unit that all share is said once."""
    low, high = show_size(min(amounts)), show_size(max(amounts))
    shown = low if low == high else f"{low} to {high}"
    if whole is None:
        return shown
    unit = " " + show_size(whole).rpartition(" ")[2]
    return f"{shown.replace(unit, '') if low.endswith(unit) and high.endswith(unit) else shown} of {show_size(whole)}"


def progress_words(look: Look, life: Life) -> str:
    """What has just moved, for whoever asks later why nothing has moved since."""
    held = sum(amount or 0 for amount in look.memory.values())
    if look.bound_by_us and not life.mark[0]:
        return "its port, which was opened"
    if progress_of(look)[1] > life.mark[1]:
        return f"{show_size(held)} of GPU memory in all"
    return f"the health endpoint, which said: {look.health.text}"
