"""Whether a GPU is fit to work: named checks over what NVML says of it. Repaired is not broken; unknown is not failed.

Sources: nvml.h (nvmlDeviceGpuRecoveryAction, nvmlClocksEventReasons, nvmlGpuFabricState, nvmlComputeMode); NVIDIA's guides on
GPU memory error management (row remapping) and on driver persistence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_lifecycle.errors import Exit
from gpu_lifecycle.facts import Finding, GpuHealth, Level
from gpu_lifecycle.rules.quantity import show_count

Values = Mapping[str, int | None]
Said = tuple[str, str]  # what it is; what to do

LATER = "at the next chance: nvidia-smi --gpu-reset -i {uuid}"
RESET = "stop everything that uses it, then: nvidia-smi --gpu-reset -i {uuid}"
REBOOT = "reboot the machine"
ACTIONS = {  # nvmlDeviceGpuRecoveryAction_t; what it says is the driver's own judgement of all that it has seen
    1: ("the driver asks for a reset of the GPU", RESET),
    2: ("the driver asks for a reboot", REBOOT),
    3: ("the driver asks to drain its peer-to-peer traffic", "end what uses it together with other GPUs; see nvidia-smi -q"),
    4: ("the driver asks to drain and reset the GPU", RESET),
    5: ("the driver asks to recover its IMEX domain", "restart nvidia-imex on all nodes of the domain"),
    6: ("the driver asks for a reset of the bus", REBOOT),
    7: ("the driver asks for a reboot of the system", REBOOT),
}
SLOW = {0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
FABRIC_STARTING = (1, 2)  # not started, in progress
DEAD = frozenset(("15", "16"))  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
MODES = {1: "exclusive to a thread", 2: "prohibited", 3: "exclusive to one process"}


@dataclass(frozen=True, slots=True)
class Check:
    """One item: ``say`` gives the finding in words, None where all is well. ``status`` is a start's, where it is an error."""

    code: str
    level: Level
    say: Callable[[Values], Said | None]
    status: Exit = Exit.UNAVAILABLE


def _recovery(values: Values) -> Said | None:
    return ACTIONS.get(values.get("recovery") or 0)


def _refusing(*actions: int) -> Callable[[Values], Said | None]:
    return lambda values: _recovery(values) if values.get("recovery") in actions else None


def _unlisted(name: str, what: str, known: Collection[int]) -> Callable[[Values], Said | None]:
    """A value that this version does not know is not taken for a good one."""

    def say(values: Values) -> Said | None:
        value = values.get(name)
        return (
            None
            if value is None or value in known
            else (f"its {what} is {value}, which is not known here", "see nvidia-smi -q")
        )

    return say


def _above_zero(name: str, text: str, cure: str) -> Callable[[Values], Said | None]:
    def say(values: Values) -> Said | None:
        count = values.get(name)
        return (text.format(count=count), cure) if count else None

    return say


def _fabric(values: Values) -> Said | None:
    state, status = values.get("fabric_state"), values.get("fabric_status")
    if state in FABRIC_STARTING:
        return "its NVSwitch fabric is not up yet", "systemctl status nvidia-fabricmanager"
    if state == 3 and status:
        return f"it could not join its NVSwitch fabric (NVML {status})", "systemctl status nvidia-fabricmanager; see dmesg"
    return None


def _margin(values: Values) -> Said | None:
    margin = values.get("margin")
    hot = margin is not None and margin <= 0
    return (
        ("it is as hot as it may be, and slows itself down", "look at the cooling; nvidia-smi -q -d TEMPERATURE")
        if hot
        else None
    )


def _clocks(values: Values) -> Said | None:
    reasons = values.get("clocks") or 0
    names = [name for bit, name in SLOW.items() if reasons & bit]
    return (f"it is slowed down now: {', '.join(names)}", "nvidia-smi -q -d PERFORMANCE") if names else None


def _width(values: Values) -> Said | None:
    now, most = values.get("width"), values.get("max_width")
    if now and most and now < most:
        return f"its PCIe link runs with {now} of {most} lanes", "reseat it; see lspci -vv and dmesg"
    return None


def _compute(values: Values) -> Said | None:
    mode = values.get("compute")
    if mode == 2:
        return "its compute mode prohibits CUDA", "nvidia-smi -i {uuid} -c DEFAULT"
    return None


def _exclusive(values: Values) -> Said | None:
    mode = values.get("compute")
    if mode in (1, 3):
        return (
            f"its compute mode is {MODES[mode]}",
            "an engine with several processes on it fails: nvidia-smi -i {uuid} -c DEFAULT",
        )
    return None


def _persistence(values: Values) -> Said | None:
    if values.get("persistence") == 0:
        text = "persistence mode is off: each look at an idle GPU initialises it, which takes 1 to 3 s"
        return text, "systemctl enable --now nvidia-persistenced"
    return None


