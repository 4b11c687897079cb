"""The engine's core: forward steps that every scheduler and the detokenizer must answer.

One step gives each running request one token, or one chunk of its prompt. A frozen or dead process
never answers its ping, so the step never ends and every counter stands still, as in the real engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .fleet import Fleet, Member
from .loop import Loop
from .options import Options


class Job:
    """One generation request."""

    def __init__(self, prompt: int, tokens: int, done: Callable[[], None]) -> None:
        self.prompt = prompt
        self.tokens = tokens
        self.done = done
        self.prefilled = 0
        self.produced = 0


class Core:
    """Queue, running batch and counters."""

    def __init__(self, options: Options, loop: Loop, fleet: Fleet) -> None:
        self.options = options
        self.loop = loop
        self.fleet = fleet
        self.open = False
        self.running: list[Job] = []
        self.queue: list[Job] = []
        self.prefill_total = 0
        self.decode_total = 0
        self.prompt_total = 0
        self.generation_total = 0
        self.requests_total = 0
        self.aborted_total = 0
        self.throughput = 0.0
        self.stepped_at = time.time()
        self._waiters: list[Callable[[], None]] = []
        self._next_waiters: list[Callable[[], None]] = []
        self._unanswered: set[int] = set()
        self._sent_at = 0.0
        self._scheduled = False

    @property
    def busy(self) -> bool:
        return bool(self.running or self.queue)

    @property
    def stuck(self) -> bool:
        """A step was begun half a second ago and has not ended."""
        return bool(self._unanswered) and time.monotonic() - self._sent_at > 0.5

    def submit(self, job: Job) -> None:
        """Queue a request; its `done` is called after its last token."""
        self.queue.append(job)
        self._kick()

    def cancel(self, job: Job) -> None:
        """The client went away."""
        self.aborted_total += 1
        for jobs in (self.queue, self.running):
            if job in jobs:
                jobs.remove(job)

    def after_step(self, call: Callable[[], None]) -> None:
        """Call once when a step that begins from now on has ended: what a health probe waits for."""
        (self._next_waiters if self._unanswered else self._waiters).append(call)
        self._kick()

    def start(self) -> None:
        """The model is loaded: steps may begin."""
        self.open = True
        self._kick()

    def pong(self, member: Member) -> None:
        """A process answered its ping."""
        self._unanswered.discard(member.pid)
        if not self._unanswered:
            self._end_step()

    def _kick(self) -> None:
        if not self.open or self._scheduled or self._unanswered:
            return
        if self.busy or self._waiters:
            self._scheduled = True
            wait = self._sent_at + self.options.token_seconds - time.monotonic()
            self.loop.later(max(0.0, wait), self._begin_step)

    def _begin_step(self) -> None:
        self._scheduled = False
        if not (self.busy or self._waiters):
            return
        while self.queue and len(self.running) < self.options.max_running_requests:
            self.running.append(self.queue.pop(0))
        self._sent_at = time.monotonic()
        self._unanswered = {member.pid for member in self.fleet.members}
        self.fleet.order(b"P")

    def _end_step(self) -> None:
        produced = 0 if self.busy else self._probe()
        finished = []
        for job in self.running:
            produced += self._advance(job)
            if job.produced >= job.tokens:
                finished.append(job)
        self.throughput = produced / max(self.options.token_seconds, 0.001)
        self.stepped_at = time.time()
        waiters, self._waiters, self._next_waiters = self._waiters, self._next_waiters, []
        for job in finished:
            self.running.remove(job)
            self.requests_total += 1
            job.done()
        for call in waiters:
            call()
        self._kick()

    def _probe(self) -> int:
        self.prefill_total += 1
        self.decode_total += 1
        return 1

    def _advance(self, job: Job) -> int:
        if job.prefilled < job.prompt:
            chunk = min(max(1, self.options.chunked_prefill_size), job.prompt - job.prefilled)
            job.prefilled += chunk
            self.prefill_total += chunk
            return 0
        self.prompt_total += job.prompt if job.produced == 0 else 0
        job.produced += 1
        self.decode_total += 1
        self.generation_total += 1
        return 1
