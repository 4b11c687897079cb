"""Why a process does not end: every reason with its sentence and its cure; and which reason counts where there are several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.stuck import Frozen, FuseMount, Stuck, Thread, diagnose, in_driver

FUSE_D = Thread(7, "D", "request_wait_answer", killed=True)
ABORT = "/sys/fs/fuse/connections/47/abort"
MOUNT = FuseMount("/mnt/weights", ABORT, waiting=1)
QUIET = FuseMount("/mnt/other", "/sys/fs/fuse/connections/48/abort", waiting=0)
V1 = Frozen(1, "/jobs/a", "/sys/fs/cgroup/freezer/jobs/a/freezer.state")
V2 = Frozen(2, "/jobs/a", "/sys/fs/cgroup/jobs/a/cgroup.freeze")

FUSE = "it waits for a FUSE file system whose server does not answer"
KERNEL = "it waits inside the kernel for something that does not come"
MEND = "mend what it waits for (a disk, a network file system, a driver: cat /proc/7/task/*/stack), or reboot"
LEFT = "its leader has exited (state Z) and "

# What was seen; then what its threads do, why it does not end, and what frees it.
CASES = {
    "fuse": (
        Stuck(7, (FUSE_D,), fuse=(QUIET, MOUNT)),
        "state D in request_wait_answer, SIGKILL pending",
        FUSE,
        f"echo 1 > {ABORT}, or umount -f /mnt/weights",
    ),
    "fuse mounted elsewhere": (
        Stuck(7, (FUSE_D,), fuse=(FuseMount("", ABORT, 3),)),
        "state D in request_wait_answer, SIGKILL pending",
        FUSE,
        f"echo 1 > {ABORT}",
    ),
    "fuse, two that wait": (
        Stuck(7, (FUSE_D,), fuse=(MOUNT, FuseMount("/mnt/a b", "/c/49/abort", 2))),
        "state D in request_wait_answer, SIGKILL pending",
        FUSE,
        f"whichever of them hangs: echo 1 > {ABORT}, or umount -f /mnt/weights; echo 1 > /c/49/abort, or umount -f '/mnt/a b'",
    ),
    "fuse without fusectl": (
        Stuck(7, (FUSE_D,), fuse=(FuseMount("/mnt/weights", ""),)),
        "state D in request_wait_answer, SIGKILL pending",
        FUSE,
        "umount -f /mnt/weights",
    ),
    "fuse, unknown which": (
        Stuck(7, (FUSE_D,)),
        "state D in request_wait_answer, SIGKILL pending",
        FUSE,
        "umount -f its mount, or echo 1 > /sys/fs/fuse/connections/N/abort (N: the one with waiting > 0)",
    ),
    "driver": (
        Stuck(7, (Thread(7, "D", "uvm_va_space_destroy", exiting=True),)),
        "state D in uvm_va_space_destroy",
        "it waits inside the NVIDIA driver, which does not return",
        "reboot this machine (of a container: its host); the kernel's log may say why: journalctl -k -g 'NVRM|Xid'",
    ),
    "other D": (
        Stuck(7, (Thread(7, "D", "nvme_wait", killed=True),)),
        "state D in nvme_wait, SIGKILL pending",
        KERNEL,
        MEND,
    ),
    "D, nobody knows where": (
        Stuck(7, (Thread(7, "D"),)),
        "state D, wait channel unknown",
        KERNEL,
        MEND,
    ),
    "frozen v1": (
        Stuck(7, (Thread(7, "D", "__refrigerator", killed=True),), (V1,), "/jobs/a"),
        "state D in __refrigerator, SIGKILL pending",
        "it is frozen in cgroup v1 /jobs/a, where SIGKILL has to wait",
        "echo THAWED > /sys/fs/cgroup/freezer/jobs/a/freezer.state",
    ),
    "frozen v1, not mounted here": (
        Stuck(7, (Thread(7, "D", "__refrigerator", killed=True),), freezer="/jobs/a"),
        "state D in __refrigerator, SIGKILL pending",
        "it is frozen, by cgroup v1 /jobs/a or a group above it, where SIGKILL has to wait",
        "echo THAWED > freezer.state of that cgroup, on the host or wherever its hierarchy is mounted",
    ),
    "frozen v1 twice": (
        Stuck(7, (Thread(7, "D", "__refrigerator"),), (V1, Frozen(1, "/jobs", "/f/jobs/freezer.state"))),
        "state D in __refrigerator",
        "it is frozen in cgroup v1 /jobs/a and /jobs, where SIGKILL has to wait",
        "echo THAWED > /sys/fs/cgroup/freezer/jobs/a/freezer.state; echo THAWED > /f/jobs/freezer.state",
    ),
    "frozen v2": (
        Stuck(7, (Thread(7, "S", "do_freezer_trap"),), (V2,)),
        "state S in do_freezer_trap",
        "it is frozen in cgroup v2 /jobs/a",
        "echo 0 > /sys/fs/cgroup/jobs/a/cgroup.freeze",
    ),
    "traced": (
        Stuck(7, (Thread(7, "t", "ptrace_stop", exiting=True, tracer=99),), tracer_name="gdb"),
        "state t in ptrace_stop",
        'it is traced by process 99 "gdb", which does not let it go',
        "detach that tracer, or end it: kill 99",
    ),
    "leader gone": (
        Stuck(7, (Thread(7, "Z"), Thread(9, "D", "request_wait_answer", killed=True)), fuse=(MOUNT,)),
        LEFT + "1 thread lives: thread 9 in state D in request_wait_answer, SIGKILL pending",
        FUSE,
        f"echo 1 > {ABORT}, or umount -f /mnt/weights",
    ),
    "leader gone, many threads": (
        Stuck(7, (Thread(7, "Z"), *(Thread(n, "R") for n in range(8, 11)), *(Thread(n, "D", "x") for n in range(11, 13)))),
        LEFT + "5 threads live: 2 in state D in x, 3 in state R",
        KERNEL,
        MEND,
    ),
    "too many kinds of threads": (
        Stuck(7, tuple(Thread(n, "S", f"w{n}", killed=True) for n in range(7, 12))),
        "5 threads: 1 in state S in w7, 1 in state S in w8, 1 in state S in w9, 2 more kinds, SIGKILL pending",
        "SIGKILL is pending and not handled yet",
        "wait; the next sweep looks again (is the machine out of CPU time?)",
    ),
    "exiting": (
        Stuck(7, (Thread(7, "R", exiting=True),)),
        "state R",
        "it is exiting, and what it holds takes long to give back",
        "wait; the next sweep looks again",
    ),
    "never reached": (
        Stuck(7, (Thread(7, "S", "do_select"),)),
        "state S in do_select",
        "SIGKILL has not reached it; a security module may forbid it",
        "look there (AppArmor, SELinux), then kill -9 7",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("stuck", "doing", "what", "cure"), CASES.values(), ids=CASES.keys())
def test_every_reason_has_a_sentence_and_a_cure(stuck: Stuck, doing: str, what: str, cure: str) -> None:
    assert diagnose(stuck) == f"{doing}: {what}; to free it: {cure}"


@pytest.mark.parametrize("stuck", [Stuck(7), Stuck(7, (Thread(7, "Z"), Thread(8, "X")))])
def test_what_has_no_living_thread_has_ended(stuck: Stuck) -> None:
    assert diagnose(stuck) == "it has ended meanwhile"


@pytest.mark.parametrize(
    ("where", "ours"),
    [
        ("nvidia_close_callback", True),
        ("nv_wait_on_gpu", True),
        ("_nv041829rm", True),
        ("uvm_va_space_destroy", True),
        ("os_acquire_mutex", True),
        ("nvme_submit_sync_cmd", False),
        ("nvdimm_bus_lock", False),
        ("nfs_wait_bit_killable", False),
        ("", False),
    ],
)
def test_what_belongs_to_the_driver(where: str, ours: bool) -> None:
    assert in_driver(where) is ours


def test_what_is_surely_the_reason_comes_first() -> None:
    """Frozen in version 1 before all else; a frozen version 2, which lets SIGKILL through, and a tracer after state D."""
    frozen = Thread(8, "D", "__refrigerator")
    assert "cgroup v1 /jobs/a" in diagnose(Stuck(7, (FUSE_D, frozen), (V2, V1)))
    assert "FUSE" in diagnose(Stuck(7, (FUSE_D, Thread(8, "t", tracer=99)), (V2,)))
    assert "cgroup v2" in diagnose(Stuck(7, (Thread(8, "t", tracer=99),), (V2,)))
    assert "NVIDIA driver" in diagnose(Stuck(7, (Thread(7, "D", "vfs_wait"), Thread(8, "D", "uvm_release"))))


def test_a_mount_cannot_smuggle_a_command() -> None:
    text = diagnose(Stuck(7, (FUSE_D,), fuse=(FuseMount("/mnt/a; reboot", ABORT, 1),)))
    assert text.endswith("umount -f '/mnt/a; reboot'")


THREADS = st.builds(
    Thread,
    st.integers(1, 9),
    st.sampled_from("RSDTtZXI"),
    st.sampled_from(["", "__refrigerator", "request_wait_answer", "uvm_x", "y"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 99]),
)


@given(st.builds(Stuck, st.just(7), st.lists(THREADS).map(tuple), st.lists(st.sampled_from([V1, V2])).map(tuple)))
def test_there_is_always_an_answer(stuck: Stuck) -> None:
    """One line, and a cure for all that lives."""
    text = diagnose(stuck)
    assert "\n" not in text
    assert ("; to free it: " in text) == bool(stuck.living)
