"""The size of a unit's own /dev/shm: read, written, judged."""

from __future__ import annotations

import pytest

from gpu_lifecycle.rules.quantity import WrongValueError
from gpu_lifecycle.rules.shared_memory import drop_in, in_bytes, judge, option, parse, size_of

GIB = 1 << 30
FILE = "/etc/gpu-lifecycle/kimi.toml"


@pytest.mark.parametrize(("value", "size"), [("50%", "50%"), ("7 %", "7%"), ("100%", "100%"), ("64GiB", 64 * GIB)])
def test_a_size_is_read(value: str, size: str | int) -> None:
    assert parse(value) == size
    assert size_of(option(size).partition(":")[2]) == size
    assert f"TemporaryFileSystem=\nTemporaryFileSystem=/dev/shm:mode=1777,size={size}\n" in drop_in(size)


@pytest.mark.parametrize(
    "value", ["0%", "101%", "-1%", "1.5%", "half", 50, 0.5, "0B", "4KiB", "50%,nr_inodes=1", "1GiB\nUser=root", None]
)
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(WrongValueError):
        parse(value)


def test_a_share_is_of_the_machines_memory() -> None:
    assert in_bytes("50%", 64 * GIB) == 32 * GIB
    assert in_bytes(3, 64 * GIB) == 3


@pytest.mark.parametrize(
    ("size", "memory", "mounted", "code"),
    [
        ("50%", 64 * GIB, "mode=1777,size=50%", ""),
        ("50%", 64 * GIB, None, ""),
        ("50%", None, None, ""),
        (32 * GIB, 64 * GIB, f"mode=1777,size={32 * GIB}", ""),
        (64 * GIB, 32 * GIB, None, "shm-large"),
        (GIB, 32 * GIB, None, ""),
        (GIB, 32 * GIB, "mode=1777,size=50%", "shm-stale"),
        ("50%", 64 * GIB, "mode=1777", "shm-stale"),
        ("50%", 64 * GIB, "", "shm-shared"),
    ],
)
def test_it_is_judged(size: str | int, memory: int | None, mounted: str | None, code: str) -> None:
    found = judge(size, memory, mounted, "kimi.service", "kimi", FILE)
    assert [item.code for item in found] == ([code] if code else [])
    assert all(item.hint and item.file == FILE and item.key == "server.shm_size" for item in found)
