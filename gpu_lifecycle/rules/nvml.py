"""What NVML's return codes mean for us (nvmlReturn_t of nvml.h), and how its answers become facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_lifecycle.facts import ErrorClass, Gpu, GpuError, GpuHealth, GpuProcess, GpuView
from gpu_lifecycle.rules.text import printable

_P, _R, _D, _H = ErrorClass.PERMANENT, ErrorClass.RETRY, ErrorClass.DEGRADED, ErrorClass.HOST_ACTION

# code: (class, what it means, what to do)
CODES: dict[str, tuple[ErrorClass, str, str]] = {
    "1": (_R, "NVML is not initialised", "try again"),
    "2": (_P, "NVML refused an argument", "report this as a defect"),
    "3": (_D, "not supported on this GPU", ""),
    "4": (_P, "no permission to use the GPU", "check the mode of /dev/nvidia* and the device rules of the container"),
    "5": (_R, "NVML is already initialised", "try again"),
    "6": (_R, "the GPU was not found", "compare with lspci -d 10de:"),
    "7": (_R, "a list grew while it was read", "try again"),
    "8": (_H, "a power cable is missing", "check the power cables of the GPU"),
    "9": (_H, "the NVIDIA driver is not loaded", "load it: modprobe nvidia; in a container, load it on the host"),
    "10": (_R, "the driver timed out", "try again; if it stays: nvidia-smi -q, dmesg"),
    "11": (_H, "the GPU has an interrupt problem", "see dmesg"),
    "12": (_H, "the NVML library is missing", "install the driver's user libraries (libnvidia-ml.so.1)"),
    "13": (_D, "the NVML library lacks a function", "update the driver's user libraries"),
    "14": (_H, "the GPU's information ROM is corrupt", "have the GPU replaced: nvidia-smi -q shows which"),
    "15": (_H, "the GPU has fallen off the bus", "reboot the machine; see dmesg for Xid 79"),
    "16": (_H, "the GPU needs a reset", "stop everything that uses it, then: nvidia-smi --gpu-reset"),
    "17": (_R, "the operating system refused", "a device rule may hide the GPU from this cgroup"),
    "18": (_H, "driver and NVML library differ in version", "reload the driver, or reboot, after the upgrade"),
    "19": (_R, "in use", "try again"),
    "20": (_R, "the driver is out of memory", "try again"),
    "21": (_D, "there is no such data yet", "try again later"),
    "22": (_D, "ECC is not supported on this virtual GPU", ""),
    "23": (_R, "the driver has not enough resources", "try again"),
    "24": (_D, "this frequency is not supported", ""),
    "25": (_D, "driver and library disagree on a version of this question", "update the driver's user libraries"),
    "26": (_P, "a feature is deprecated and gone from this driver", "update gpu-lifecycle"),
    "27": (_R, "not ready", "try again"),
    "28": (_R, "no GPU was found", "compare with lspci -d 10de:"),
    "29": (_P, "the GPU is in an invalid state for this", "see nvidia-smi -q"),
    "30": (_D, "this kind of reset is not supported", ""),
    "999": (_R, "unknown error of the driver", "in a container: the device rules may have been rewritten; restart it"),
    # nvidia-ml-py's own, which is no NVMLError: the library lacks a symbol that this version of the binding needs
    "NVMLLibraryMismatchError": (_H, "the NVML library is too old", "update the driver's user libraries"),
    "hung": (_R, "NVML does not answer", "see dmesg; a process in state D may hold the driver's lock"),
    "released": (_D, "NVML was let go of on request", "it is opened again by itself"),
    "helper-died": (_R, "the NVML helper ended without an answer", "see the lines before this one"),
    "garbled": (_R, "the NVML helper's answer cannot be read", "report this as a defect"),
    "no-total": (_H, "the GPU reports no memory at all", "see dmesg; reset it or reboot"),
}
MISMATCH = "18"  # NVML_ERROR_LIB_RM_VERSION_MISMATCH


def classify(code: str, text: str = "") -> GpuError:
    """The class of a code. One that is not in the table may pass, and is never taken for success or for zero."""
    kind, meaning, cure = CODES.get(code, (ErrorClass.RETRY, "an error that this version does not know", "see dmesg"))
    detail = printable(text, 120)
    return GpuError(code, f"{meaning} (NVML {code}{': ' + detail if detail else ''})", kind, cure)


def with_versions(error: GpuError, kernel: str, library: str) -> GpuError:
    """An error that says which two versions do not go together; as it is where neither is known."""
    parts = [f"the kernel runs {printable(kernel, 40)}"] if kernel else []
    parts += [f"the library is {printable(library, 60)}"] if re.search(r"\.so\.\d+\.", library) else []
    return replace(error, text=f"{error.text}; {', '.join(parts)}") if error.code == MISMATCH and parts else error


def view_from(answer: Any, at: float) -> GpuView:
    """Turns a helper's answer into facts. Anything that is not of the expected shape is an error, not a number."""
    error = _error(answer)
    if error:
        return GpuView((), error=error, at=at)
    gpus = answer.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(seen, Mapping) for seen in gpus):
        return GpuView((), error=classify("garbled"), at=at)
    return GpuView(tuple(_gpu(seen) for seen in gpus), driver=printable(str(answer.get("driver", "")), 40), at=at)


