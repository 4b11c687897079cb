"""Which names count as an engine's, and that a file goes only where every rule lets it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.remains import (
    FILE,
    SHM,
    SOCKET,
    TMP,
    Moment,
    Owner,
    Remain,
    Seen,
    concerns,
    full_text,
    judge,
    keep_by_itself,
    kept_text,
    meant,
    named,
    pid_in,
    removed_text,
)

UID = 998
OWNER = Owner(UID, "gpu-lifecycle")
NOW = Moment(now=1_000_000.0, boot=900_000.0)
LOADS = "sglang_loads_0123456789ab_01234567.shm"
QUEUE = "sgl_shm_mq_4711_01234567"
OLD = Remain(SHM, LOADS, FILE, UID, device=26, inode=5, modified_ns=999_000 * 10**9, size=16384)
SOCK = replace(OLD, place=TMP, name="tmpab12_xyz", kind=SOCKET)


@pytest.mark.parametrize(
    ("place", "name", "pid"),
    [
        (SHM, LOADS, None),
        (SHM, QUEUE, 4711),
        (SHM, "psm_0a1b2c3d", None),
        (SHM, "sem.mp-a_0zzzzz", None),
        (SHM, "torch_4711_1234567_0", 4711),
        (SHM, "nccl-aB3xYz", None),
        (SHM, "cuda.shm.0.1a2b.1", None),
        (TMP, "vllm_dist_" + "0a" * 16, None),
        (TMP, "01234567-89ab-cdef-0123-456789abcdef", None),
        (TMP, "tmpab12_xyz", None),
    ],
)
def test_names_that_engines_leave(place: str, name: str, pid: int | None) -> None:
    assert named(place, name)
    assert pid_in(replace(OLD, place=place, name=name)) == pid


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (TMP, LOADS),
        (SHM, "tmpab12_xyz"),
        (SHM, LOADS + "\n"),
        (SHM, "x" + LOADS),
        (SHM, "sgl_shm_mq_4711_0123456"),
        (SHM, "sgl_shm_mq_-1_01234567"),
        (SHM, "sgl_shm_mq_٣_01234567"),
        (SHM, "psm_0A1B2C3D"),
        (SHM, "psm_mine"),
        (SHM, "sem.mine"),
        (SHM, "torch_notes"),
        (SHM, "torch_"),
        (SHM, "nccl-results"),
        (SHM, "cuda.shm.backup"),
        (SHM, "pulse-shm-1234"),
        (SHM, ""),
        (TMP, "tmp"),
        (TMP, ".X11-unix"),
    ],
)
def test_names_that_only_look_like_them(place: str, name: str) -> None:
    assert named(place, name) is None
    assert not meant(replace(OLD, place=place, name=name))


@pytest.mark.parametrize(("kind", "expected"), [(SOCKET, True), (FILE, False), ("directory", False), ("link", False)])
def test_of_a_common_name_only_sockets_are_meant(kind: str, expected: bool) -> None:
    """Any program calls its files so: mktemp(1), Python's tempfile."""
    assert meant(replace(SOCK, kind=kind)) is expected


def test_common_names_of_others_are_no_news() -> None:
    assert concerns(SOCK, OWNER)
    assert not concerns(replace(SOCK, uid=1000), OWNER)
    assert concerns(replace(OLD, uid=1000), OWNER)


@pytest.mark.parametrize(
    ("remain", "moment", "rule"),
    [
        (OLD, NOW, None),
        (SOCK, NOW, None),
        (replace(OLD, kind="link"), NOW, "no-plain-file"),
        (replace(OLD, kind="directory"), NOW, "no-plain-file"),
        (replace(OLD, kind="pipe"), NOW, "no-plain-file"),
        (replace(OLD, kind=SOCKET), NOW, "no-plain-file"),
        (replace(OLD, name="notes"), NOW, "no-plain-file"),
        (replace(OLD, uid=1000), NOW, "other-user"),
        (replace(OLD, uid=0), NOW, "other-user"),
        (replace(OLD, links=2), NOW, "linked"),
        (replace(OLD, modified_ns=999_941 * 10**9), NOW, "young"),
        (replace(OLD, modified_ns=999_940 * 10**9), NOW, None),
        (replace(OLD, modified_ns=2_000_000 * 10**9), NOW, "young"),
        (replace(OLD, modified_ns=999_950 * 10**9), Moment(1_000_000.0, boot=999_960.0), None),
        (replace(OLD, modified_ns=999_970 * 10**9), Moment(1_000_000.0, boot=999_960.0), "young"),
        (replace(OLD, kind="link", uid=1000), NOW, "no-plain-file"),
    ],
)
def test_kept_for_what_it_is(remain: Remain, moment: Moment, rule: str | None) -> None:
    decision = keep_by_itself(remain, OWNER, moment)
    assert (decision.rule if decision else None) == rule
    assert decision is None or (not decision.remove and decision.why)


