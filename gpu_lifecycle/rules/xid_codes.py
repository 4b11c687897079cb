"""Every Xid that NVIDIA's catalog gives an immediate action for: what it means for a run, in words, and the cure.

Source: NVIDIA's "XID Errors" catalog (its column "Immediate Action") and ``nverror.h`` of the open kernel modules. A code
that is not here is logged and never acted upon. One entry here is all that a new code takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Act(StrEnum):
    """What an Xid of a claimed GPU leads to."""

    LOG = "log"  # an event, nothing else
    RESTART = "restart"  # the CUDA context is lost: the run ends, the unit restarts
    REFUSE = "refuse"  # a person or the host has to act: the run ends, and the unit is not restarted


@dataclass(frozen=True, slots=True)
class Code:
    """One Xid. ``lost``: the GPU itself is gone, whatever else is said of it."""

    act: Act
    words: str
    cure: str = ""
    lost: bool = False


RESET = "stop what uses the GPU and reset it: nvidia-smi --gpu-reset -i @PCI@ (with NVSwitch, all GPUs at once); or reboot"
REBOOT = "power-cycle the machine (a reboot alone may not bring it back); if it comes again: seating, power, riser, then RMA"
APPLICATION = "nothing, if it was once; if it repeats with one model or version, report it to the engine's authors"
MEMORY = "see nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT; a pending remap needs a reset, a failed one an RMA"
LINK = "see nvidia-smi nvlink -e -i @PCI@ and the log of nvidia-fabricmanager; if links stay down, reset the GPU"

LOST = Code(Act.REFUSE, "the GPU has fallen off the bus", REBOOT, lost=True)


def _same(act: Act, cure: str, words: dict[int, str]) -> dict[int, Code]:
    return {code: Code(act, text, cure) for code, text in words.items()}


_ENGINES = {
    60: "security engine", 82: "JPEG engine 0", 86: "optical flow engine",
    39: "copy engine 0", 40: "copy engine 1", 41: "copy engine 2", 70: "copy engine 3", 71: "copy engine 4",
    72: "copy engine 5", 75: "copy engine 6", 76: "copy engine 7", 77: "copy engine 8", 85: "copy engine 9",
    68: "video decoder 0", 83: "video decoder 1", 84: "video decoder 2", 88: "video decoder 3", 89: "video decoder 4",
    96: "video decoder 5", 97: "video decoder 6", 98: "video decoder 7",
    **{99 + place: f"JPEG engine {1 + place}" for place in range(7)},
    **{126 + place: f"copy engine {10 + place}" for place in range(10)},
}  # fmt: skip

CODES: dict[int, Code] = {
    **_same(Act.RESTART, APPLICATION, {code: f"error of {engine}" for code, engine in _ENGINES.items()}),
    **_same(Act.RESTART, APPLICATION, {
        8: "the GPU stopped processing a channel",
        11: "invalid or corrupted push buffer",
        13: "graphics engine exception: an illegal access or instruction of a kernel",
        25: "invalid or illegal push buffer",
        31: "GPU memory page fault: a kernel touched an invalid address",
        32: "invalid or corrupted push buffer (PBDMA)",
        # The catalog says "log" for the next two, and "see the other Xid": the context of the process that they name is gone.
        43: "the GPU stopped processing: a channel of the process was reset",
        45: "channels of the process were torn down after an earlier error",
        69: "graphics engine class error",
        80: "corrupted data sent to the GPU",
        139: "error of optical flow engine 1",
    }),
    94: Code(Act.RESTART, "contained memory error: only the process that used this memory is lost", MEMORY),
    **_same(Act.REFUSE, RESET, {
        46: "the GPU stopped processing (timeout)",
        62: "the power management controller has halted",
        95: "uncontained memory error: every process on the GPU is affected",
        109: "context switch timeout",
        110: "security fault",
        119: "the GPU's system processor (GSP) does not answer",
        120: "error of the GPU's system processor (GSP)",
        136: "training of an NVLink failed",
        140: "unrecovered ECC error",
        143: "the GPU could not be initialised",
        155: "NVLink error found by software",
        156: "a resource of the GPU was retired, effective after a reset",
        158: "fatal timeout of the GPU",
    }),
    48: Code(Act.REFUSE, "double-bit ECC error: data in GPU memory was lost", f"{RESET}; {MEMORY}"),
    64: Code(Act.REFUSE, "a memory page or row could not be retired or remapped", f"{RESET}; {MEMORY}"),
    79: LOST,
    151: Code(Act.REFUSE, "key rotation failed (confidential computing)", "restart the virtual machine"),
    **_same(Act.LOG, "", {
        14: "a test message of the driver",
        37: "driver firmware error",
        38: "driver firmware error",
        44: "graphics engine fault during a context switch",
        66: "illegal access by the driver",
        67: "illegal access by the driver",
        106: "a test message of the driver",
        107: "a test message of the driver",
        137: "NVLink access without privilege",
        141: "fast path error of a channel",
        152: "DLA memory management error",
        153: "DLA timeout",
        157: "a resource could not be retired",
        160: "a channel was retired",
        161: "a channel could not be retired",
    }),
    54: Code(Act.LOG, "auxiliary power is not connected", "connect the GPU's power cable"),
    63: Code(Act.LOG, "a memory page or row was retired or remapped", MEMORY),
    74: Code(Act.LOG, "NVLink error", LINK),
    78: Code(Act.LOG, "a vGPU could not start", "check that host and guest driver fit"),
    92: Code(Act.LOG, "many single-bit ECC errors, each corrected", MEMORY),
    93: Code(Act.LOG, "the InfoROM has reached its limit of writes"),
    121: Code(Act.LOG, "corrected error of the link between CPU and GPU"),
    **_same(Act.LOG, LINK, {code: f"NVLink error (unit {unit})" for code, unit in {
        144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE",
    }.items()}),
    154: Code(Act.LOG, "the recovery action of the GPU has changed"),
    159: Code(Act.LOG, "error on the coherent link (CHI)", "see the lines of nvidia-uvm next to this one"),
    171: Code(Act.LOG, "detail of Xid 48: in DRAM", MEMORY),
    172: Code(Act.LOG, "detail of Xid 48: in SRAM", MEMORY),
}  # fmt: skip

UNKNOWN = Code(Act.LOG, "a code that is not in the table", "look it up in NVIDIA's list of Xid errors")


@dataclass(frozen=True, slots=True)
class Recovery:
    """One value of the recovery action field (nvml.h, nvmlDeviceGpuRecoveryAction_t); the driver prints ``words``."""

    words: str
    act: Act
    cure: str = ""


# 3 and 5 ask for links between GPUs to be left alone, and say nothing of the GPU's own work: readiness and health judge that.
RECOVERY: dict[int, Recovery] = {
    0: Recovery("None", Act.LOG),
    1: Recovery("GPU Reset Required", Act.REFUSE, RESET),
    2: Recovery("Node Reboot Required", Act.REFUSE, "reboot the machine"),
    3: Recovery("Drain P2P", Act.LOG, "stop what uses peer-to-peer access; the action then changes by itself"),
    4: Recovery("Drain and Reset", Act.REFUSE, RESET),
    5: Recovery("Recover IMEX Domain", Act.LOG, "see nvidia-imex-ctl -N and the log of nvidia-imex"),
    6: Recovery("Bus Reset Required", Act.REFUSE, "reset the bus of the GPU, or reboot the machine"),
    7: Recovery("System Reboot Required", Act.REFUSE, "reboot the machine"),
}
UNKNOWN_RECOVERY = Recovery("an action that is not in the table", Act.LOG, "see nvidia-smi -q, GPU Recovery Action")
