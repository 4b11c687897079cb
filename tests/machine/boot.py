"""The starter: `python boot.py SPEC` makes the namespaces, mounts the root and becomes systemd's parent.

It stays outside, copies the console to a file, and ends the machine when the process that started it is gone.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC, NEW_PID, NEW_NET = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x20000000, 0x40000000,
)  # fmt: skip
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
DETACH = 2
SET_PDEATHSIG = 1
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
ENVIRONMENT = {"container": "gpu-lifecycle-test", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

libc = ctypes.CDLL(None, use_errno=True)
Spec = dict[str, Any]


def call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    call("unshare", libc.unshare(flags))


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    texts = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    call(f"mount {source} on {target}", libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]))


def bind(source: str, target: str, *, read_only: bool) -> None:
    mount(source, target, None, BIND | RECURSIVE)
    if read_only:
        mount("none", target, None, BIND | REMOUNT | READ_ONLY)


def node(path: str, major: int, minor: int, mode: int = 0o666) -> None:
    os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    os.chmod(path, mode)


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)
        fcntl.ioctl(link, 0x8914, request)


def mount_root(lower: str) -> None:
    """Overlay without fsync: what a killed process wrote is in the page cache, and that is all a test can lose."""
    options = f"lowerdir={lower},upperdir=upper,workdir=work"
    mount("none", "/", None, RECURSIVE | PRIVATE)
    try:
        mount("overlay", "root", "overlay", 0, options + ",volatile")
    except OSError:
        mount("overlay", "root", "overlay", 0, options)
    os.chdir("root")


def mount_kernel_views(spec: Spec) -> None:
    mount("proc", "proc", "proc", NO_SUID | NO_DEV | NO_EXEC)
    mount("sysfs", "sys", "sysfs", NO_SUID | NO_DEV | NO_EXEC | READ_ONLY)
    mount("cgroup2", "sys/fs/cgroup", "cgroup2", NO_SUID | NO_DEV | NO_EXEC)
    bind("proc/sys", "proc/sys", read_only=True)  # sysctls are this kernel's, not the machine's
    bind("proc/sys/net", "proc/sys/net", read_only=False)
    mount("none", "proc/sys/net", None, BIND | REMOUNT)
    if os.path.exists("proc/sysrq-trigger"):
        bind("proc/sysrq-trigger", "proc/sysrq-trigger", read_only=True)
    for target, source in spec["proc_files"].items():
        bind(source, target.lstrip("/"), read_only=True)


def mount_memory() -> None:
    for target, mode in (("run", "755"), ("tmp", "1777"), ("dev", "755")):
        mount("tmpfs", target, "tmpfs", NO_SUID, f"mode={mode}")
    os.mkdir("dev/shm")
    os.mkdir("dev/pts")
    mount("tmpfs", "dev/shm", "tmpfs", NO_SUID | NO_DEV, "mode=1777")
    mount("devpts", "dev/pts", "devpts", NO_SUID | NO_EXEC, "newinstance,ptmxmode=0666,mode=620,gid=5")


def make_devices(spec: Spec, console: str) -> None:
    for name, (major, minor) in NODES.items():
        node(f"dev/{name}", major, minor)
    node("dev/kmsg", 1, 11, 0o644)
    for name, target in LINKS.items():
        os.symlink(target, f"dev/{name}")
    for path, major, minor in spec["nodes"]:
        node(path.lstrip("/"), major, minor)
    Path("dev/console").touch(0o600)
    bind(console, "dev/console", read_only=False)


def make_gpu_state(spec: Spec) -> None:
    """The stand-in driver's memory: writable in any sandbox that shows /dev, and gone after a reboot."""
    home = Path(spec["nvml"].lstrip("/"))
    (home / "alloc").mkdir(parents=True)
    home.chmod(0o1777)
    (home / "alloc").chmod(0o1777)
    for name in ("inits", "shutdowns"):
        (home / name).touch()
        (home / name).chmod(0o666)
    (home / "state").write_text("".join(f"{line}\n" for line in spec["nvml_state"]))


def pivot() -> None:
    machine = os.uname().machine
    call("pivot_root", libc.syscall(SYS_PIVOT_ROOT[machine], b".", b"."))
    call("umount", libc.umount2(b".", DETACH))
    os.chdir("/")


def become_machine(spec: Spec, console: str) -> None:
    call("prctl", libc.prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    os.setsid()
    Path(spec["cgroup"], "cgroup.procs").write_text("0")
    unshare(NEW_MOUNTS | NEW_CGROUP | NEW_UTS | NEW_IPC | NEW_NET)
    os.chdir(spec["disk"])
    mount_root(spec["lower"])
    mount_kernel_views(spec)
    mount_memory()
    make_devices(spec, console)
    make_gpu_state(spec)
    for source, target in spec["binds"]:
        bind(source, target.lstrip("/"), read_only=True)
    loopback_up()
    socket.sethostname(spec["hostname"])
    pivot()
    os.umask(0o022)
    os.execve(spec["init"], [spec["init"], "--system", "--show-status=yes"], ENVIRONMENT)


def child(spec: Spec, console: str) -> None:
    try:
        terminal = os.open(console, os.O_RDWR | os.O_NOCTTY)
        for number in range(3):
            os.dup2(terminal, number)
        become_machine(spec, console)
    except (OSError, ValueError, KeyError):
        traceback.print_exc()
    finally:
        os._exit(1)


def copy_console(master: int, log: int) -> bool:
    try:
        data = os.read(master, 65536)
    except OSError:
        return False
    os.write(log, data)
    return bool(data)


def watch(pid: int, parent: int, master: int, log: int) -> int:
    """Until the machine is down; a parent that is gone takes it down."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    for descriptor in (pidfd, parent, master):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if parent in ready:
            os.kill(pid, signal.SIGKILL)
            poll.unregister(parent)
        if master in ready and not copy_console(master, log):
            poll.unregister(master)
        if pidfd in ready:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    spec: Spec = json.loads(Path(sys.argv[1]).read_text())
    parent = os.pidfd_open(spec["parent"])
    if os.getppid() != spec["parent"]:
        return 1
    log = os.open(spec["console"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    master, slave = os.openpty()
    console = os.ttyname(slave)
    unshare(NEW_PID)
    pid = os.fork()
    if pid == 0:
        child(spec, console)
    print(pid, flush=True)
    return 0 if watch(pid, parent, master, log) >= 0 else 3


if __name__ == "__main__":
    sys.exit(main())
