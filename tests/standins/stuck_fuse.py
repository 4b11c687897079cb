"""A FUSE file system whose server hangs, and processes that hang with it; plain Python, run in the test machine.

`serve DIR` mounts it: the server answers INIT alone and takes every other request without a word (fuse(4), linux/fuse.h).
`hold NODE PIDFILE [DIR] [--thread]` holds a device node; with DIR it then asks that file system, from a thread of its own
with `--thread`. `trace PID PIDFILE` traces a process to its exit (PTRACE_O_TRACEEXIT of ptrace(2)) and never lets it go on.
"""

import ctypes
import os
import struct
import sys
import threading
import time

FUSE_INIT, READ = 26, 1 << 17
PTRACE_SEIZE, TRACE_EXIT = 0x4206, 1 << 6
libc = ctypes.CDLL(None, use_errno=True)


def must(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def serve(folder: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    os.makedirs(folder, exist_ok=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    must(libc.mount(b"stuck", folder.encode(), b"fuse", 0, options))
    while True:
        request = os.read(device, READ)
        _, code, unique = struct.unpack_from("=IIQ", request)
        if code == FUSE_INIT:
            body = struct.pack("=IIIIHHIIHH8I", 7, 31, 65536, 0, 12, 9, 4096, 1, 1, 0, *[0] * 8)
            os.write(device, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)


def hold(node: str, pidfile: str, folder: str = "", option: str = "") -> None:
    os.open(node, os.O_RDWR | os.O_NOCTTY)
    if option == "--thread":
        threading.Thread(target=os.stat, args=[folder], daemon=True).start()
        time.sleep(0.2)
    write_pid(pidfile)
    if folder and not option:
        os.stat(folder)
    time.sleep(1000)


def trace(pid: str, pidfile: str) -> None:
    must(libc.ptrace(ctypes.c_long(PTRACE_SEIZE), ctypes.c_long(int(pid)), None, ctypes.c_void_p(TRACE_EXIT)))
    write_pid(pidfile)
    time.sleep(1000)


def write_pid(path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", folder]:
            serve(folder)
        case ["trace", pid, pidfile]:
            trace(pid, pidfile)
        case ["hold", *words]:
            hold(*words)
        case _:
            sys.exit(__doc__)
