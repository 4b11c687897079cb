"""What processes are doing, in words that fit into a status line."""

from __future__ import annotations

import pytest

from gpu_lifecycle.rules.doing import LIMIT, Doing, summary
from gpu_lifecycle.rules.stuck import Thread


def one(title: str, state: str = "S", where: str = "futex_wait_queue", pid: int = 7) -> Doing:
    return Doing(pid, title, (Thread(pid, state, where),))


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ([], ""),
        ([Doing(7, "gone", ())], ""),
        ([one("sglang::scheduler_TP0"), one("sglang::scheduler_TP17")], "2 sglang::scheduler_TP* waiting in futex_wait_queue"),
        ([one("/opt/bin/python3.11 -m sglang.launch_server --tp 8", "R", "")], "sglang.launch_server running"),
        ([one("python3 -m", "R", "")], "python3 running"),
        ([one("a", "D", "nfs_wait_bit_killable"), one("b", "T", "")], "a uninterruptible in nfs_wait_bit_killable; b stopped"),
        ([one("a", "S", "")], "a waiting"),
        ([one("", "?", "x")], "a process in state ?"),
        ([one("{where}", "D", "{x}")], "{where} uninterruptible in {x}"),
        ([one(f"p{n}", "R", "") for n in range(9)], "p0 running; p1 running; p2 running; p3 running; p4 running; 4 more"),
    ],
)
def test_words(processes: list[Doing], words: str) -> None:
    assert summary(processes) == words


def test_the_thread_that_cannot_be_interrupted_speaks_for_its_process() -> None:
    threads = (Thread(7, "S", "futex_wait_queue"), Thread(8, "D", "folio_wait_bit_common"), Thread(9, "R", ""))
    assert summary([Doing(7, "loader", threads)]) == "loader uninterruptible in folio_wait_bit_common"


def test_hostile_titles_are_made_safe_and_short() -> None:
    said = summary([one("x" * 500 + "\x1b[2J\n", pid=n) for n in range(3)] + [one("\n\x1b[31m")])
    assert said.isprintable()
    assert len(said) <= LIMIT
