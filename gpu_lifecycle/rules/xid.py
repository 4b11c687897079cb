"""Lines of the NVIDIA driver in the kernel log: what they say (``xid_line``), and what it means for a run (``judge``).

The forms are those of ``kernel_rc.c`` and ``osapi.c`` of NVIDIA's open kernel modules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from gpu_lifecycle.facts import KernelRecord, PciAddress, XidLine
from gpu_lifecycle.rules.claims import pci_key
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.quantity import show_count
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.rules.xid_codes import CODES, LOST, RECOVERY, UNKNOWN, UNKNOWN_RECOVERY, Act, Code

LINE_LIMIT = 300
NOT_ASKED: Mapping[str, int] = MappingProxyType({})

_FLAGS = re.ASCII | re.IGNORECASE | re.DOTALL
_PCI = r"(?:PCI:)?((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"NVRM: Xid \({_PCI}(?: GPU-I:([0-9a-f]{{1,4}}))?(?: GPU-CI:([0-9a-f]{{1,4}}))?\): (\d{{1,6}})(?![\d.])(.*)",
    _FLAGS,
)
_SXID = re.compile(rf"nvidia-nvswitch\d+: SXid \({_PCI}\): (\d{{1,6}})(?![\d.])(.*)", _FLAGS)
_LOST = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?{_PCI}(?![0-9a-f.]|:[0-9a-f]).*?\bfallen off the bus", _FLAGS)
_PROCESS = re.compile(r", pid='?(\d{1,10}|<unknown>)'?(?:, name=(.{0,64}?)(?:,|$))?", re.ASCII | re.DOTALL)
_CAUSE = re.compile(r"caused by previous Xid (\d{1,6})\b", re.ASCII)
_RECOVERY = re.compile(
    r"recovery action changed from 0x[0-9a-f]{1,8} \([^)]*\) to 0x([0-9a-f]{1,8})\b", re.ASCII | re.IGNORECASE
)


def xid_line(record: KernelRecord) -> XidLine | None:
    """What the driver says in this record, or None where it says nothing of a GPU's health. Never raises."""
    text = record.text.lstrip()
    shown = printable(text, LINE_LIMIT)
    if match := _XID.match(text):
        return _numbered(record.sequence, match, shown)
    if match := _SXID.match(text):
        address = pci_key(match[1])
        return XidLine(record.sequence, int(match[2]), address, shown, switch=True) if address else None
    if match := _LOST.match(text):
        address = pci_key(match[1])
        return XidLine(record.sequence, None, address, shown) if address else None
    return None


def _numbered(sequence: int, match: re.Match[str], shown: str) -> XidLine | None:
    address = pci_key(match[1])
    if address is None:
        return None
    code, rest = int(match[4]), match[5]
    process = _PROCESS.match(rest)
    cause, recovery = _CAUSE.search(rest), _RECOVERY.search(rest) if code == 154 else None
    return XidLine(
        sequence,
        code,
        address,
        shown,
        pid=int(process[1]) if process and process[1].isdecimal() else None,
        name=printable(process[2] or "", 64) if process else "",
        instance=_instance(match[2]),
        compute_instance=_instance(match[3]),
        cause=int(cause[1]) if cause else None,
        recovery=int(recovery[1], 16) if recovery else None,
    )


def _instance(digits: str | None) -> int | None:
    """A number of a MIG instance: the driver prints it as "%02u", so one with letters is none that we know."""
    return int(digits) if digits and digits.isdecimal() else None


@dataclass(frozen=True, slots=True)
class ClaimedGpu:
    """A GPU of the run. ``instance``: only this GPU instance of it is claimed (MIG)."""

    uuid: str
    label: str
    pci: PciAddress
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    """For whom the kernel log is read.

    ``pids``: all that the run's processes have been, as the host numbers them; None where we do not see the host's
    numbers (a PID namespace of a container), so that only the GPU can be compared. ``after``: the sequence number of the
    last record that is older than the run, or judged already.
    """

    gpus: Sequence[ClaimedGpu]
    pids: frozenset[int] | None
    after: int = -1


@dataclass(frozen=True, slots=True)
class KernelSays:
    """What one line means for the run: what follows, the reason in one line, and the evidence for the journal."""

    act: Act
    text: str
    events: tuple[Event, ...]


def asks(line: XidLine, listener: Listener) -> bool:
    """Whether the recovery action of the GPU that a line names may change what the line means for the run."""
    gpu = _gpu(line, listener)
    return gpu is not None and line.sequence > listener.after and line.recovery is None and not _code(line).lost


