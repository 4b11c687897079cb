"""The causes of a run's end that are not an engine's own words: what happened, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

_STACKS = "the stacks and the last lines in the incident's folder show where its processes stood"

TEXTS: Mapping[str, tuple[str, str]] = {
    "stopped": ("stopped", "nothing is to be done"),
    "memory-held": (
        "the engine has ended, and GPU memory is still held",
        "gpu-lifecycle holders shows by whom; the next start looks again",
    ),
    "refused-69": (
        "the start was refused: a GPU or the driver needs a person",
        "do on the host what the message says, then start the unit",
    ),
    "refused-75": (
        "the start was refused for now: something is in the way",
        "clear what the message names; systemd tries again by itself, and at once with: systemctl restart UNIT",
    ),
    "refused-77": ("the start was refused: something is not permitted", "grant what the message names, then start the unit"),
    "refused-78": (
        "the start was refused: config, command line, model or set-up is wrong",
        "mend what the message names (gpu-lifecycle check UNIT shows all of it), then start the unit",
    ),
    "refused": ("the start was refused", "mend what the message names, then start the unit"),
    "gpu-action": (
        "a GPU is broken, or lost, until the host acts",
        "do on the host what the message says; then gpu-lifecycle check UNIT, and start it",
    ),
    "gpu-error": (
        "the driver has reported an error of a GPU that ends whatever runs on it (Xid)",
        "if it comes back: Xid 13 and 31 point to a kernel of the engine, others to the GPU; docs and dmesg explain the number",
    ),
    "host-oom": (
        "the kernel has ended processes of the unit because the machine's memory ran out",
        "free -h and MemoryMax= of the unit; a smaller host cache, fewer processes beside it, more memory or swap",
    ),
    "stalled": (
        "the engine had work in hand and made no progress",
        f"{_STACKS}; a longer watch.busy_grace if it was only slow",
    ),
    "unhealthy": (
        "the engine did not pass its health checks any more",
        f"{_STACKS}; the message names the condition that failed; watch.timeout and watch.failures if it was only slow",
    ),
    "worker-lost": (
        "a worker of the engine has ended while the rest went on",
        "its last lines in output.txt of the incident's folder, and dmesg, say why",
    ),
    "load-stalled": (
        "the load made no progress for ready.stall",
        f"{_STACKS}; a slow disk or network: raise ready.stall; a lock of a dead build: the journal names it",
    ),
    "load-too-long": ("the load took longer than ready.ceiling", "if it was only slow, raise ready.ceiling"),
    "engine-quit": (
        "the engine has ended by itself, with status 0, and nobody had asked it to",
        "vLLM does this when a worker dies: read the last lines in output.txt of the incident's folder",
    ),
    "engine-killed": (
        "the engine was killed (SIGKILL) and has not said why",
        "SGLang does this to itself after a failure: read output.txt of the incident's folder; else look for who sends SIGKILL",
    ),
    "engine-crashed": (
        "the engine was ended by a signal",
        "11 and 6 are crashes of native code, 7 mostly a full /dev/shm or a file that was cut while mapped, 15 somebody's kill",
    ),
    "defect": ("gpu-lifecycle itself has failed", "report it with the traceback in the journal; the unit restarts"),
    "hook-failed": ("a hook of the unit has failed", "journalctl -u UNIT shows its words"),
    "daemon-killed": (
        "the daemon was killed, and the engine with it",
        "journalctl -k says whether it was the kernel, for memory; else somebody has sent a signal",
    ),
    "daemon-hung": (
        "the daemon did not feed systemd's watchdog in time: engine or daemon hung, or NVML saw no memory",
        "the journal's lines before it say what it was waiting for; a frozen machine does this, too",
    ),
    "out-of-time": (
        "systemd's own time was up: TimeoutStartSec=, TimeoutStopSec= or RuntimeMaxSec= of the unit",
        "what it was busy with stands in the evidence; if that takes so long here, raise the time in a drop-in",
    ),
    "not-set-up": (
        "systemd could not set the unit up, or lost track of it",
        "systemctl status UNIT and journalctl -u UNIT say why",
    ),
    "vanished": (
        "the machine went down while it ran",
        "a power cut, a reset or a crash: journalctl -b -1 -e shows the last lines before it",
    ),
    "unwritten": ("it has ended, and its end could not be written", "journalctl -u UNIT says why (history-not-kept)"),
    "unknown": ("it is not known why", "the most telling lines are below; output.txt of the incident's folder holds more"),
}
