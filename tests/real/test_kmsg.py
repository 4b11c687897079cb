"""The kernel log: read without waiting, from what is new on; and handed over by the service manager's rules."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.rules.kernel_log import records
from gpu_lifecycle.system.kmsg import BUFFER, KernelLog, Reading, sees_host_pids

RECORD = b"4,7,1000,-;NVRM: Xid (PCI:0000:18:00): 79, gone\n SUBSYSTEM=pci\n"


@pytest.fixture
def packets() -> Iterator[tuple[KernelLog, int]]:
    """A pipe in packet mode (pipe(2), O_DIRECT): each read gives one record, as the device does."""
    reading, writing = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    with KernelLog(reading) as log:
        yield log, writing
        os.close(writing)


def test_one_record_to_a_read(packets: tuple[KernelLog, int]) -> None:
    log, writing = packets
    assert log.read() == Reading()
    for text in (RECORD, b"6,8,2000,-;other\n"):
        os.write(writing, text)
    assert [record.sequence for record in records(log.read().data)] == [7, 8]
    assert log.read() == Reading()


def test_a_flood_does_not_hold_the_loop(packets: tuple[KernelLog, int]) -> None:
    log, writing = packets
    for _ in range(5):
        os.write(writing, RECORD)
    assert len(records(log.read(3).data)) == 3
    assert len(records(log.read(3).data)) == 2


def test_what_cannot_seek_is_emptied(packets: tuple[KernelLog, int]) -> None:
    log, writing = packets
    os.write(writing, RECORD)
    log.skip()
    assert log.read() == Reading()
    os.write(writing, b"4,8,1001,-;new\n")
    assert log.read().data == b"4,8,1001,-;new\n"


def test_a_fifo_without_a_writer_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    with KernelLog.open(str(path)) as log:
        assert log.read() == Reading()
        writer = os.open(path, os.O_WRONLY)
        os.write(writer, RECORD)
        assert log.read().data == RECORD
        os.close(writer)
        assert log.read() == Reading()


def test_a_file_is_read_from_its_end_on(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(RECORD)
    with KernelLog.open(str(path)) as log, path.open("ab", buffering=0) as file:
        log.skip()
        assert log.read() == Reading()
        file.write(RECORD)
        assert log.read().data == RECORD


def test_a_terminal_is_no_log() -> None:
    """Containers link /dev/kmsg to their console; to read there takes away what a person types."""
    ours, theirs = pty.openpty()
    try:
        with pytest.raises(BlindError, match=r"is a terminal"):
            KernelLog.open(os.ttyname(theirs))
    finally:
        os.close(ours)
        os.close(theirs)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(BlindError, match=r"no kernel log: .*No such file.*in a container, bind"):
        KernelLog.open(str(tmp_path / "kmsg"))


def test_a_log_that_fails_says_so(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)  # a folder: every read is EISDIR
    with KernelLog(fd) as log:
        assert log.read().failed == "the kernel log can no longer be read: Is a directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch(0o600)
    tmp_path.chmod(0o755)
    words = f"from gpu_lifecycle.system.kmsg import KernelLog; import os; os.seteuid(65534); KernelLog.open({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert "Permission denied" in done.stderr
    assert "run it by the unit" in done.stderr


# The real one


@pytest.fixture
def device() -> Iterator[KernelLog]:
    try:
        log = KernelLog.open("/dev/kmsg")
    except BlindError as error:
        pytest.skip(str(error))
    with log:
        yield log


def test_the_real_log_in_whole_records(device: KernelLog) -> None:
    """From the first record on: all are read, in order, and the end is no wait."""
    sequence = -1
    while (reading := device.read()).data:
        assert not reading.failed
        for record in records(reading.data):
            assert record.sequence > sequence
            sequence = record.sequence
    assert sequence > 0
    device.skip()
    assert device.read().failed == ""


def test_a_record_longer_than_the_buffer_is_lost_and_not_the_end(device: KernelLog) -> None:
    """The kernel's own answer to a read that is too small, EINVAL, which the door counts as a loss."""
    with pytest.raises(OSError, match="Invalid argument"):
        os.read(device.fd, 4)
    assert BUFFER >= 8192
    assert device.read(1).failed == ""


def test_what_user_space_writes_is_not_the_kernels(device: KernelLog) -> None:
    device.skip()
    try:
        Path("/dev/kmsg").write_text("<0>gpu-lifecycle test: written by user space\n")
    except OSError as error:
        pytest.skip(str(error))
    reading = device.read()
    assert b"gpu-lifecycle test" in reading.data
    assert [record for record in records(reading.data) if "gpu-lifecycle test" in record.text] == []


# Handed over

TAKE = """
import os, sys
from gpu_lifecycle.system.kmsg import KernelLog
os.environ["LISTEN_PID"] = sys.argv[1] or str(os.getpid())
log = KernelLog.passed(os.environ)
print(log.read().data.decode(), log.fd, os.get_inheritable(log.fd), end="") if log else print("none", end="")
"""


@pytest.mark.parametrize(
    ("names", "count", "pid", "said"),
    [
        ("kmsg", "1", "", "4,8,1,-;x\n 3 False"),
        ("kmsg:other", "2", "", "4,8,1,-;x\n 3 False"),
        ("other", "1", "", "none"),
        ("", "1", "", "none"),
        ("kmsg", "3", "", "none"),
        ("kmsg", "1", "1", "none"),
    ],
)
def test_handed_over(tmp_path: Path, names: str, count: str, pid: str, said: str) -> None:
    """The daemon takes the descriptor of that name, if it was meant for it, and no child of it inherits it."""
    path = tmp_path / "kmsg"
    path.write_bytes(b"4,8,1,-;x\n")
    root = str(Path(__file__).parents[2])
    script = tmp_path / "take.py"
    script.write_text(TAKE)
    # A shell puts the file where the service manager would.
    line = f'exec 3<{path}; exec "$0" "$@"'
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": root, "LISTEN_FDS": count, "LISTEN_FDNAMES": names}
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, str(script), pid], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == said


def test_whether_pids_are_the_hosts() -> None:
    initial = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    assert sees_host_pids() is initial
