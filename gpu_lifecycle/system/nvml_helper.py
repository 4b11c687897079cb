"""The only program that touches NVML: a disposable process, JSON lines on standard input and output.

NVML calls can hang in the kernel, a handle that stays open blocks a GPU reset, and a loaded library goes stale after a
driver upgrade. So this runs apart, imports nothing else of the project, closes NVML when it has not been asked for a
while, and may be thrown away at any time. It never touches CUDA.

Request: ``{"id": N, "op": "view"|"health"|"release", "only": [INDEX, ...]|null}``.
Answer: ``{"id": N, "driver": ..., "gpus": [...], "error": ...}``.
Source of the calls: nvml.h; the binding is nvidia-ml-py, unmodified.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from collections.abc import Callable
from typing import Any, NoReturn

IDLE_SECONDS = 20.0
# Parts whose memory is the machine's own, so that NVML knows no total (the last word of their product names).
UNIFIED = ("GB10", "Orin", "Thor", "Xavier")


def load() -> Any:
    """Imports the binding from the folder named on the command line (saves the start-up cost of ``site``)."""
    if len(sys.argv) > 1:
        sys.path.append(sys.argv[1])
    import pynvml

    return pynvml


class Session:
    """One NVML session, opened at need and closed when idle."""

    def __init__(self) -> None:
        self.nvml = load()
        self.open = False
        self.known: dict[int, tuple[Any, dict[str, Any]]] = {}  # handle and identity by index, for one session
        # LibraryMismatchError is no NVMLError (nvidia-ml-py raises it for a symbol that an old library lacks).
        mismatch = getattr(self.nvml, "NVMLLibraryMismatchError", self.nvml.NVMLError_FunctionNotFound)
        self.errors = (self.nvml.NVMLError, mismatch)
        self.lacking = (self.nvml.NVMLError_FunctionNotFound, mismatch)  # this library does not have the function

    def explain(self, error: Exception) -> dict[str, str]:
        code = getattr(error, "value", None)
        return {"code": str(code) if code is not None else type(error).__name__, "text": str(error)}

    def close(self) -> None:
        self.known.clear()
        if self.open:
            self.open = False
            try:
                self.nvml.nvmlShutdown()
            except self.errors as error:
                print(f"nvmlShutdown: {error}", file=sys.stderr)

    def each(self, look: Callable[[int], list[dict[str, Any]]], only: list[int] | None) -> dict[str, Any]:
        """``only`` these indices: a GPU that is not asked for is not opened, and so can be reset by others."""
        try:
            if not self.open:
                self.nvml.nvmlInit()
                self.open = True
            driver = self.nvml.nvmlSystemGetDriverVersion()
            count = self.nvml.nvmlDeviceGetCount()
        except self.errors as error:
            self.close()
            return {"error": self.explain(error)}
        indices = [index for index in range(count) if only is None or index in only]
        return {"driver": driver, "gpus": [seen for index in indices for seen in look(index)]}

    # Whether a GPU is fit to work

    def health(self, index: int) -> list[dict[str, Any]]:
        """Each item by itself: its value, null where the GPU or the library does not know it, or its error."""
        seen: dict[str, Any] = {"index": index, "values": {}, "errors": {}}
        try:
            handle, identity = self.known.get(index) or self.identify(index, seen)
            seen["uuid"] = identity["uuid"]
        except self.errors as error:
            return [seen | {"error": self.explain(error)}]
        for name, ask in self.items().items():
            try:
                seen["values"][name] = ask(handle)
            except (self.nvml.NVMLError_NotSupported, *self.lacking):
                seen["values"][name] = None
            except self.errors as error:
                seen["errors"][name] = self.explain(error)
        return [seen]

    def items(self) -> dict[str, Callable[[Any], int | None]]:
        """The questions to one GPU."""
        nvml = self.nvml
        seen: list[list[int]] = []

        def links(handle: Any) -> list[int]:
            if not seen:
                seen.append(self.links(handle))
            return seen[0]

        return {
            "recovery": lambda handle: self.field(handle, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
            "ecc": lambda handle: int(nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0)),  # uncorrected, since the driver came up
            "remap_pending": lambda handle: int(nvml.nvmlDeviceGetRemappedRows(handle)[2]),
            "remap_failed": lambda handle: int(nvml.nvmlDeviceGetRemappedRows(handle)[3]),
            "retired_pending": lambda handle: int(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)),
            "fabric_state": lambda handle: int(self.fabric(handle).state),
            "fabric_status": lambda handle: int(self.fabric(handle).status),
            "fabric_mask": lambda handle: int(self.fabric(handle).healthMask),
            "links": lambda handle: len(links(handle)),
            "links_down": lambda handle: links(handle).count(0),
            "margin": lambda handle: int(nvml.nvmlDeviceGetMarginTemperature(handle)),
            "clocks": lambda handle: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            "width": lambda handle: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            "max_width": lambda handle: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
            "persistence": lambda handle: int(nvml.nvmlDeviceGetPersistenceMode(handle)),
            "compute": lambda handle: int(nvml.nvmlDeviceGetComputeMode(handle)),
        }

    def field(self, handle: Any, number: int) -> int | None:
        """A field has a return code of its own; the helper's callers see it as if the call had given it."""
        found = self.nvml.nvmlDeviceGetFieldValues(handle, [number])[0]
        if found.nvmlReturn != self.nvml.NVML_SUCCESS:
            raise self.nvml.NVMLError(found.nvmlReturn)
        return int(found.value.uiVal)

    def fabric(self, handle: Any) -> Any:
        info = self.nvml.c_nvmlGpuFabricInfo_v2_t()
        info.version = self.nvml.nvmlGpuFabricInfo_v2
        self.nvml.nvmlDeviceGetGpuFabricInfoV(handle, self.nvml.byref(info))
        return info

    def links(self, handle: Any) -> list[int]:
        """The state of each NVLink, 0: down. Raises what the first question raises where it has none."""
        states: list[int] = []
        for link in range(self.nvml.NVML_NVLINK_MAX_LINKS):
            try:
                states.append(int(self.nvml.nvmlDeviceGetNvLinkState(handle, link)))
            except (self.nvml.NVMLError_NotSupported, self.nvml.NVMLError_InvalidArgument):
                if not states:
                    raise
                break
        return states

    # What a GPU holds

    def view(self, index: int) -> list[dict[str, Any]]:
        """One GPU; behind it the instances that it is divided into (MIG), each with memory and processes of its own."""
        whole = self.gpu(index)
        if not whole.get("divided") or "error" in whole:
            return [whole]
        try:
            return [whole, *(self.instance(whole, handle) for handle in self.instances(self.known[index][0]))]
        except self.errors as error:
            return [whole | {"error": self.explain(error)}]

    def instances(self, handle: Any) -> list[Any]:
        found = []
        for place in range(self.nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                found.append(self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
            except self.nvml.NVMLError_NotFound:
                continue  # the places need not be used from the first one on
        return found

    def instance(self, whole: dict[str, Any], handle: Any) -> dict[str, Any]:
        seen = {key: whole[key] for key in ("index", "name", "pci", "minor")} | {"parent": whole["uuid"]}
        try:
            seen["uuid"] = self.nvml.nvmlDeviceGetUUID(handle)
            seen["instance"] = int(self.nvml.nvmlDeviceGetGpuInstanceId(handle))
            with contextlib.suppress(*self.errors):  # only which nodes it needs depends on it
                seen["compute_instance"] = int(self.nvml.nvmlDeviceGetComputeInstanceId(handle))
            own = self.own_memory(handle)
            seen["processes"] = self.processes(handle)
            seen.update(own)
        except self.errors as error:
            seen["error"] = self.explain(error)
        return seen

    def gpu(self, index: int) -> dict[str, Any]:
        """Of one that is divided only who it is: its sum is for the privileged, and says nothing of an instance."""
        seen: dict[str, Any] = {"index": index}
        try:
            handle, identity = self.known.get(index) or self.identify(index, seen)
            seen.update(identity)
            if seen["divided"]:
                return seen
            own = self.memory(handle, seen["name"])
            seen["processes"] = self.processes(handle)
            seen.update(own or shared_memory(seen["processes"]))
        except self.errors as error:
            self.known.pop(index, None)
            seen["error"] = self.explain(error)
        return seen

    def identify(self, index: int, seen: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """What does not change while a session is open; ``seen`` keeps what was found before an error."""
        handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
        seen["uuid"] = self.nvml.nvmlDeviceGetUUID(handle)
        seen["name"] = self.nvml.nvmlDeviceGetName(handle)
        seen["pci"] = _text(self.nvml.nvmlDeviceGetPciInfo(handle).busId)
        seen["minor"] = self.minor(handle)
        seen["divided"] = self.divided(handle)
        self.known[index] = (handle, dict(seen))
        return self.known[index]

    def divided(self, handle: Any) -> bool:
        """Whether MIG mode is on; it cannot change while a session is open, for that takes a reset."""
        try:
            return bool(self.nvml.nvmlDeviceGetMigMode(handle)[0])
        except (self.nvml.NVMLError_NotSupported, *self.lacking):
            return False

    def minor(self, handle: Any) -> int | None:
        try:
            return int(self.nvml.nvmlDeviceGetMinorNumber(handle))
        except self.errors:
            return None  # not on every platform; the node is then found by PCI address

    def memory(self, handle: Any, name: str) -> dict[str, int] | None:
        """None where the part shares the machine's memory and has none of its own."""
        try:
            return self.own_memory(handle)
        except self.nvml.NVMLError_NotSupported:
            if not any(part in name.split() for part in UNIFIED):
                raise
            return None

    def own_memory(self, handle: Any) -> dict[str, int]:
        """Total, and what is used above the driver's own share.

        ``total - free - reserved`` is right whether or not this driver counts the reserved part as used (drivers
        differ); the first version of the call knows no reserved part.
        """
        try:
            info = self.nvml.nvmlDeviceGetMemoryInfo(handle, version=self.nvml.nvmlMemory_v2)
            reserved = int(info.reserved)
        except self.lacking:
            info = self.nvml.nvmlDeviceGetMemoryInfo(handle)
            reserved = 0
        total, free = int(info.total), int(info.free)
        return {"total": total, "free": free, "used": max(0, total - free - reserved)}

    def processes(self, handle: Any) -> list[list[int | None]] | None:
        """Compute and graphics processes, each once, with the larger of its two figures. None: the driver lists none at all."""
        seen: dict[int, int | None] = {}
        compute = self._listed(self.nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if compute is None:
            return None
        for entry in [*compute, *(self._listed(self.nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or ())]:
            known = seen.get(entry.pid)
            memory = entry.usedGpuMemory
            seen[entry.pid] = memory if known is None else max(known, memory or 0)
        return [[pid, memory] for pid, memory in seen.items()]

    def _listed(self, call: Any, handle: Any) -> list[Any] | None:
        for _ in range(3):
            try:
                return list(call(handle))
            except self.nvml.NVMLError_InsufficientSize:
                continue  # processes came up between the two calls of the binding
            except self.nvml.NVMLError_NotSupported:
                return None
        return list(call(handle))


def shared_memory(processes: list[list[int | None]] | None) -> dict[str, int | None]:
    """The machine's memory (MemTotal of proc_meminfo(5)), and what these processes hold of it for the GPU."""
    with open("/proc/meminfo", encoding="ascii") as file:
        total = next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:")), None)
    known = [amount for _, amount in processes or () if amount is not None]
    return {"total": total, "used": sum(known) if processes is not None and len(known) == len(processes) else None}


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def answer(session: Session, line: str) -> dict[str, Any]:
    request = json.loads(line)
    if request.get("op") == "release":
        session.close()
        return {"id": request.get("id"), "released": True}
    look = session.health if request.get("op") == "health" else session.view
    return {"id": request.get("id"), **session.each(look, request.get("only"))}


def main() -> NoReturn:
    session = Session()
    while True:
        if not select.select([sys.stdin], [], [], IDLE_SECONDS)[0]:
            session.close()
            select.select([sys.stdin], [], [])
        line = sys.stdin.readline()
        if not line:
            session.close()
            os._exit(0)  # nothing is left to close, and whoever waits for our end need not wait for an interpreter's
        try:
            print(json.dumps(answer(session, line)), flush=True)
        except BrokenPipeError:
            os._exit(0)  # whoever asked has ended before the answer, for a reason of its own


if __name__ == "__main__":
    main()