def _error(seen: Any) -> GpuError | None:
    """The error that an answer, or one GPU of it, holds."""
    if not isinstance(seen, Mapping):
        return classify("garbled")
    error = seen.get("error")
    if isinstance(error, Mapping):
        return classify(str(error.get("code")), str(error.get("text", "")))
    return None if error is None else classify("garbled")


def _gpu(seen: Mapping[str, Any]) -> Gpu:
    found, index = _error(seen), _number(seen.get("index"))
    total, used = _number(seen.get("total")), _number(seen.get("used"))
    listed = seen.get("processes")
    processes = _processes(listed)
    if found is None and (index is None or (processes is None and listed is not None)):
        found, total, used = classify("garbled"), None, None
    divided = seen.get("divided") is True
    if found is None and not total and not divided:
        found, total, used = classify("no-total"), None, None
    return Gpu(
        uuid=printable(str(seen.get("uuid") or f"unknown-{seen.get('index')}"), 96),
        index=-1 if index is None else index,
        minor=_number(seen.get("minor")),
        pci=printable(str(seen.get("pci", "")), 32),
        name=printable(str(seen.get("name", "")), 96),
        total=total,
        used=used,
        processes=processes,
        error=found,
        free=None if total is None else _number(seen.get("free")),
        divided=divided,
        parent=printable(str(seen.get("parent", "")), 96),
        instance=_number(seen.get("instance")),
        compute_instance=_number(seen.get("compute_instance")),
    )


def _processes(listed: Any) -> tuple[GpuProcess, ...] | None:
    """None for what is no list of pairs that begin with a pid."""
    if not isinstance(listed, list):
        return None
    pairs = [pair for pair in listed if isinstance(pair, list) and len(pair) == 2 and _number(pair[0]) is not None]
    return tuple(GpuProcess(pid, _number(memory)) for pid, memory in pairs) if len(pairs) == len(listed) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def health_from(answer: Any) -> tuple[GpuHealth, ...] | GpuError:
    """Turns a helper's answer on fitness into facts; an item that is no number is an error of that item."""
    error = _error(answer)
    if error:
        return error
    gpus = answer.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(seen, Mapping) for seen in gpus):
        return classify("garbled")
    return tuple(_health(seen) for seen in gpus)


def _health(seen: Mapping[str, Any]) -> GpuHealth:
    index = _number(seen.get("index"))
    values, errors = seen.get("values"), seen.get("errors")
    if index is None or not isinstance(values, Mapping) or not isinstance(errors, Mapping):
        return GpuHealth(f"unknown-{seen.get('index')}", -1, error=classify("garbled"))
    wrong = {str(name) for name, value in values.items() if value is not None and not _whole(value)}
    failed = {str(name): found for name, item in errors.items() if (found := _error({"error": item}))}
    return GpuHealth(
        uuid=printable(str(seen.get("uuid") or f"unknown-{index}"), 96),
        index=index,
        values={str(name): value for name, value in values.items() if str(name) not in wrong},
        errors=failed | {name: classify("garbled") for name in wrong},
        error=_error(seen),
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
