"""The end of the engine's main process is told, whatever goes wrong while the kernel log is asked for its reason."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.kernel import KernelEar, KernelNews
from gpu_lifecycle.jobs.main_process import MainProcess
from gpu_lifecycle.jobs.output import output_of
from gpu_lifecycle.rules.lifecycle import EngineExited
from gpu_lifecycle.rules.secrets import Secrets
from gpu_lifecycle.system.engine import Family
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.procfs import Proc


@pytest.mark.parametrize("broken", [False, True])
def test_an_end_is_told(tmp_path: Path, broken: bool) -> None:
    told: list[EngineExited] = []

    class Deaf(KernelEar):
        def listen(self, _: object) -> bool:
            if broken:
                raise OSError(5, "Input/output error")
            return False

    async def ask() -> dict[str, int]:
        return {}

    async def run() -> None:
        ear = Deaf(Layout(str(tmp_path)), Journal("test.service", terminal=True))
        news = KernelNews(ear, ask, list, lambda _: None)
        output = output_of(UnitName("test"), "", "custom", None, Secrets(()))
        ended = asyncio.Event()

        def tell(event: EngineExited) -> None:
            told.append(event)
            ended.set()

        main = MainProcess(Family(Proc(), None), output, news, tell)
        main.adopt(child.pid, 0)
        await asyncio.wait_for(ended.wait(), 5)
        child.returncode = 3  # collected by main
        if broken:
            with pytest.raises(OSError, match="Input/output"):
                await main.settle()
        else:
            await main.settle()
        await main.close()
        output.close()

    child = subprocess.Popen(["/bin/sh", "-c", "exit 3"])
    asyncio.run(run())
    assert [event.status for event in told] == [3]
