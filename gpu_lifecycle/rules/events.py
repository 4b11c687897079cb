"""Every event that the project may log: its word, its fixed id, its priority, and the text that explains it.

One entry here is all that a new event takes; the catalog file (``journalctl -x``) is made from this table. Ids are fixed
for ever (sd_journal_print(3), "MESSAGE_ID"): never change one, never use one twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_lifecycle.rules.text import printable

ERR, WARNING, NOTICE, INFO = 3, 4, 5, 6  # syslog(3)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of event. ``text`` says what happened, why, and what to do; ``@FIELD@`` is filled in by journalctl."""

    id: str
    priority: int
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """One event: ``word`` is a key of EVENTS; ``fields`` are journal fields without the common ones."""

    word: str
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)


EVENTS: dict[str, Kind] = {
    "sweep-started": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b01", INFO, "A sweep of the claimed GPUs has begun",
        "All processes that hold a claimed GPU are found, judged by named rules, and reaped only where a rule proves that\n"
        "nobody answers for them. Nothing is to be done. To see what it would do: gpu-lifecycle sweep @GPU_LIFECYCLE_UNIT@ --dry-run",
    ),
    "holder-spared": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b02", INFO, "Process @GPU_LIFECYCLE_PID@ holds a GPU and is left alone",
        "Rule @GPU_LIFECYCLE_RULE@ says that somebody answers for this process, or that it must live.\n"
        "Nothing is to be done. All holders: gpu-lifecycle holders @GPU_LIFECYCLE_UNIT@",
    ),
    "holder-conflict": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b03", WARNING, "Process @GPU_LIFECYCLE_PID@ stands in the way and may not be ended",
        "It holds memory of a claimed GPU, and rule @GPU_LIFECYCLE_RULE@ says that it is not ours to end. The start is refused\n"
        "with status 75 and tried again by systemd.\n"
        "What to do: stop it through its owner (the message names the command), or take its GPU out of gpus.claim.",
    ),
    "holder-reaped": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b04", NOTICE, "Process @GPU_LIFECYCLE_PID@ was reaped",
        "Rule @GPU_LIFECYCLE_RULE@ proved that no live unit, session or container answers for it. It was held by a pidfd,\n"
        "identified again, and ended. Nothing is to be done.",
    ),
    "holder-survived": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b05", ERR, "Process @GPU_LIFECYCLE_PID@ cannot be ended",
        "It got SIGKILL and still exists. The message says what its threads do, why that does not end, and what frees it.\n"
        "What to do: as the message says; then the next start works by itself. See also dmesg and /proc/@GPU_LIFECYCLE_PID@/stack.",
    ),
    "memory-released": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b06", INFO, "The memory of the claimed GPUs is proven free",
        "Every claimed GPU is below sweep.free_below and steady. Nothing is to be done.",
    ),
    "memory-held": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b07", ERR, "GPU memory is still held",
        "The deadline sweep.memory_deadline has passed and memory is held. If no holder is named, it is held by something that\n"
        "cannot be seen from here: another container, the host, or the driver itself still tearing down.\n"
        "What to do: on the host, run nvidia-smi and gpu-lifecycle holders; a large pinned host pool may need minutes.",
    ),
    "sweep-finished": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b08", INFO, "The sweep has ended",
        "The message says how it ended and how long it took. Details are in the events before this one.",
    ),
    "sight-partial": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b09", WARNING, "Not everything could be seen",
        "On partial sight nothing is reaped but this unit's own cgroup, and no GPU is called free.\n"
        "What to do: run as root; lift hidepid= of /proc for root; see the message for what exactly is hidden.",
    ),
    "start-allowed": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b0a", INFO, "The GPUs are ready for a start",
        "All claimed GPUs are there and free. The engine is started next.",
    ),
    "start-refused": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b0b", ERR, "The start of @GPU_LIFECYCLE_UNIT@ is refused",
        "Status 75 passes by itself and is tried again by systemd. Status 69 (a GPU or the driver needs a person), 77 (not\n"
        "permitted) and 78 (config, model or host set-up is wrong) stay failed until somebody mends the cause.\n"
        "What to do: the message names the cure. Then: systemctl start @GPU_LIFECYCLE_UNIT@",
    ),
    "engine-started": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b0c", INFO, "The engine was started",
        "The unit becomes active when memory, socket and health endpoint all check out.\n"
        "To follow it: gpu-lifecycle status @GPU_LIFECYCLE_UNIT@",
    ),
    "memory-unexplained": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2c01", WARNING, "Memory of a claimed GPU is held by nobody that can be seen",
        "NVML counts memory that no visible holder accounts for: it is held from the host or another container, by a process\n"
        "that is being torn down, or by the driver. It is waited for until sweep.memory_deadline; nobody is killed for it.\n"
        "What to do: as the message says. Each GPU: gpu-lifecycle gpus",
    ),
    "reloaded": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2c04", NOTICE, "@GPU_LIFECYCLE_UNIT@ has reloaded its config and its own code",
        "The daemon has given its place, in the same process, to the code that is installed now. The engine was not touched.\n"
        "What the message names as changing only with the next start, a restart of the unit brings.",
    ),
    "reload-refused": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2c05", ERR, "@GPU_LIFECYCLE_UNIT@ could not be reloaded and goes on as before",
        "The config is wrong, or the installed code did not pass its test in a process of its own. The engine was not touched.\n"
        "What to do: mend what the message names, then: systemctl reload @GPU_LIFECYCLE_UNIT@",
    ),
    "start-delayed": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2c02", NOTICE, "@GPU_LIFECYCLE_UNIT@ waits before it tries again",
        "Several runs in a row have failed, so each try waits longer than the one before, at most ten minutes. A run that stays\n"
        "ready for ten minutes ends that. Or somebody has had NVML let go of, as before the reset of a GPU: a restart leaves it\n"
        "alone for that minute. A start by hand waits for nothing.\n"
        "What to do: gpu-lifecycle status @GPU_LIFECYCLE_UNIT@ says how the last run ended.",
    ),
    "nvml-released": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2c08", NOTICE, "@GPU_LIFECYCLE_UNIT@ has let go of NVML for a while",
        "Somebody has asked for it: gpu-lifecycle gpus --release. Meanwhile health is judged without the memory of the GPUs, and a\n"
        "load does not get ready. The engine's own processes hold their GPUs all the same. Nothing is to be done.",
    ),
    "memory-vanished": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2e01", WARNING, "@GPU_LIFECYCLE_UNIT@ holds much less GPU memory than it did",
        "More than a tenth of what the unit had resident on this GPU since READY=1 is gone, and all its workers live. Engines that put\n"
        "weights or caches to sleep do this. The unit goes on; it is restarted where less is left than READY=1 asks for.\n"
        "What to do: look at the engine's own lines of that time; gpu-lifecycle status @GPU_LIFECYCLE_UNIT@ shows the figures.",
    ),
    "memory-tight": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2e02", WARNING, "The memory of a GPU of @GPU_LIFECYCLE_UNIT@ is used up",
        "So little is left on this GPU that the next large request may end with an out-of-memory error. The unit goes on.\n"
        "What to do: see who else holds memory there: gpu-lifecycle holders; or give the engine a smaller share, such as\n"
        "--mem-fraction-static of SGLang or --gpu-memory-utilization of vLLM.",
    ),
    "gpu-doubtful": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2c07", WARNING, "A claimed GPU works, and something is not right with it",
        "The GPU or its driver has reported something that does not keep it from working: a repair that waits for a reset, a\n"
        "link that is down, a slowdown. The start goes on.\n"
        "What to do: as the message says, at the next chance. All findings: gpu-lifecycle check @GPU_LIFECYCLE_UNIT@",
    ),
    "start-doubtful": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2d01", WARNING, "Command line or model files may be wrong",
        "Before the engine was started, its command line and the files of its models were read. Something in them may end the\n"
        "start, or make the server fail later; it is not certain, so the start goes on.\n"
        "What to do: as the message says. All findings: gpu-lifecycle check @GPU_LIFECYCLE_UNIT@",
    ),
    "build-locked": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2c06", WARNING, "A lock of a build may have held the load up",
        "Engines compile kernels at their first start and lock the place where they do. A build that was killed leaves its lock\n"
        "behind, and each later start waits for it in silence. Nothing is removed by us: another build may be at work there.\n"
        "What to do: as the message says, once you are sure that nobody builds there.",
    ),
    "evidence-kept": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2c03", NOTICE, "Evidence of a failing run was kept",
        "Before anything was signalled, what the processes were doing, the GPUs and the last probes were written down.\n"
        "What to do: read it in the folder that the message names. The newest ten are kept.",
    ),
    "run-ended": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2f01", NOTICE, "A run of @GPU_LIFECYCLE_UNIT@ has ended (@GPU_LIFECYCLE_CAUSE@)",
        "Cause, chosen from all evidence by rules in order: @GPU_LIFECYCLE_CAUSE_TEXT@.\n"
        "What to do: @GPU_LIFECYCLE_CURE@.\n"
        "The evidence, and how often this has been before: gpu-lifecycle why @GPU_LIFECYCLE_UNIT@",
    ),
    "history-not-kept": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2f02", WARNING, "The history of @GPU_LIFECYCLE_UNIT@ is not kept as it should be",
        "A run, or a part of it, is missing in what gpu-lifecycle why @GPU_LIFECYCLE_UNIT@ and gpu-lifecycle runs @GPU_LIFECYCLE_UNIT@\nshow. Nothing else depends on it.\n"
        "What to do: as the message says; the file is history.db in the unit's folder below /var/lib/gpu-lifecycle.",
    ),
    "phase-changed": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b0d", INFO, "@GPU_LIFECYCLE_UNIT@ has entered a new phase",
        "The phases of a start are loading, warming and ready; of an end draining and stopping.",
    ),
    "not-ready": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b0e", NOTICE, "The engine answers, and is not called ready",
        "The health endpoint answers 200, and yet a condition of READY=1 does not hold; the message says which one.\n"
        "What to do: if it stays, look at that GPU or at the owner of that socket; the unit gives up after ready.stall.",
    ),
    "ready": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b0f", NOTICE, "@GPU_LIFECYCLE_UNIT@ is ready",
        "The unit's own processes hold every claimed GPU, the answering socket belongs to the unit, and the health endpoint\n"
        "answers 200. Nothing is to be done.",
    ),
    "suspect": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b10", WARNING, "A health check of @GPU_LIFECYCLE_UNIT@ failed",
        "One failed look is no verdict: after watch.failures of them, with fewer good ones in a row in between, the engine is\n"
        "ended and the unit restarts. A failed look feeds no watchdog. Nothing is to be done yet.",
    ),
    "healthy-again": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b11", NOTICE, "@GPU_LIFECYCLE_UNIT@ is healthy again",
        "A health check succeeded after at least one failure. If this repeats, look at the load and at watch.timeout.",
    ),
    "engine-failed": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b12", ERR, "The engine of @GPU_LIFECYCLE_UNIT@ has failed",
        "The message says what was seen. What is left of the engine is ended, the GPUs are swept, and systemd restarts the unit.\n"
        "What to do: read the engine's own lines just before this one; then gpu-lifecycle status @GPU_LIFECYCLE_UNIT@",
    ),
    "stop-requested": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b13", INFO, "A stop was requested",
        "The engine's main process gets SIGTERM first so that it can finish its requests; what is left after the grace is ended.",
    ),
    "engine-killed": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b14", WARNING, "Processes of the engine had to be killed",
        "They did not end within their grace. On a stop this loses requests that were still in flight.\n"
        "What to do: if requests need longer, raise stop.drain.",
    ),
    "stopped": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b15", NOTICE, "The engine has ended",
        "All processes of the engine are gone. The post-stop hook proves the memory free next.",
    ),
    "nvml-trouble": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b16", WARNING, "NVML does not answer as it should",
        "What NVML did not say is treated as unknown: never as free, ready or dead.\n"
        "What to do: the message names the cure; see also nvidia-smi and dmesg.",
    ),
    "defect": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b17", ERR, "gpu-lifecycle itself has failed",
        "This is a defect of gpu-lifecycle; the lines after this one hold the traceback. The unit restarts.\n"
        "What to do: report it with these lines.",
    ),
    "remains-removed": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b18", INFO, "Files that earlier runs left in shared memory were removed",
        "They lay in the host's /dev/shm or /tmp, belonged to the unit's user, and no living process could own, open or map\n"
        "them. A run of this unit leaves none: it has a /dev/shm and a /tmp of its own. Nothing is to be done.",
    ),
    "remains-kept": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b19", INFO, "Files named like an engine's were left alone in shared memory",
        "They lie in the host's /dev/shm or /tmp. Rule @GPU_LIFECYCLE_RULE@ says that somebody may still need them, or that they\n"
        "are another user's. The start goes on. If they take memory and their owner has ended, remove them by hand.",
    ),
    "xid-seen": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b40", WARNING, "The NVIDIA driver has reported an error of a claimed GPU",
        "GPU @GPU_LIFECYCLE_GPU@: the message holds the kernel's own line, what the code means, and in brackets what follows:\n"
        "log (nothing), restart (the run ends and the unit restarts), refuse (the run ends; the host has to act first).\n"
        "What to do: the message names it; the codes are explained in NVIDIA's list of Xid errors.",
    ),
    "gpu-lost": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b41", ERR, "GPU @GPU_LIFECYCLE_GPU@ is lost",
        "It no longer answers on its bus. The run ends with status 69 and the unit is not restarted, for no restart brings it back.\n"
        "What to do: as the message says, on the host. Then: gpu-lifecycle check @GPU_LIFECYCLE_UNIT@",
    ),
    "gpu-unfit": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b42", ERR, "GPU @GPU_LIFECYCLE_GPU@ needs an action on the host",
        "The driver has reported an error that a restart of the engine does not clear. The run ends with status 69 and the unit\n"
        "is not restarted.\n"
        "What to do: as the message says, on the host. Then: gpu-lifecycle check @GPU_LIFECYCLE_UNIT@",
    ),
    "output-lost": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b70", WARNING, "Lines of the engine's output are lost",
        "The engine said more than the journal took in time, and is not made to wait for it for long. The run goes on; progress\n"
        "of a load and words on a failure are still read.\n"
        "What to do: lower the engine's log level, or see what holds the journal up: systemctl status systemd-journald",
    ),
    "drain-idle": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b71", NOTICE, "The engine has no request left, and has not ended",
        "It was told to end, has finished its requests, and its main process still lives. It is given the rest of stop.drain, then\n"
        "its processes are ended. Nothing is to be done; if every stop is like this, see the engine's own lines.",
    ),
    "drain-cut": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b72", WARNING, "Requests in flight were cut off",
        "They were not finished within stop.drain, and the engine's processes are ended now.\n"
        "What to do: keep new requests away first (stop.before), or give the drain more time (stop.drain).",
    ),
    "loads-not-kept": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b73", WARNING, "How long loads take is not learned",
        "The file of earlier loads cannot be read or written. The run goes on; progress and time left are guessed from the size of\n"
        "the weights alone. What to do: see the message; a file that is unfit may be removed.",
    ),
    "metrics-failed": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2f71", WARNING, "The metrics of @GPU_LIFECYCLE_UNIT@ cannot be shown",
        "What [metrics] of the config asks for is not to be had: the address is taken, the folder may not be written to, or the\n"
        "library prometheus-client is not there. The run goes on. An address is tried again every 30 seconds.\n"
        "What to do: as the message says; then, if it does not mend itself: systemctl reload @GPU_LIFECYCLE_UNIT@",
    ),
    "notify-failed": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2f72", WARNING, "People could not be told of an event of @GPU_LIFECYCLE_UNIT@",
        "notify.command of the config has failed, or took longer than notify.limit. The run goes on. This is said once, until the\n"
        "command has worked again; what the command itself printed is in the journal of the unit.\n"
        "What to do: run it by hand as the unit's user, with some JSON on its standard input.",
    ),
    "pulse-unseen": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b80", WARNING, "Our request for one token is refused before it gets to the engine's core",
        "An idle engine is asked for one token now and then, for its health endpoint may answer with a dead core. This one answers\n"
        "with a refusal that says nothing of the core: no key or a wrong one, another model's name, too many requests.\n"
        "What to do: give the key by server.api_key_file, the model's name by server.model; or set ready.generate = false.",
    ),
    "key-silent": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b81", WARNING, "The disk of the engine's API key does not answer",
        "The key is read anew whenever something is asked of the engine, for it may be renewed. Now a read of its file hangs. The\n"
        "run goes on with the key that was read last, or without one, as the message says; a key that is renewed meanwhile is not\n"
        "seen. Until the disk answers, systemctl reload @GPU_LIFECYCLE_UNIT@ is refused: a program that has a thread in the kernel\n"
        "which cannot be ended cannot be replaced.\n"
        "What to do: look after the file's disk, or its server (findmnt, journalctl -k); or lay the key on a local one.",
    ),
    "key-read-again": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b82", INFO, "The disk of the engine's API key answers again",
        "From here on the key is read anew whenever something is asked of the engine. Nothing is to be done, unless the message\n"
        "says that there is no key in the file.",
    ),
    "kernel-log-unseen": Kind(
        "4c1f0c6d7d3e4b0f8a5b0d0e6f1a2b43", NOTICE, "The kernel log cannot be seen, or not all of it",
        "Errors of the GPUs that only the kernel log tells (Xid) are not noticed. The run goes on: memory, socket and health\n"
        "are watched as ever, and a GPU that fails is still seen by its consequences.\n"
        "What to do: the message says what is missing, and what to grant.",
    ),
}  # fmt: skip


def fields_of(event: Event, unit: str, run: str) -> dict[str, str]:
    """All journal fields of an event, made safe: no value holds a control character, none is endless."""
    kind = EVENTS[event.word]
    fields = {
        "MESSAGE": printable(event.message, 2000),
        "MESSAGE_ID": kind.id,
        "PRIORITY": str(kind.priority),
        "SYSLOG_IDENTIFIER": "gpu-lifecycle",
        "GPU_LIFECYCLE_EVENT": event.word,
        "GPU_LIFECYCLE_UNIT": printable(unit, 260),
        "GPU_LIFECYCLE_RUN": printable(run, 260),
    }
    fields.update({key: printable(value, 2000) for key, value in event.fields.items()})
    return {key: value for key, value in fields.items() if value}


def catalog() -> str:
    """The text of the catalog file (format: https://systemd.io/CATALOG)."""
    entries = [f"-- {kind.id}\nSubject: {kind.subject}\nDefined-By: gpu-lifecycle\n\n{kind.text}\n" for kind in EVENTS.values()]
    return "# Explains the events of gpu-lifecycle in journalctl -x. Made from gpu_lifecycle/rules/events.py.\n\n" + "\n".join(
        entries
    )
