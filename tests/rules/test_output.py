"""The engine's output as lines: nothing is lost, a bar is one line, and secrets are not kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.output import LINE_MAX, Line, Lines, kept, priority, telling


def whole(lines: list[Line]) -> list[bytes]:
    return [line.data for line in lines if line.whole]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"\n", [b""]),
        (b"\r  1%\r 50%\r100%\nnext\n", [b"100%", b"next"]),
        (b"a\0b\n", [b"a", b"b"]),
        (b"\xff\xfe\n", [b"\xff\xfe"]),
        (b"half", []),
    ],
)
def test_lines(data: bytes, expected: list[bytes]) -> None:
    assert whole(Lines().feed(data)) == expected


def test_a_bar_is_seen_while_it_is_drawn() -> None:
    lines = Lines()
    assert lines.feed(b"\rshards:  3% | 2/64 [") == [Line(b"shards:  3% | 2/64 [", whole=False)]
    assert lines.feed(b"\rshards:  9% | 6/64 [")[-1] == Line(b"shards:  9% | 6/64 [", whole=False)
    assert lines.feed(b"\n") == [Line(b"shards:  9% | 6/64 [")]


def test_a_line_without_an_end_is_cut_and_bounded() -> None:
    lines = Lines()
    found = [line for _ in range(100) for line in lines.feed(b"x" * 10_000)]
    assert sum(len(line.data) for line in found) + len(lines.pending) == 1_000_000
    assert max(len(line.data) for line in found) == LINE_MAX
    assert len(lines.pending) <= LINE_MAX


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"\r", b"\r\n", b"\0", b"a\r"])), st.integers(0, 40))
def test_it_does_not_matter_how_the_bytes_arrive(parts: list[bytes], at: int) -> None:
    """In one piece, in many, or with another reader in the middle: the same lines."""
    once = Lines()
    expected = whole(once.feed(b"".join(parts))) + whole(once.end())
    first = Lines()
    found = [line for part in parts[:at] for line in whole(first.feed(part))]
    second = Lines(first.pending)
    found += [line for part in parts[at:] for line in whole(second.feed(part))]
    assert found + whole(second.end()) == expected


@given(st.binary(max_size=400))
def test_without_carriage_returns_no_byte_is_lost(data: bytes) -> None:
    data = data.replace(b"\r", b"").replace(b"\0", b"")
    lines = Lines()
    assert b"\n".join([*whole(lines.feed(data)), lines.pending]) == data


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (b"INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)", 6),
        (b"(EngineCore pid=7) ERROR 12-02 10:00:00 [core.py:866] EngineCore failed to start.", 3),
        (b"WARNING 12-02 10:00:00 [config.py:1] x", 4),
        (b"[2026-12-02 10:00:00 TP0] Load weight begin. avail mem=78.1 GB", None),
        (b"[2026-12-02 10:00:00] ERROR: x", 3),
        (b"W1202 10:00:00.000000 7 init.cpp:1] x", 4),
        (b"E1202 10:00:00.000000 7 init.cpp:1] x", 3),
        (b"INFORMATION is no level", None),
        (b"an ERROR in the middle", None),
        (b"", None),
        (b"\xff\xff", None),
    ],
)
def test_a_level_only_where_it_is_clear(line: bytes, level: int | None) -> None:
    assert priority(line) == (level, line)


def test_the_prefix_of_sd_daemon_is_understood() -> None:
    assert priority(b"<3>broken") == (3, b"broken")
    assert priority(b"<9>not one") == (None, b"<9>not one")


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "(EngineCore pid=7) ERROR 12-02 10:00:00 [core.py:866] ValueError: Free memory on device",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "[rank0]:[E1202] Watchdog caught collective operation timeout: WorkNCCL",
        "[2026-12-02 10:00:00 TP3] NCCL error: unhandled cuda error",
        "KeyError",
    ],
)
def test_what_tells(line: str) -> None:
    assert telling(line)


@pytest.mark.parametrize(
    "line",
    [
        "[2026-12-02 10:00:00] Received sigquit from a child process. It usually means the child failed.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "Exception: WorkerProc initialization failed due to an exception in a background process.",
        'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
        "Traceback (most recent call last):",
        "errors_total 0",
        "(Worker pid=1619) WARNING 12-02 20:33:47 [utils.py:597] fallback to torch linear. Exception: x",
    ],
)
def test_what_does_not(line: str) -> None:
    assert not telling(line)


@pytest.mark.parametrize(
    "line",
    [
        b"server_args=ServerArgs(model_path='/m', api_key='sk-hidden')",
        b"non-default args: {'model': 'm', 'api_key': 'sk-hidden'}",
        b"launch --api-key sk-hidden --port 1",
        b"api_key='sk-hidden', port=1",
        b'"token": "sk-hidden"',
        b"HF_TOKEN=sk-hidden",
    ],
)
def test_secrets_are_not_kept(line: bytes) -> None:
    assert "sk-hidden" not in kept(line)


@given(st.binary(max_size=3000))
def test_whatever_it_says_it_is_kept_printable_and_bounded(data: bytes) -> None:
    text = kept(data)
    assert text.isprintable()
    assert len(text) <= 1100
    telling(text)
    priority(data)
