"""Log lines on stderr, spelled as the real server spells them."""

from __future__ import annotations

import contextlib
import os
import time

GB = 1 << 30
SHARDS = 64
# Part of the load time at which each line is due; the memory grows between weights begin and graph end.
WEIGHTS_BEGIN = 0.12
WEIGHTS_END = 0.75
POOL_END = 0.82
GRAPH_END = 0.95


def write(text: str) -> None:
    """One write, so that lines of several processes do not mix; a lost reader is no error."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "surrogateescape"))


def line(text: str, rank: str = "") -> None:
    """A line with the engine's prefix."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    write(f"[{stamp}{' ' + rank if rank else ''}] {text}\n")


def access(peer: str, method: str, path: str, status: int, reason: str) -> None:
    """A line of the HTTP server's access log."""
    write(f'INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {reason}\n')


def memory_share(progress: float) -> float:
    """How much of its memory a worker holds at this part of the load: weights 85 %, pool, graphs."""
    points = ((WEIGHTS_BEGIN, 0.01), (WEIGHTS_END, 0.85), (POOL_END, 0.97), (GRAPH_END, 1.0))
    before, share = 0.0, 0.0
    for at, target in points:
        if progress < at:
            return share + (target - share) * (progress - before) / (at - before)
        before, share = at, target
    return 1.0


def shards_done(progress: float) -> int:
    """Shards read at this part of the load."""
    part = (progress - WEIGHTS_BEGIN) / (WEIGHTS_END - WEIGHTS_BEGIN)
    return max(0, min(SHARDS, int(part * SHARDS)))


def shard_bar(done: int, seconds: float) -> str:
    """The progress bar: carriage return, no newline before the end."""
    rate = done / seconds if seconds > 0 else 0.0
    left = (SHARDS - done) / rate if rate else 0.0
    bar = (
        f"\rMulti-thread loading shards: {done * 100 // SHARDS:3d}% Completed | {done}/{SHARDS} "
        f"[{_clock(seconds)}<{_clock(left)}, {rate:5.2f}it/s]"
    )
    return bar + ("\n" if done == SHARDS else "")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def milestones(total: int, tokens: int, context: int, seconds: float) -> list[tuple[float, str]]:
    """(part of the load, line) of one rank, in order."""
    free = 1.1 * total / GB

    def left(share: float) -> str:
        return f"avail mem={free - share * total / GB:.2f} GB"

    return [
        (0.03, "Init parallel begin. (backend=nccl)"),
        (0.10, f"Init parallel ends. elapsed={seconds * 0.07:.2f} s, mem usage=0.11 GB"),
        (0.11, f"Memory baseline taken. {left(0)}"),
        (WEIGHTS_BEGIN, f"Load weight begin. {left(0.01)}"),
        (
            WEIGHTS_END,
            (
                f"Load weight end. elapsed={seconds * 0.63:.2f} s, type=StandInForCausalLM, "
                f"dtype=torch.bfloat16, {left(0.85)}, mem usage={0.84 * total / GB:.2f} GB."
            ),
        ),
        (0.80, f"KV Cache is allocated. #tokens: {tokens}, KV size: {0.12 * total / GB:.2f} GB"),
        (POOL_END, f"Memory pool end. {left(0.97)}"),
        (0.83, f"Capture cuda graph begin. This can take up to several minutes. {left(0.97)}"),
        (GRAPH_END, f"Capture cuda graph end. Time elapsed: {seconds * 0.12:.2f} s. {left(1.0)}."),
        (
            0.97,
            (
                f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
                f"max_running_requests=64, context_len={context}, available_gpu_mem={free / 11:.2f} GB"
            ),
        ),
    ]
