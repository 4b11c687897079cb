"""Phases of a load from lines as the engines write them; hostile text never breaks or turns one back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.phases import Load, Step, advance, left
from tests.standins.sglang_standin import log

SGLANG = [
    ("[2026-12-02 10:00:00] server_args=ServerArgs(model_path='/m')", Step.INIT),
    ("[2026-12-02 10:00:00 TP0] Init parallel begin. (backend=nccl)", Step.DISTRIBUTED),
    ("[2026-12-02 10:00:00 TP0] Init torch distributed begin.", Step.DISTRIBUTED),
    ("[2026-12-02 10:00:00 TP0] Load weight begin. avail mem=78.10 GB", Step.WEIGHTS),
    ("[2026-12-02 10:00:00 TP0] KV Cache is allocated. #tokens: 4096, KV size: 1.00 GB", Step.KV_CACHE),
    ("[2026-12-02 10:00:00 TP0] Memory pool end. avail mem=5.05 GB", Step.KV_CACHE),
    ("[2026-12-02 10:00:00 TP0] Capture cuda graph begin. This can take up to several minutes.", Step.GRAPHS),
    ("[2026-12-02 10:00:00 TP0] Capture draft extend cuda graph begin.", Step.GRAPHS),
    ("INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)", Step.WARMUP),
    ("[2026-12-02 10:00:00] The server is fired up and ready to roll!", Step.SERVING),
]
VLLM = [
    ("INFO 12-02 10:00:00 [utils.py:1] non-default args: {'model': 'm'}", Step.INIT),
    ("INFO 12-02 10:00:00 [parallel_state.py:1] rank 0 in world size 8 is assigned as DP rank 0", Step.DISTRIBUTED),
    ("INFO 12-02 10:00:00 [gpu_model_runner.py:1] Starting to load model m...", Step.WEIGHTS),
    ("INFO 12-02 10:00:00 [kv_cache_utils.py:1] GPU KV cache size: 1,048,576 tokens", Step.KV_CACHE),
    ("INFO 12-02 10:00:00 [api_server.py:1] Starting vLLM server on http://0.0.0.0:8000", Step.WARMUP),
    ("INFO:     Application startup complete.", Step.SERVING),
]


@pytest.mark.parametrize(("engine", "line", "step"), [*(("sglang", *x) for x in SGLANG), *(("vllm", *x) for x in VLLM)])
def test_markers(engine: str, line: str, step: Step) -> None:
    assert advance(Load(), line, engine).step is step


@pytest.mark.parametrize(
    ("engine", "line", "load"),
    [
        ("sglang", log.shard_bar(28, 40.0), Load(Step.WEIGHTS, 28, 64)),
        (
            "sglang",
            "Loading safetensors checkpoint shards:  43% Completed | 28/64 [00:40<00:51,  1.4s/it]",
            Load(Step.WEIGHTS, 28, 64),
        ),
        (
            "vllm",
            "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  9.1it/s]",
            Load(Step.WEIGHTS, 1, 2),
        ),
        ("sglang", "Capturing batches (bs=160 avail_mem=9.09 GB):  50%|#####     | 4/8 [00:01<00:01]", Load(Step.GRAPHS, 4, 8)),
        ("sglang", "loading shards:  43% Completed | 28/6", Load()),
        ("sglang", "loading shards:  43% Completed | 28/0 [", Load(Step.WEIGHTS)),
        ("sglang", "loading shards:  43% Completed | 99/64 [", Load(Step.WEIGHTS)),
    ],
)
def test_counters(engine: str, line: str, load: Load) -> None:
    assert advance(Load(), line, engine) == load


def test_a_whole_load_of_the_stand_in() -> None:
    load = Load()
    seen = [load.step]
    for _, line in log.milestones(80 << 30, 4096, 8192, 10.0):
        load = advance(load, line, "sglang")
        seen.append(load.step)
    assert sorted(set(seen)) == [Step.NONE, Step.DISTRIBUTED, Step.WEIGHTS, Step.KV_CACHE, Step.GRAPHS]
    assert seen == sorted(seen)


def test_what_is_counted_does_not_go_back() -> None:
    load = advance(Load(Step.WEIGHTS, 28, 64), log.shard_bar(12, 40.0), "sglang")
    assert load == Load(Step.WEIGHTS, 28, 64)
    assert advance(load, "TP7] Init parallel begin", "sglang") is load


@given(
    st.lists(st.sampled_from([line for line, _ in SGLANG]) | st.text(max_size=80)),
    st.sampled_from(["sglang", "vllm", "custom"]),
)
def test_a_phase_never_goes_back(lines: list[str], engine: str) -> None:
    load = Load()
    for line in lines:
        later = advance(load, line, engine)
        assert later.step > load.step or (later.step == load.step and later.part >= load.part)
        load = later
    assert engine != "custom" or load == Load()


@given(st.floats(0, 1), st.floats(0, 1e9))
def test_what_is_left_is_never_negative(part: float, seconds: float) -> None:
    assert (left(part, seconds) or 0) >= 0