WITH_PID = replace(OLD, name=QUEUE)
NOBODY = Seen(pids=frozenset({1, 2, 3}), uids=frozenset({0, 1000}))


@pytest.mark.parametrize(
    ("remain", "seen", "rule"),
    [
        (OLD, NOBODY, "leftover"),
        (WITH_PID, NOBODY, "leftover"),
        (WITH_PID, replace(NOBODY, pids=frozenset({4711})), "pid-alive"),
        (OLD, replace(NOBODY, uids=frozenset({UID})), "user-alive"),
        (WITH_PID, replace(NOBODY, uids=frozenset({UID})), "leftover"),
        (OLD, replace(NOBODY, held=frozenset({(26, 5)})), "held"),
        (WITH_PID, replace(NOBODY, held=frozenset({(26, 5)})), "held"),
        (OLD, replace(NOBODY, held=frozenset({(26, 6), (27, 5)})), "leftover"),
        (OLD, replace(NOBODY, limits=("1 process cannot be read",)), "partial-sight"),
        (WITH_PID, replace(NOBODY, limits=("1 process cannot be read",)), "partial-sight"),
        (WITH_PID, replace(NOBODY, pids=frozenset({4711}), limits=("x",)), "pid-alive"),
    ],
)
def test_judged_by_what_lives(remain: Remain, seen: Seen, rule: str) -> None:
    decision = judge(remain, OWNER, seen)
    assert decision.rule == rule
    assert decision.remove is (rule == "leftover")
    assert decision.why


def test_of_root_only_a_name_with_a_dead_process_can_go() -> None:
    """Process 1 is root's: somebody always lives who may own a file whose name tells no process."""
    root = Owner(0, "root")
    assert judge(replace(OLD, uid=0), root, NOBODY).rule == "user-alive"
    assert judge(replace(WITH_PID, uid=0), root, NOBODY).remove


SETS = st.frozensets(st.integers(0, 5))


@given(
    st.sampled_from([LOADS, QUEUE, "sgl_shm_mq_3_01234567"]),
    st.builds(Seen, pids=SETS, uids=SETS, held=st.frozensets(st.tuples(SETS.map(len), SETS.map(len))),
              limits=st.sampled_from([(), ("x",)])),
)  # fmt: skip
def test_nothing_that_may_be_anybodys_goes(name: str, seen: Seen) -> None:
    remain = replace(OLD, name=name, uid=2, device=1, inode=1)
    decision = judge(remain, Owner(2, "two"), seen)
    if decision.remove:
        assert not seen.limits
        assert (1, 1) not in seen.held
        assert pid_in(remain) not in seen.pids
        assert pid_in(remain) is not None or 2 not in seen.uids


def test_words() -> None:
    gone = [judge(replace(OLD, inode=number), OWNER, NOBODY) for number in range(5)]
    assert removed_text(gone).startswith("removed 5 files of earlier runs, 80 KiB: /dev/shm/sglang_loads_")
    assert removed_text(gone).endswith("; and 2 more")
    kept = keep_by_itself(replace(OLD, uid=1000), OWNER, NOW)
    assert kept
    assert kept_text([kept]) == (
        f"left alone 1 file named like an engine's, 16 KiB: /dev/shm/{LOADS}, because: "
        "user 1000's, and the unit runs as gpu-lifecycle (998)"
    )


@pytest.mark.parametrize(
    ("used", "text"),
    [(None, ""), (0.0, ""), (0.9, ""), (0.97, "the host's /dev/shm is 97% full, see: ls -l /dev/shm")],
)
def test_a_full_shm_is_named(used: float | None, text: str) -> None:
    assert full_text(used) == text
