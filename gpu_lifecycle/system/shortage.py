"""What to do where the kernel has no process, or nothing that one needs, to give: that passes, and blames no program."""

from __future__ import annotations

import errno
import os

from gpu_lifecycle.errors import BusyError

# fork(2), pipe(2). A process more than pids.max, RLIMIT_NPROC, pid_max or threads-max allow is EAGAIN, all of them alike.
CURES = {
    errno.EAGAIN: "a limit on processes is reached: TasksMax= of the unit and of its slice, LimitNPROC= of its user, or"
    " kernel.pid_max and kernel.threads-max; systemctl status shows the Tasks: of a unit",
    errno.ENOMEM: "the kernel has no memory for one: see free -h, and MemoryMax= of the unit",
    errno.EMFILE: "it has no descriptor left: raise LimitNOFILE= of the unit",
    errno.ENFILE: "the machine has no descriptor left: raise fs.file-max, see sysctl fs.file-nr",
}


def no_process(error: OSError) -> BusyError | None:
    """Why no process could be made, with the cure; None where the error is of another kind, such as a program's own."""
    cure = CURES.get(error.errno or 0)
    if cure is None:
        return None
    return BusyError(f"cannot make another process: {os.strerror(error.errno or 0)}", hint=cure)