CHECKS: tuple[Check, ...] = (
    Check("gpu-recovery", Level.ERROR, _refusing(1, 2, 4, 6, 7)),
    Check("gpu-recovery", Level.WARN, _refusing(3, 5)),
    Check("gpu-recovery", Level.WARN, _unlisted("recovery", "recovery action", (0, *ACTIONS))),
    Check("row-remap-failed", Level.ERROR,
          _above_zero("remap_failed", "a broken row of its memory could not be replaced", "have the GPU replaced")),
    Check("row-remap-pending", Level.WARN,
          _above_zero("remap_pending", "a broken row of its memory is replaced at its next reset", LATER)),
    Check("page-retirement-pending", Level.WARN,
          _above_zero("retired_pending", "a broken page of its memory is retired at its next reset", LATER)),
    Check("ecc-uncorrected", Level.WARN,
          _above_zero("ecc", "{count} uncorrected memory errors since the driver is up", "if more come: nvidia-smi -q -d ECC")),
    Check("fabric", Level.ERROR, _fabric),
    Check("fabric", Level.WARN, _unlisted("fabric_state", "fabric state", (0, 1, 2, 3))),
    Check("nvlink-down", Level.WARN,
          _above_zero("links_down", "{count} of its NVLinks are down", "nvidia-smi nvlink --status -i {uuid}; see dmesg")),
    Check("too-hot", Level.ERROR, _margin, Exit.TEMPFAIL),
    Check("slowed-down", Level.WARN, _clocks),
    Check("pcie-width", Level.WARN, _width),
    Check("compute-mode", Level.ERROR, _compute),
    Check("compute-mode", Level.WARN, _exclusive),
    Check("compute-mode", Level.WARN, _unlisted("compute", "compute mode", (0, *MODES))),
    Check("persistence-off", Level.WARN, _persistence),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unfit:
    """One finding about one GPU, with the exit status of a start that it refuses."""

    finding: Finding
    uuid: str
    status: Exit


def judge(health: GpuHealth) -> tuple[Unfit, ...]:
    """All that is wrong with one GPU, errors first."""
    found = list(_gone(health))
    for check in CHECKS:
        said = check.say(health.values)
        if said:
            text = f"GPU {health.index}: {said[0]}"
            finding = Finding(check.level, check.code, text, said[1].format(uuid=health.uuid))
            found.append(Unfit(finding, health.uuid, check.status))
    return tuple(sorted(found, key=lambda item: item.finding.level is not Level.ERROR))


def _gone(health: GpuHealth) -> Iterator[Unfit]:
    """A GPU that is lost, or wants a reset, says so to every question: that is no item which could not be read."""
    errors = [*((health.error,) if health.error else ()), *(error for _, error in sorted(health.errors.items()))]
    error = next((error for error in errors if error.code in DEAD), health.error)
    if error:
        status = Exit.UNAVAILABLE if error.code in DEAD else Exit.TEMPFAIL
        yield Unfit(Finding(Level.ERROR, "gpu", f"GPU {health.index}: {error.text}", error.cure), health.uuid, status)


def absent(uuid: str) -> Unfit:
    """A claimed GPU that answers no more; the next start's claim says why."""
    text = f"GPU {uuid} does not answer any more, and did a moment ago"
    return Unfit(Finding(Level.ERROR, "gpu", text, "nvidia-smi -L; see dmesg"), uuid, Exit.TEMPFAIL)


def unread(health: GpuHealth) -> str:
    """Which items could not be read, and why the first of them; "" where all could, or are not known to this GPU."""
    if not health.errors:
        return ""
    name = min(health.errors)
    more = f" and {show_count(len(health.errors) - 1, 'more item')}" if len(health.errors) > 1 else ""
    return f"GPU {health.index}: cannot read {name}{more}: {health.errors[name].text}"


def fabric_starting(health: Sequence[GpuHealth]) -> tuple[int, ...]:
    """Indices of the GPUs whose NVSwitch fabric is still coming up: after a boot that may take a minute."""
    return tuple(item.index for item in health if item.values.get("fabric_state") in FABRIC_STARTING)


def state(health: GpuHealth | None) -> tuple[str, list[str]]:
    """For ``gpus``: "ok", "warn", "bad" or "unknown", with the reasons."""
    if health is None or health.error:
        return "unknown", [health.error.text] if health and health.error else []
    found = judge(health)
    reasons = [item.finding.message.partition(": ")[2] for item in found]
    unreadable = unread(health)
    if any(item.finding.level is Level.ERROR for item in found):
        return "bad", reasons
    if found or unreadable:
        return "warn", reasons + ([unreadable.partition(": ")[2]] if unreadable else [])
    return "ok", []
