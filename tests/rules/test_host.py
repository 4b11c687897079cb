"""Each fault of a machine alone gives exactly its finding, and a sound machine none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_lifecycle.facts import Level
from gpu_lifecycle.rules.host import AT_START, CODES, Denied, Host, Limit, Memory, Port, Space, host_findings

GIB = 1 << 30
ROOMY = Space("/var/cache/x", "caches", 900 * GIB, 500 * GIB, 1_000_000, 1, True)
STATE = replace(ROOMY, path="/var/lib/x", what="the state of its runs", least=100 << 20)
SOUND = Host(
    unit="kimi.service",
    user="gpu-lifecycle",
    gpus=8,
    weights=547 * GIB,
    shard=5 * GIB,
    shm=Space("/dev/shm", "shared memory", 500 * GIB, 500 * GIB),
    memory=Memory(1000 * GIB, 900 * GIB, 8 * GIB, 8 * GIB, thp="madvise"),
    limits={"LimitNOFILE": Limit("LimitNOFILE", 1 << 20), "LimitMEMLOCK": Limit("LimitMEMLOCK", None)},
    threads=4_000_000,
    disks=(STATE, ROOMY),
    ceiling=3600.0,
)
LOW_NOFILE = {"LimitNOFILE": Limit("LimitNOFILE", 1024)}


def found(host: Host) -> list[tuple[str, str]]:
    return [(str(item.level), item.code) for item in host_findings(host)]


def test_a_sound_machine_gives_no_finding() -> None:
    assert found(SOUND) == []
    assert found(Host()) == []  # nothing known, nothing said


FAULTS: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"shm": Space("/dev/shm", "", 64 << 20, 64 << 20)}, ("warn", "shm-small")),
    ({"shm": Space("/dev/shm", "", 64 << 20, 64 << 20), "own_shm": True}, ("warn", "shm-small")),
    ({"shm": Space("/dev/shm", "", 64 * GIB, 100 << 20)}, ("warn", "shm-full")),
    ({"limits": LOW_NOFILE}, ("warn", "limit-low")),
    ({"limits": {"LimitMEMLOCK": Limit("LimitMEMLOCK", 8 << 20, capped=True)}}, ("warn", "limit-low")),
    ({"limits": {"LimitNPROC": Limit("LimitNPROC", 4000)}}, ("warn", "limit-low")),
    ({"threads": 4000}, ("warn", "limit-low")),
    ({"memory": Memory(1000 * GIB, 60 * GIB)}, ("warn", "ram-short")),
    ({"memory": Memory(500 * GIB, 400 * GIB)}, ("info", "page-cache")),
    ({"memory_max": 60 * GIB}, ("warn", "memory-max")),
    ({"memory": Memory(1000 * GIB, 900 * GIB, 8 * GIB, GIB // 2)}, ("warn", "swap-full")),
    ({"huge": "hugetlb", "huge_by": "GLIBC_TUNABLES"}, ("warn", "hugepages")),
    (
        {"memory": Memory(1000 * GIB, 900 * GIB, thp="never"), "huge": "thp", "huge_by": "THP_MEM_ALLOC_ENABLE"},
        ("warn", "hugepages"),
    ),
    ({"disks": (STATE, replace(ROOMY, free=GIB))}, ("warn", "disk-short")),
    ({"disks": (replace(STATE, free=1 << 20),)}, ("warn", "disk-short")),
    ({"disks": (replace(ROOMY, files=10),)}, ("warn", "disk-short")),
    ({"disks": (STATE, replace(ROOMY, writable=False))}, ("warn", "cache-read-only")),
    ({"denied": (Denied("/dev/nvidia0", 0o20600, "root", "root"),)}, ("warn", "node-denied")),
    ({"tried": False}, ("info", "not-as-user")),
    ({"user_known": False}, ("error", "no-user")),
    ({"ports": (Port("127.0.0.1", 30000, taken=True, who='process 7 "x"'),)}, ("error", "port-taken")),
    ({"ports": (Port("127.0.0.1", 443, privileged=True),)}, ("error", "port-privileged")),
    ({"ports": (Port("192.0.2.1", 30000, error="Cannot assign requested address"),)}, ("warn", "host-not-here")),
    ({"remove_ipc": "alice"}, ("warn", "remove-ipc")),
    ({"needrestart": "by default"}, ("warn", "needrestart")),
    ({"upgrades": ("libnvidia-compute-550",)}, ("warn", "driver-upgrades")),
    ({"journal_limit": (30.0, 10_000)}, ("warn", "journal-limit")),
    ({"ceiling": 600.0}, ("warn", "time-short")),
    ({"vllm_ready": 600.0}, ("warn", "time-short")),
    ({"key_visible": True}, ("info", "key-visible")),
    ({"key_file": "/etc/keys", "key_problem": "can be read by every user of the machine"}, ("warn", "key-file")),
    ({"unread": (("/etc/apt/apt.conf", "it is no regular file"),)}, ("info", "host-unread")),
]


@pytest.mark.parametrize(("changes", "code"), FAULTS)
def test_each_fault_alone(changes: dict[str, Any], code: tuple[str, str]) -> None:
    host = replace(SOUND, **changes)
    assert found(host) == [code]
    (item,) = host_findings(host)
    assert item.code in CODES
    assert item.message.isprintable()
    assert item.hint or item.level is Level.INFO


def test_every_code_has_its_fault() -> None:
    assert {code for _, (_, code) in FAULTS} == set(CODES)


def test_a_file_system_is_told_once_and_by_its_tightest_use() -> None:
    full = (replace(STATE, free=1 << 20), replace(ROOMY, free=1 << 20), replace(ROOMY, path="/other", free=1, device=2))
    assert [item.file for item in host_findings(replace(SOUND, disks=full))] == ["/var/cache/x", "/other"]


def test_what_a_container_caps_is_not_cured_in_the_unit() -> None:
    (mine,) = host_findings(replace(SOUND, limits=LOW_NOFILE))
    (capped,) = host_findings(replace(SOUND, limits={"LimitNOFILE": Limit("LimitNOFILE", 1024, capped=True)}))
    assert "systemctl edit kimi.service" in mine.hint
    assert "container" in capped.hint


def test_the_working_of_an_estimate_is_shown() -> None:
    (short,) = host_findings(replace(SOUND, memory=Memory(1000 * GIB, 60 * GIB)))
    assert "8 workers x (3 GiB + a shard of 5 GiB)" in short.message


def test_a_start_asks_for_less() -> None:
    assert host_findings(replace(SOUND, needrestart="by default", journal_limit=(30.0, 10)), AT_START) == ()
    assert [item.code for item in host_findings(replace(SOUND, limits=LOW_NOFILE), AT_START)] == ["limit-low"]


def test_names_from_outside_break_no_message() -> None:
    evil = "x\n\x1b[2J" * 50
    denied = (Denied(f"/dev/{evil}", 0, "a", "b"),)
    host = replace(SOUND, user=evil, denied=denied, upgrades=(evil,), unread=((evil, evil),), remove_ipc=evil)
    assert all(item.message.isprintable() for item in host_findings(host))
