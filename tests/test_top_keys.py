"""What the keys of ``top`` do, and what fits on its screen: no key but y after r ever leads to a sweep."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpu_lifecycle.facts import GpuView, Identity
from gpu_lifecycle.jobs.glance import Glance
from gpu_lifecycle.jobs.top_screen import Choice, pressed, question, screen
from gpu_lifecycle.system.terminal import keys_unseen, woken
from tests.drawn import NOW, drawn, gpu, holders, seen

ROOT = Choice(unit="sglang-kimi", root=True)
GLANCE = seen()


def after(keys: list[str], choice: Choice = ROOT, glance: Glance = GLANCE) -> Choice:
    for key in keys:
        choice = pressed(choice, key, glance)
    return choice


def test_r_then_y_on_an_orphan_is_the_only_way() -> None:
    assert after(["down", "r", "y"]).go
    for keys in ("y", "ry", "dy", "dr", "drn", "drq", "drY", "drny", "drdy", "drr", "ddry"):
        assert not after([{"d": "down"}.get(key, key) for key in keys]).go, keys


def test_the_question_names_whom_a_sweep_would_end() -> None:
    asked = after(["down", "r"])
    assert question(asked, GLANCE) == "y: sweep for sglang-kimi, which ends 1 process (4711); any other key: no"
    assert "any other key: no" in drawn(screen(GLANCE, asked, 24, "top", NOW), 80)


@pytest.mark.parametrize(
    ("choice", "keys", "words"),
    [
        (replace(ROOT, root=False), ["down", "r"], "only root"),
        (replace(ROOT, unit=""), ["down", "r"], "gpu-lifecycle top UNIT"),
        (ROOT, ["r"], "choose a holder"),
        (ROOT, ["down", "down", "r"], "process 812 is not reaped: spare, by rule bystander: why of bystander"),
        (ROOT, ["down", "down", "down", "r"], "conflict, by rule tenant"),
        (ROOT, ["down", "r", "x"], "nothing was done"),
    ],
)
def test_what_is_not_reaped_gets_its_reason(choice: Choice, keys: list[str], words: str) -> None:
    found = after(keys, choice)
    assert not found.asking
    assert not found.go
    assert words in found.note


def test_arrows_stay_on_the_list() -> None:
    pids = [item.process.pid for item in GLANCE.holders]
    assert _pid(after(["down"] * 9)) == pids[-1]
    assert _pid(after(["down"] * 3 + ["up"] * 9)) == pids[0]
    assert _pid(after(["up"])) == pids[0]
    assert after(["down"], glance=Glance()).holder is None


def _pid(choice: Choice) -> int:
    assert choice.holder
    return choice.holder.pid


def test_a_holder_that_is_gone_is_no_longer_chosen() -> None:
    """Another process in its place on the list is not meant."""
    gone = replace(ROOT, holder=Identity("boot", 99, 1))
    assert "choose a holder" in after(["r"], gone).note


@pytest.mark.parametrize("gpus", [0, 1, 8, 16, 64])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 12)])
def test_it_fits_the_screen(gpus: int, size: tuple[int, int]) -> None:
    view = GpuView(tuple(gpu(index, 9 << 30) for index in range(gpus)))
    many = Glance(view.gpus, tuple(holders(["x" * 200] * 70)), GLANCE.units * 5, ("blind " * 40,))
    lines = drawn(screen(many, ROOT, size[1], "top", NOW), size[0]).rstrip("\n").split("\n")
    assert max(map(len, lines)) <= size[0]
    assert len(lines) <= size[1]
    assert lines[-1].startswith("q: quit")


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    outside, inside = pty.openpty()
    yield outside, inside
    os.close(outside)
    os.close(inside)


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"\x1b[A\x1b[Br", ["up", "down", "r"]), (b"\x1bOA\x1bOB", ["up", "down"]), (b"q", ["q"]), (b"\x1b[3~y", ["", "y"]),
        (b"\xff\xfe", ["ÿ", "þ"]), (b"\x1b", ["\x1b"]), (b"\x1b[", ["\x1b", "["]), (b"\x1b[1;5A", ["up"]),
    ],
)  # fmt: skip
def test_keys_are_read(terminal: tuple[int, int], typed: bytes, keys: list[str]) -> None:
    outside, inside = terminal
    mode = termios.tcgetattr(inside)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(inside, termios.TCSANOW, mode)
    with woken(inside) as reader:
        os.write(outside, typed)
        assert reader.read(5) == keys
        os.write(reader.wake, b"x")
        assert reader.read(5) == []
        os.write(outside, b"y")
        reader.forget()
        assert reader.read(0.05) == []


def test_a_terminal_of_somebody_else_is_not_changed(terminal: tuple[int, int]) -> None:
    before = termios.tcgetattr(terminal[1])
    with keys_unseen(terminal[1], at_once=True):
        assert termios.tcgetattr(terminal[1]) == before
