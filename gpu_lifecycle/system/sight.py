"""What this program may see of other processes, and what to grant where that is not all.

Sources: hidepid= and gid= of proc(5); the checks of ptrace(2), which also guard ``/proc/PID/fd``; capabilities(7).
"""

from __future__ import annotations

import os
import re

from gpu_lifecycle.system.procfs import Proc, read_bytes

NEEDED = {19: "CAP_SYS_PTRACE", 2: "CAP_DAC_READ_SEARCH"}  # numbers of linux/capability.h
_HIDING = r"^\S+ \S+ \S+ / {} .* - proc .*\bhidepid=(2|invisible|4|ptraceable)\b"  # a line of proc_pid_mountinfo(5)


def grant(proc: Proc) -> str:
    """What to do so that all processes can be read, in words."""
    if os.geteuid() != 0:
        return "run as root"
    missing = [name for bit, name in NEEDED.items() if not _capabilities(proc) >> bit & 1]
    if missing:
        names = " and ".join(missing)
        return f"grant {names} (a unit: CapabilityBoundingSet=; a container: --cap-add)"
    return "a security module or another user namespace forbids it: run on the host"


def hidden(proc: Proc) -> str:
    """Why processes of others may not even be listed; "" where all are."""
    mounts = list(re.finditer(_HIDING.format(re.escape(proc.root)), _text(f"{proc.root}/self/mountinfo"), re.MULTILINE))
    if not mounts or _capabilities(proc) >> 19 & 1:
        return ""
    found = mounts[-1]  # it covers the others
    group = re.search(r"\bgid=(\d+)", found[0])
    if group and found[1] in ("2", "invisible") and int(group[1]) in (os.getegid(), *os.getgroups()):
        return ""
    return (
        f"processes of others are hidden (/proc is mounted with hidepid={found[1]}): {grant(proc)}, "
        "or: mount -o remount,hidepid=0 /proc"
    )


def _capabilities(proc: Proc) -> int:
    """The effective set (CapEff of proc_pid_status(5)); 0 where it cannot be read."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", _text(f"{proc.root}/self/status"), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _text(path: str) -> str:
    try:
        return read_bytes(path).decode("utf-8", "replace")
    except OSError:
        return ""
