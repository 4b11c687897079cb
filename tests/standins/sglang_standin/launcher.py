"""The main process: phases, signals, watchdog and end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time

from . import log
from .api import DRAINING, STARTING, UNHEALTHY, UP, Api
from .core import Core
from .fleet import Fleet, Member, die
from .loop import READ, Loop
from .options import Options, UsageError, parse
from .web import Server

NEXT_PORTS = 20
FORCED_END_WAIT = 5.0
SERVING = "The server is fired up and ready to roll!"


class Launcher:
    """One server, from its first log line to its exit status."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.loop = Loop()
        self.fleet = Fleet(options)
        self.core = Core(options, self.loop, self.fleet)
        self.api = Api(options, self.core)
        access_log = options.log_level_http in ("info", "debug", "trace")
        self.server = Server(self.loop, self.api.handle, access_log)
        self.loaded = False
        self.stopping = False

    # start

    def run(self) -> None:
        """Start and serve; ends by ending the process."""
        options = self.options
        self._announce()
        if options.does("exit-at-once"):
            log.write("Traceback (most recent call last):\nValueError: stand-in was told to exit at once\n")
            die(options.misbehaviours["exit-at-once"])
        if options.does("ignore-term"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.fleet.start()
        self._catch_early_signals()
        for member in self.fleet.members:
            self._attend(member)
        if options.does("exit-while-loading"):
            self.loop.later(options.load_seconds / 2, self._exit_while_loading)
        if options.does("early-health"):
            self._bind()
        self.loop.run()

    def _announce(self) -> None:
        options = self.options
        names = ("model_path", "host", "port", "api_key", "admin_api_key")
        shown = {name: getattr(options, name) for name in names}
        text = ", ".join(f"{name!r}: {value!r}" for name, value in shown.items())
        log.line(f"server_args=ServerArgs({{{text}, 'tp_size': {options.tp}}})")
        for name in options.unknown:
            if not name.startswith("--speculative-") and name.startswith("-"):
                log.line(f"Ignored unknown option {name}")

    def _catch_early_signals(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        self._wakeup = (reading, writing)
        self.loop.watch(reading, READ, self._signalled)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, _noted)

    def _catch_late_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, _noted)
        if not self.options.does("ignore-term"):
            signal.signal(signal.SIGTERM, _noted)

    def _signalled(self, _events: int) -> None:
        for number in self._wakeup[0].recv(64):
            if number == signal.SIGUSR1:
                self.api.forced_down = True
            elif number == signal.SIGUSR2:
                self.api.forced_down = False
            elif number == signal.SIGQUIT:
                self._crash()
            else:
                self._terminate(number)

    def _exit_while_loading(self) -> None:
        log.line("Scheduler hit an exception: Traceback (most recent call last):\nRuntimeError: stand-in")
        self.fleet.kill()
        die(self.options.misbehaviours["exit-while-loading"])

    # children

    def _attend(self, member: Member) -> None:
        member.channel.setblocking(False)
        self.loop.watch(member.channel, READ, lambda _events: self._hear(member))

    def _hear(self, member: Member) -> None:
        try:
            data = member.channel.recv(64)
        except ConnectionResetError:
            data = b""
        if not data:
            self.loop.forget(member.channel)
            self._lost(member, member.status())
        if b"L" in data:
            member.loaded = True
            self._maybe_loaded()
        if b"p" in data:
            self.core.pong(member)

    def _lost(self, member: Member, status: int) -> None:
        if self.stopping:
            self._maybe_stopped()
        elif not self.loaded:
            log.line(f"scheduler died during initialization (exit code: {status})")
            log.line("Received sigquit from a child process. It usually means the child failed.")
            self.fleet.kill()
            die("kill")
        elif status != 0:
            log.line(f"Subprocess {member.name} (pid={member.pid}) crashed with exit code {status}")
            self._crash()

    def _crash(self) -> None:
        if self.options.crash_wait == "never":
            self.api.zombie = True
            return
        log.line("SIGQUIT received. signum=3, frame=None. It usually means one child failed.")
        self._end_hard(float(self.options.crash_wait))

    def _end_hard(self, seconds: float) -> None:
        time.sleep(seconds)  # blocks HTTP meanwhile, as the real diagnostics do
        self.fleet.kill()
        die("kill")

    def _maybe_loaded(self) -> None:
        if self.loaded or not all(member.loaded for member in self.fleet.schedulers):
            return
        self.loaded = True
        self.fleet.order(b"R")
        log.line(f"Engine startup timings (s): scheduler_e2e={self.options.load_seconds:.2f}")
        if self.options.does("never-listens"):
            return
        if self.options.does("listens-late"):
            log.line(SERVING)
            self.loop.later(self.options.number("listens-late"), self._serve)
        else:
            self._serve()

    # serve

    def _serve(self) -> None:
        if not self.options.does("early-health"):
            self._bind()
        self._warm_up()

    def _bind(self) -> None:
        host, port = self.options.host, self.options.port
        tries = NEXT_PORTS if self.options.does("port-moves") else 1
        for number in range(port, port + tries):
            try:
                self.server.listen(host, number)
            except OSError as error:
                self._bind_failed(number, error)
                continue
            self.api.port = number
            self._catch_late_signals()
            log.write(f"INFO:     Uvicorn running on http://{host}:{number} (Press CTRL+C to quit)\n")
            return
        self.stopping = True
        self.loop.later(self.options.bind_fail_wait, lambda: self._end_hard(0))

    def _bind_failed(self, port: int, error: OSError) -> None:
        reason = os.strerror(error.errno or errno.EADDRINUSE).lower()
        address = (self.options.host, port)
        log.write(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {address}: {reason}\n"
        )
        if self.options.does("port-moves"):
            log.line(f"Port {port} is unavailable, trying {port + 1}")

    def _warm_up(self) -> None:
        if self.stopping:
            return
        if self.options.does("health-lies"):
            self._freeze()  # before its first step: no request of anybody may come through
        self.core.start()
        if self.options.skip_server_warmup or self.options.does("health-lies"):
            self._ready()
            return
        log.access("127.0.0.1:40000", "GET", "/model_info", 200, "OK")
        self.loop.later(self.options.warmup_seconds, lambda: self.core.after_step(self._warmed))

    def _warmed(self) -> None:
        log.access("127.0.0.1:40002", "POST", "/generate", 200, "OK")
        self._ready()

    def _ready(self) -> None:
        if self.api.status != STARTING:
            return
        self.api.status = UP
        log.line(SERVING)
        options = self.options
        if options.does("hang-after"):
            self.loop.later(options.number("hang-after"), self._freeze)
        if options.does("crash-after"):
            self.loop.later(options.number("crash-after"), lambda: die("0"))

    def _freeze(self) -> None:
        for member in self.fleet.schedulers:
            member.send(b"F")

    # stop

    def _terminate(self, number: int) -> None:
        if self.stopping or self.api.status == DRAINING:
            return
        name = signal.Signals(number).name
        if self.api.status == UNHEALTHY:
            log.line(f"Signal {name} received while health check failed. Force exiting.")
            wait = self.options.crash_wait
            self._end_hard(FORCED_END_WAIT if wait == "never" else float(wait))
        self.api.status = DRAINING
        log.line(f"{name} received. Draining requests and shutting down.")
        self._drain()

    def _drain(self) -> None:
        if self.core.busy or self.api.askers:
            self.loop.later(0.05, self._drain)
            return
        self.stopping = True
        log.line("Gracefully exiting...")
        self.fleet.order(b"Q")
        self.loop.later(self.options.shutdown_wait, self._stop_rest)
        self._maybe_stopped()

    def _stop_rest(self) -> None:
        log.line("Some processes did not end in time and are killed.")
        self.fleet.kill()

    def _maybe_stopped(self) -> None:
        if any(member.alive and not member.adopted for member in self.fleet.members):
            return
        if self.api.status != DRAINING:
            return  # the port was taken: ends by its own timer
        self.fleet.await_tracker()
        die(self.options.misbehaviours.get("term-status", "0"))


def _noted(_number: int, _frame: object) -> None:
    """The wake-up file carries the signal; this only replaces the default action."""


def main(argv: list[str]) -> None:
    """Run a server from a command line."""
    try:
        options = parse(argv)
    except UsageError as error:
        print(f"launch_server.py: error: {error}", file=sys.stderr)
        sys.exit(2)
    Launcher(options).run()
