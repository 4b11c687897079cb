"""The kernel log for one run: what the NVIDIA driver says there of the claimed GPUs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.facts import Gpu, Layout, XidLine
from gpu_lifecycle.rules.claims import pci_key
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.kernel_log import records
from gpu_lifecycle.rules.xid import ClaimedGpu, KernelSays, Listener, asks, few_of_each, judge, xid_line
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.kmsg import KernelLog, sees_host_pids


class KernelEar:
    """Reads the log for one run. Without a log it says so once, and is deaf from then on."""

    def __init__(self, layout: Layout, journal: Journal) -> None:
        self.layout = layout
        self.journal = journal
        self.log: KernelLog | None = None
        self.gpus: tuple[ClaimedGpu, ...] = ()
        self.pids: set[int] = set()  # of all processes that the run has had
        self.comparable = sees_host_pids()
        self.last = -1
        self._gaps = 0
        self._lines: list[XidLine] = []  # read, and not judged yet

    def begin(self, gpus: Sequence[Gpu], complaint: str, *, skip: bool = True) -> None:
        """Opens the log and passes over what is older than the run. ``complaint``: why the hook could not hand it over.

        Without ``skip`` it goes on where the program before this one has stopped to read.
        """
        self.gpus = tuple(
            ClaimedGpu(gpu.uuid, gpu.label, address, gpu.instance) for gpu in gpus if (address := pci_key(gpu.pci))
        )
        try:
            self.log = self._open(complaint)
        except BlindError as error:
            self._unseen(str(error))
            return
        if skip:
            self.log.skip()

    def keep_open(self) -> None:
        """For the program that takes this one's place."""
        if self.log:
            os.set_inheritable(self.log.fd, True)

    def _open(self, complaint: str) -> KernelLog:
        passed = KernelLog.passed(os.environ)
        if passed is None and complaint:
            raise BlindError(complaint)
        return passed or KernelLog.open(self.layout.kernel_log)

    def know(self, pids: Iterable[int]) -> None:
        """These are, or were, processes of the run."""
        self.pids.update(pids)

    def listen(self, living: Callable[[], Iterable[int]]) -> bool:
        """Reads what is new, for ``judge``; ``living`` is asked, once, only where a line names a process that is not known.

        True where the recovery action of a claimed GPU would tell more than the lines do.
        """
        if self.log is None:
            return bool(self._lines)
        reading = self.log.read()
        lines = [line for record in records(reading.data) if (line := xid_line(record))]
        if self.comparable and any(line.pid is not None and line.pid not in self.pids for line in lines):
            self.know(living())
        self._lines += lines
        if reading.lost and not self._gaps:
            self._unseen("the kernel log was overwritten faster than it could be read: some lines were not seen")
        self._gaps += reading.lost
        if reading.failed:
            self.close()
            self._unseen(reading.failed)
        return any(asks(line, self._listener()) for line in self._lines)

    def judge(self, actions: Mapping[str, int]) -> list[KernelSays]:
        """What was read means this; ``actions``: recovery actions by UUID, as far as they are known."""
        lines, self._lines = self._lines, []
        return few_of_each([says for line in lines if (says := self._judge(line, actions))])

    def _listener(self) -> Listener:
        return Listener(self.gpus, frozenset(self.pids) if self.comparable else None, self.last)

    def _judge(self, line: XidLine, actions: Mapping[str, int]) -> KernelSays | None:
        says = judge(line, self._listener(), actions)
        self.last = max(self.last, line.sequence)
        return says

    def _unseen(self, text: str) -> None:
        self.journal.tell(Event("kernel-log-unseen", f"{text}; Xid errors are not noticed" if self.log is None else text))

    def close(self) -> None:
        if self.log:
            self.log.close()
            self.log = None


class KernelNews:
    """Feeds a run with what the kernel says, in the order in which it was said, and with the driver's own advice."""

    def __init__(
        self,
        ear: KernelEar,
        ask: Callable[[], Awaitable[Mapping[str, int]]],
        living: Callable[[], Iterable[int]],
        tell: Callable[[KernelSays], None],
    ) -> None:
        """``ask`` gives the recovery actions of the claimed GPUs; it is asked after a line, for it is what follows from it."""
        self.ear = ear
        self._ask = ask
        self._living = living
        self._tell = tell
        self._order = asyncio.Lock()

    async def hear(self) -> None:
        """All that is new has been told when this returns, also where it is cancelled."""
        async with self._order:
            actions: Mapping[str, int] = {}
            try:
                if self.ear.listen(self._living):
                    actions = await self._ask()
            finally:
                for said in self.ear.judge(actions):
                    self._tell(said)
