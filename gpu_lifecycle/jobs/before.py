"""stop.before: a command of the user's that keeps new requests away before the engine is told to end."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import UnitName
from gpu_lifecycle.system.engine import ended, engine_environment, start


class Before:
    """At most one run of it. ``tell`` gets how it ended: "" for well."""

    def __init__(self, unit: UnitName, run: str, file: str, tell: Callable[[str], None]) -> None:
        self.unit = unit
        self.run = run
        self.file = file
        self.tell = tell
        self.process: subprocess.Popen[bytes] | None = None
        self.task: asyncio.Task[None] | None = None

    def begin(self, command: tuple[str, ...]) -> None:
        self.task = asyncio.create_task(self._run(command))

    async def _run(self, command: tuple[str, ...]) -> None:
        """With the engine's environment, and nothing of the service manager's; how long it may take is not decided here."""
        environment = engine_environment(os.environ, {}, self.unit, self.run)
        try:
            self.process = await asyncio.to_thread(start, command, environment, self.file)
        except LifecycleError as error:
            self.tell(f"cannot be run: {error.message}")
            return
        status = await ended(self.process)
        self.tell(f"exited with status {status}" if status else "")

    async def close(self) -> None:
        """Ends it, if it still runs."""
        if self.task:
            self.task.cancel()
            await asyncio.wait({self.task})
