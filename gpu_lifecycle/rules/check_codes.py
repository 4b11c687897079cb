"""What the codes of ``check``'s own findings say: on the GPUs, on who is in the way, on the set-up around the config."""

from __future__ import annotations

from collections.abc import Mapping

SET_UP: Mapping[str, str] = {
    "config": "the config is missing, or cannot be used as it stands",
    "no-systemd": "systemd does not answer: what it has loaded is not judged",
    "not-installed": "systemd knows no unit of this name",
    "unit-broken": "systemd could not load the unit",
    "command-missing": "the engine's program is not there",
    "command-not-executable": "the engine's program is no file, or one that nobody may execute",
    "command-unseen": "the engine's program cannot be looked at as this user, so that nothing is known of it",
    "command-silent": "the disk of the engine's program does not answer: a start would be refused with 75",
    "no-process": "the kernel gives no process for a look: a start would be refused with 75",
    "key-missing": "the file of the engine's API key is not there",
    "key-silent": "the disk of the engine's API key does not answer: a start would be refused with 75",
    "shm-large": "the unit's own /dev/shm may take so much that the machine runs out of memory",
    "shm-shared": "the unit uses the machine's /dev/shm, though the config gives it one of its own",
    "shm-stale": "the unit's own /dev/shm has another size than the config says",
}
GPUS: Mapping[str, str] = {
    "gpus": "the claimed GPUs, or why they cannot be claimed",
    "gpu": "a claimed GPU cannot be used: lost, wanting a reset, or hidden by an error of the driver",
    "node": "a device node that the engine needs is missing",
    "wrong-node": "a device node of the driver's name is something else",
    "fitness-unknown": "whether a GPU is fit could not be found out in full",
    "sight": "not all processes can be seen: a start would be refused with 75",
    "conflict": "a process that is not to be ended is in the way: a start would be refused with 75",
    "would-stop": "a process in the way belongs to a unit that systemd stops first (Conflicts=)",
    "would-reap": "a leftover process that a start would end, and by which rule",
    "memory-unexplained": "memory on a claimed GPU that no visible process explains: a start would wait for it in vain",
}
FITNESS: Mapping[str, str] = {
    "gpu-recovery": "the driver asks for a reset, a reboot or a drain, or for something that is not known here",
    "row-remap-failed": "a broken row of its memory could not be replaced",
    "row-remap-pending": "a broken row of its memory is replaced at its next reset",
    "page-retirement-pending": "a broken page of its memory is retired at its next reset",
    "ecc-uncorrected": "it has had memory errors that could not be corrected",
    "fabric": "it is not (yet) part of its NVLink fabric, or in a state that is not known here",
    "fabric-health": "its fabric works, and not in full",
    "nvlink-down": "NVLinks of it are down",
    "too-hot": "it is at its limit of temperature: a start is refused with 75",
    "slowed-down": "its clocks are held down by heat or power",
    "pcie-width": "it uses fewer PCIe lanes than it has",
    "compute-mode": "it lets one process use it, or none",
    "persistence-off": "its driver state is torn down whenever nobody uses it",
}