def judge(line: XidLine, listener: Listener, actions: Mapping[str, int] = NOT_ASKED) -> KernelSays | None:
    """What a line means; None: nothing to this run (an old line, another GPU).

    ``actions`` are the recovery actions of the GPUs that are known, by UUID, read after the line. That of its GPU is the truth
    and the Xid its explanation, but for a GPU that is lost, which answers nothing that could be believed.
    """
    if line.sequence <= listener.after:
        return None
    if line.switch:
        return _switch(line)
    gpu = _gpu(line, listener)
    if gpu is None:
        return None
    code = _code(line)
    action = line.recovery if line.recovery is not None else actions.get(gpu.uuid)
    act = Act.REFUSE if code.lost else _act(code, action)
    if act is Act.RESTART and not _ours(line, gpu, listener):
        act = Act.LOG
    return _say(line, gpu, code, act, action)


def _gpu(line: XidLine, listener: Listener) -> ClaimedGpu | None:
    return None if line.switch else next((gpu for gpu in listener.gpus if gpu.pci == line.pci), None)


def _code(line: XidLine) -> Code:
    return LOST if line.code is None else CODES.get(line.code, UNKNOWN)


def few_of_each(said: Sequence[KernelSays], most: int = 8) -> list[KernelSays]:
    """All but those that only repeat: a driver in trouble may say one thing a thousand times a second.

    Of what has one text and one consequence the first ``most`` stay, the last of them with the number of those that follow.
    """
    count = Counter((says.act, says.text) for says in said)
    kept: Counter[tuple[Act, str]] = Counter()
    few: list[KernelSays] = []
    for says in said:
        key = (says.act, says.text)
        kept[key] += 1
        more = count[key] - most
        if kept[key] == most and more > 0:
            first = says.events[0]
            told = replace(first, message=f"{first.message} [and {show_count(more, 'more line')} like it]")
            few.append(replace(says, events=(told, *says.events[1:])))
        elif kept[key] <= most:
            few.append(says)
    return few


def _act(code: Code, action: int | None) -> Act:
    if action is None:
        return code.act
    asked = RECOVERY.get(action, UNKNOWN_RECOVERY).act
    if asked is Act.REFUSE:
        return Act.REFUSE
    known_good = action == 0 and code.act is Act.REFUSE  # the driver asks for nothing: a new context will do
    return Act.RESTART if known_good else code.act


def _ours(line: XidLine, gpu: ClaimedGpu, listener: Listener) -> bool:
    """Whether the process that the line names is one of this run; a line that names none counts for the GPU's claimer."""
    if None not in (line.instance, gpu.instance) and line.instance != gpu.instance:
        return False
    return line.pid is None or listener.pids is None or line.pid in listener.pids


def _switch(line: XidLine) -> KernelSays:
    """An NVSwitch is no claimed GPU: what it breaks is seen on the GPUs."""
    text = f"NVSwitch {show_pci(line.pci)}: SXid {line.code}"
    fields = {"GPU_LIFECYCLE_SXID": str(line.code)}
    return KernelSays(Act.LOG, text, (Event("xid-seen", f"{text}; the kernel's line: {line.text}", fields),))


def _say(line: XidLine, gpu: ClaimedGpu, code: Code, act: Act, action: int | None) -> KernelSays:
    fields = {"GPU_LIFECYCLE_GPU": gpu.uuid} | ({} if line.code is None else {"GPU_LIFECYCLE_XID": str(line.code)})
    what = code.words if line.code is None else f"Xid {line.code}, {code.words}"
    cause = f", caused by Xid {line.cause}" if line.cause is not None else ""
    text = f"GPU {gpu.label} ({gpu.uuid}): {what}{cause}{_asked(action)}"
    seen = f"{text} [{act}]; the kernel's line: {line.text}"
    cure = _cure(gpu, code, act, action)
    if act is not Act.REFUSE:
        return KernelSays(act, text, (Event("xid-seen", f"{seen}; what to do: {cure}" if cure else seen, fields),))
    text = f"{text}; on the host: {cure}"
    word = "gpu-lost" if code.lost else "gpu-unfit"
    return KernelSays(act, text, (Event("xid-seen", seen, fields), Event(word, text, fields)))


def _asked(action: int | None) -> str:
    return "" if action is None else f"; recovery action {action} ({RECOVERY.get(action, UNKNOWN_RECOVERY).words})"


def _cure(gpu: ClaimedGpu, code: Code, act: Act, action: int | None) -> str:
    """Of the recovery action where that decided, else of the code."""
    if act is not Act.REFUSE and code.act is Act.REFUSE:
        return "nothing: the driver asks for nothing"
    asked = "" if action is None or code.lost else RECOVERY.get(action, UNKNOWN_RECOVERY).cure
    cure = asked if asked and (act is Act.REFUSE or not code.cure) else code.cure
    return cure.replace("@PCI@", show_pci(gpu.pci))


def show_pci(address: PciAddress) -> str:
    """As lspci and nvidia-smi take it: ``0000:18:00.0``."""
    domain, bus, device = address
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"
