"""A FUSE file system whose server hangs, and processes that hang with it; plain Python, run in the test machine.

`serve DIR` mounts it: the server answers INIT alone and takes every other request without a word (fuse(4), linux/fuse.h);
with `--file`, also what it takes to look up and open any name in it as a file of direct I/O.
`hold NODE PIDFILE [DIR] [--thread]` holds a device node; with DIR it then asks that file system, from a thread of its own
with `--thread`. With `--map` it writes to a file in it, and then maps it: mmap(2) waits for the write, with the lock of the
process's memory (fuse_file_io_mmap of fs/fuse/iomode.c), and so does who reads its command line. `trace PID PIDFILE`
traces a process to its exit (PTRACE_O_TRACEEXIT of ptrace(2)) and never lets it go on.
"""

import ctypes
import mmap
import os
import struct
import sys
import threading
import time

FUSE_LOOKUP, FUSE_GETATTR, FUSE_OPEN, FUSE_INIT, READ = 1, 3, 14, 26, 1 << 17
FLAGS, FLAGS2 = 1 << 30, 1 << 4  # FUSE_INIT_EXT, FUSE_DIRECT_IO_ALLOW_MMAP
DIRECT = 1 << 0 | 1 << 6  # FOPEN_DIRECT_IO, FOPEN_PARALLEL_DIRECT_WRITES
SIZE = 1 << 20
PTRACE_SEIZE, TRACE_EXIT = 0x4206, 1 << 6
libc = ctypes.CDLL(None, use_errno=True)


def must(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def answer(code: int, node: int, files: bool) -> bytes | None:
    if code == FUSE_INIT:
        return struct.pack("=IIIIHHIIHHI7I", 7, 39, 65536, FLAGS, 12, 9, 4096, 1, 1, 0, FLAGS2, *[0] * 7)
    if not files:
        return None
    attributes = struct.pack("=QQQQQQIIIIIIIIII", node, SIZE, 8, 0, 0, 0, 0, 0, 0, 0o100666, 1, 0, 0, 0, 4096, 0)
    if node == 1:
        attributes = struct.pack("=QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40777, 2, 0, 0, 0, 4096, 0)
    return {
        FUSE_LOOKUP: struct.pack("=QQQQII", 2, 0, 3600, 3600, 0, 0) + attributes,
        FUSE_GETATTR: struct.pack("=QII", 3600, 0, 0) + attributes,
        FUSE_OPEN: struct.pack("=QII", 1, DIRECT, 0),
    }.get(code)


def serve(folder: str, option: str = "") -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    os.makedirs(folder, exist_ok=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    must(libc.mount(b"stuck", folder.encode(), b"fuse", 0, options))
    while True:
        request = os.read(device, READ)
        _, code, unique, node = struct.unpack_from("=IIQQ", request)
        body = answer(code, 2 if code == FUSE_LOOKUP else node, option == "--file")
        if body is not None:
            os.write(device, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)


def hold(node: str, pidfile: str, folder: str = "", option: str = "") -> None:
    os.open(node, os.O_RDWR | os.O_NOCTTY)
    if option == "--thread":
        threading.Thread(target=os.stat, args=[folder], daemon=True).start()
        time.sleep(0.2)
    if option == "--map":
        file = os.open(folder, os.O_RDWR)
        threading.Thread(target=os.pwrite, args=[file, b"x" * 4096, 0], daemon=True).start()
        time.sleep(0.2)
        # Not by the module mmap, which keeps the interpreter's lock meanwhile.
        words = [None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_SHARED, file, ctypes.c_long(0)]
        threading.Thread(target=libc.mmap, args=words, daemon=True).start()
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
        case ["serve", *words]:
            serve(*words)
        case ["trace", pid, pidfile]:
            trace(pid, pidfile)
        case ["hold", *words]:
            hold(*words)
        case _:
            sys.exit(__doc__)
