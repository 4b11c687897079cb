"""The kernel log for one run: what the NVIDIA driver says there of the claimed GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.facts import Gpu, Layout, XidLine
from gpu_lifecycle.rules.claims import pci_key
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.kernel_log import records
from gpu_lifecycle.rules.xid import ClaimedGpu, KernelSays, Listener, few_of_each, judge, xid_line
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

    def begin(self, gpus: Sequence[Gpu], complaint: str, *, skip: bool = True) -> None:
        """Opens the log and passes over what is older than the run. ``complaint``: why the hook could not hand it over.

        Without ``skip`` it goes on where the program before this one has stopped to read.
        """
        self.gpus = tuple(
            ClaimedGpu(gpu.uuid, gpu.index, address, gpu.instance) for gpu in gpus if (address := pci_key(gpu.pci))
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

    def hear(self, living: Callable[[], Iterable[int]]) -> list[KernelSays]:
        """What is new and concerns the run; ``living`` is asked, once, only where a line names a process that is not known."""
        if self.log is None:
            return []
        reading = self.log.read()
        lines = [line for record in records(reading.data) if (line := xid_line(record))]
        if self.comparable and any(line.pid is not None and line.pid not in self.pids for line in lines):
            self.know(living())
        said = [says for line in lines if (says := self._judge(line))]
        if reading.lost and not self._gaps:
            self._unseen("the kernel log was overwritten faster than it could be read: some lines were not seen")
        self._gaps += reading.lost
        if reading.failed:
            self.close()
            self._unseen(reading.failed)
        return few_of_each(said)

    def _judge(self, line: XidLine) -> KernelSays | None:
        pids = frozenset(self.pids) if self.comparable else None
        says = judge(line, Listener(self.gpus, pids, self.last))
        self.last = max(self.last, line.sequence)
        return says

    def _unseen(self, text: str) -> None:
        self.journal.tell(Event("kernel-log-unseen", f"{text}; Xid errors are not noticed" if self.log is None else text))

    def close(self) -> None:
        if self.log:
            self.log.close()
            self.log = None
