"""Bodies of the child processes: schedulers, detokenizer, resource tracker.

They talk with the launcher over a socket pair. To a worker: R all is loaded, P ping, F freeze, Q quit.
From a worker: p pong, L loaded. End of file means that the other side has ended.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

from . import log, process
from .options import Options

TICK = 0.05
TOKENS = 1_048_576
HOSTILE = b"sglang::scheduler_TP%d\n\x1b[31;1mFAKE\x1b[0m \"'`$(reboot)`\t\xff\xfe{}%%s"


class Worker:
    """One scheduler (rank 0 and up) or the detokenizer (rank -1)."""

    def __init__(self, options: Options, rank: int, channel: socket.socket) -> None:
        self.options = options
        self.rank = rank
        self.channel = channel
        self.label = f"TP{rank}" if options.tp > 1 else ""
        self.ledger: process.Ledger | None = None
        self.orphaned = False
        scheduler = rank >= 0
        self.stays = scheduler and options.does("leave-orphans")
        self.stubborn = self.stays or (scheduler and options.does("workers-ignore-term"))
        self.stubborn = self.stubborn or options.does("ignore-term")

    def run(self) -> None:
        """Live the whole life; never returns."""
        self._settle()
        if self.rank >= 0:
            self._open()
            self._load()
        if self.orphaned:
            self._orphan()
        self._send(b"L")
        while True:
            self._obey(self._receive())

    def _settle(self) -> None:
        if self.stays:
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)
        else:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if self.stubborn else signal.SIG_DFL)
        if self.options.worker_sessions == "own" or self.stays:
            os.setsid()
        time.sleep(self.options.title_delay)
        process.set_title(title(self.options, self.rank), self.options.keep_environ)

    def _open(self) -> None:
        gpus = process.visible_gpus(self.options.tp)
        if self.rank >= len(gpus):
            self._fail("RuntimeError: CUDA error: invalid device ordinal")
        try:
            if not self.options.no_devices:
                process.open_devices(gpus if self.options.open_devices == "all" else [gpus[self.rank]])
        except OSError as error:
            self._fail(f"RuntimeError: No CUDA GPUs are available ({error})")
        if not self._holds_nothing():
            self.ledger = process.Ledger(gpus[self.rank])

    def _holds_nothing(self) -> bool:
        skipped = self.options.misbehaviours.get("skip-gpu")
        return self.options.does("no-memory") or (skipped is not None and int(skipped) == self.rank)

    def _fail(self, text: str) -> None:
        log.line(f"Scheduler hit an exception: Traceback (most recent call last):\n{text}", self.label)
        os._exit(1)

    def _load(self) -> None:
        seconds = self.options.load_seconds
        due = log.milestones(self.options.memory_bytes, TOKENS, self.options.context_length, seconds)
        begun, shards, progress = time.monotonic(), 0, 0.0
        while progress < 1.0:
            self._wait(min(TICK, max(seconds, 0.001)))
            progress = self._progress(time.monotonic() - begun)
            if self.ledger:
                self.ledger.hold(int(log.memory_share(progress) * self.options.memory_bytes))
            while due and due[0][0] <= progress:
                if due[0][0] >= log.WEIGHTS_END:
                    shards = self._shards(progress, shards, begun)
                log.line(due.pop(0)[1], self.label)
            shards = self._shards(progress, shards, begun)

    def _progress(self, elapsed: float) -> float:
        limit = self.options.number("stall-at") / 100 if self.options.does("stall-at") else 1.0
        seconds = self.options.load_seconds
        return min(limit, elapsed / seconds if seconds > 0 else 1.0)

    def _shards(self, progress: float, shown: int, begun: float) -> int:
        done = log.shards_done(progress)
        if self.rank == 0 and done > shown:
            log.write(log.shard_bar(done, time.monotonic() - begun))
        return done

    def _wait(self, seconds: float) -> None:
        if self.orphaned:
            time.sleep(seconds)
        elif select.select([self.channel], [], [], seconds)[0]:
            data = self._receive()
            self.orphaned = not data
            if b"Q" in data and not self.stubborn:
                self._quit()

    def _receive(self) -> bytes:
        try:
            return self.channel.recv(64)
        except ConnectionResetError:
            return b""

    def _send(self, data: bytes) -> None:
        try:
            self.channel.send(data)
        except OSError:
            self._orphan()

    def _obey(self, orders: bytes) -> None:
        if not orders:
            self._orphan()
        for order in orders:
            if order == ord("P"):
                self._send(b"p")
            elif order == ord("R") and not (self.options.no_pdeathsig or self.stays):
                process.die_with_parent()
            elif order == ord("F"):
                self._freeze()
            elif order == ord("Q") and not self.stubborn:
                self._quit()

    def _freeze(self) -> None:
        hangup = select.poll()
        hangup.register(self.channel, 0)
        hangup.poll()
        self._orphan()

    def _orphan(self) -> None:
        time.sleep(self.options.orphan_life)
        self._quit()

    def _quit(self) -> None:
        if self.ledger:
            self.ledger.clear()
        os._exit(0)


def title(options: Options, rank: int) -> bytes:
    """What the process list shows."""
    if rank < 0:
        return b"sglang::detokenizer"
    if options.does("hostile-title"):
        return HOSTILE % rank
    return f"sglang::scheduler_TP{rank}".encode() if options.tp > 1 else b"sglang::scheduler"


def become_tracker(pipe: int) -> None:
    """The real resource tracker: ignores SIGTERM, ends when the last process of the server has ended."""
    os.set_inheritable(pipe, True)
    code = f"from multiprocessing.resource_tracker import main;main({pipe})"
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", code])
