"""The engine's main process: started or taken over, minded, and its end told once, after what the kernel said before it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping

from gpu_lifecycle.jobs.kernel import KernelNews
from gpu_lifecycle.jobs.output import EngineOutput
from gpu_lifecycle.rules.lifecycle import EngineExited
from gpu_lifecycle.system.engine import Adopted, Family, start


class MainProcess:
    """One run's. ``tell`` is given the event of its end."""

    def __init__(self, family: Family, output: EngineOutput, news: KernelNews, tell: Callable[[EngineExited], None]) -> None:
        self.family = family
        self.output = output
        self.news = news
        self.child: subprocess.Popen[bytes] | Adopted | None = None
        self.oom_before = 0
        self._tell = tell
        self._ended: asyncio.Task[None] | None = None

    async def start(self, command: tuple[str, ...], environment: Mapping[str, str], file: str) -> int:
        """Its pid. Raises LifecycleError; ``file`` is the config that the error names."""
        self.oom_before = self.family.oom_kills()
        # In a thread: a program on a dead network file system must not keep a stop from being heard.
        child = await asyncio.to_thread(start, command, environment, file, self.output.open())
        self.child = child
        self._mind()
        return child.pid

    def adopt(self, pid: int, oom_before: int) -> None:
        """Minds a child that the program before this one, in this very process, has started."""
        self.oom_before = oom_before
        self.child = Adopted(pid)
        self._mind()

    @property
    def runs(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def terminate(self) -> None:
        if self.child and self.runs:
            self.child.send_signal(signal.SIGTERM)  # our own unreaped child: its pid cannot mean another process

    async def settle(self) -> None:
        """Until an end that has been noticed is told."""
        if self._ended:
            await self._ended

    async def close(self) -> None:
        if self._ended:
            self._ended.cancel()
            await asyncio.wait({self._ended})

    def _mind(self) -> None:
        assert self.child
        loop = asyncio.get_running_loop()
        self.output.begin(loop)
        pidfd = os.pidfd_open(self.child.pid)
        loop.add_reader(pidfd, self._gone, loop, pidfd)

    def _gone(self, loop: asyncio.AbstractEventLoop, pidfd: int) -> None:
        """The pidfd is readable: the main process has ended. Its status is taken here, once."""
        loop.remove_reader(pidfd)
        os.close(pidfd)
        self._ended = asyncio.create_task(self._note_end())

    async def _note_end(self) -> None:
        assert self.child
        try:
            await self.news.hear()  # the reason before the end
        finally:  # whatever goes wrong there: an end that nobody is told of would be a dead engine called alive
            oom = self.family.oom_kills() - self.oom_before
            self._tell(EngineExited(self.child.wait(), oom, self.output.words))
