"""Phases of a load from lines as the engines write them; hostile text never breaks or turns one back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.engines import ENGINES
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
    ("[2026-12-02 10:00:00 TP0] Capture target prefill CUDA graph begin. backend=tc_piecewise", Step.GRAPHS),
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
LLAMA_CPP = [
    ("main: loading model", Step.INIT),
    ("0.00.270.696 I srv    load_model: loading model '/models/m.gguf'", Step.INIT),
    ("load_tensors: loading model tensors, this can take a while... (mmap = true)", Step.WEIGHTS),
    ("load_tensors: offloading 12 repeating layers to GPU", Step.WEIGHTS),
    ("load_tensors:        CUDA0 model buffer size =  4403.49 MiB", Step.WEIGHTS),
    ("llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB", Step.KV_CACHE),
    ("common_init_from_params: warming up the model with an empty run - please wait ...", Step.WARMUP),
    ("main: model loaded", Step.WARMUP),
    ("main: server is listening on http://127.0.0.1:8080 - starting the main loop", Step.SERVING),
    ("srv  update_slots: all slots are idle", Step.SERVING),
    # one whole start of build 11434, which says no more by default
    ("0.00.005.256 I srv    load_model: loading model '/models/tiny.gguf'", Step.INIT),
    ("0.00.015.228 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 512, kv_unified = 'false'", Step.KV_CACHE),
    ("0.00.018.191 I srv  llama_server: model loaded", Step.WARMUP),
    ("0.00.018.206 I srv  llama_server: listening on http://127.0.0.1:38081", Step.SERVING),
    ("main: HTTP server is listening, hostname: 127.0.0.1, port: 8080, http threads: 31", Step.NONE),
]
TGI = [
    ("2026-12-02T10:00:00.1Z  INFO text_generation_launcher: Args {", Step.INIT),
    ("2026-12-02T10:00:00.1Z  INFO download: text_generation_launcher: Starting check and download process for m", Step.INIT),
    ("2026-12-02T10:00:00.1Z  INFO shard-manager: text_generation_launcher: Starting shard rank=0", Step.WEIGHTS),
    ("INFO shard-manager: text_generation_launcher: Waiting for shard to be ready... rank=3", Step.WEIGHTS),
    ("INFO text_generation_router::server: router/src/server.rs:1572: Warming up model", Step.KV_CACHE),
    ("INFO text_generation_launcher: Cuda Graphs are enabled for sizes [32, 16, 8, 4, 2, 1]", Step.GRAPHS),
    ("INFO text_generation_router: router/src/main.rs:354: Setting max batch total tokens to 43808", Step.WARMUP),
    ("INFO text_generation_router: router/src/main.rs:355: Connected", Step.SERVING),
    ('{"level":"INFO","message":"Connected","target":"text_generation_router"}', Step.SERVING),
]
TRITON = [
    ("I1202 10:00:00.1 1 pinned_memory_manager.cc:277] \"Pinned memory pool is created at '0x7a9f' with size 1\"", Step.INIT),
    ('I1202 10:00:00.1 1 model_lifecycle.cc:473] "loading: tensorrt_llm:1"', Step.WEIGHTS),
    ("[TensorRT-LLM][INFO] Loaded engine size: 3404 MiB", Step.WEIGHTS),
    ("[TensorRT-LLM][INFO] Max tokens in paged KV cache: 38400. Allocating 5033164800 bytes.", Step.KV_CACHE),
    ("I1202 10:00:00.1 62 grpc_server.cc:3914] Started GRPCInferenceService at 0.0.0.0:8001", Step.WARMUP),
    ("I1202 10:00:00.1 62 http_server.cc:2717] Started HTTPService at 0.0.0.0:8000", Step.SERVING),
]
TENSORRT_LLM = [
    ("[TensorRT-LLM] TensorRT-LLM version: 0.20.0", Step.INIT),
    ("[TensorRT-LLM][INFO] Refreshed the MPI local session", Step.DISTRIBUTED),
    ("[12/02/2026-10:00:00] [TRT-LLM] [I] Rank 0 uses 8.46 GB for model weights.", Step.WEIGHTS),
    ("[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.01 GiB for max tokens in paged KV cache (8256).", Step.KV_CACHE),
    ("[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 257 [window size=8193]", Step.KV_CACHE),
    ("[TRT-LLM] [I] Creating CUDA graph instances for 32 batch sizes.", Step.GRAPHS),
    ("[TRT-LLM] [I] Run generation-only CUDA graph warmup for batch size=4, draft_len=0", Step.GRAPHS),
    ("INFO:     Started server process [1234]", Step.WARMUP),
    ("INFO:     Application startup complete.", Step.SERVING),
]
OLLAMA = [
    ('level=INFO source=routes.go:1297 msg="Listening on 127.0.0.1:11434 (version 0.13.1)"', Step.INIT),
    ('level=INFO source=server.go:1350 msg="waiting for llama runner to start responding"', Step.WEIGHTS),
    ('level=DEBUG source=server.go:625 msg="model load progress 0.18"', Step.WEIGHTS),
    ("llama_kv_cache_init:      CUDA0 KV buffer size =   512.00 MiB", Step.KV_CACHE),
    ('level=INFO source=server.go:1339 msg="llama runner started in 29.96 seconds"', Step.SERVING),
]
MARKED = {
    "sglang": SGLANG, "vllm": VLLM, "llama.cpp": LLAMA_CPP, "tgi": TGI, "triton": TRITON, "tensorrt-llm": TENSORRT_LLM,
    "ollama": OLLAMA,
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "line", "step"), [(engine, line, step) for engine, lines in MARKED.items() for line, step in lines]
)
def test_markers(engine: str, line: str, step: Step) -> None:
    assert advance(Load(), line, engine).step is step


@pytest.mark.parametrize("engine", MARKED)
def test_the_lines_of_a_start_in_their_order_show_every_phase_once(engine: str) -> None:
    load, seen = Load(), [Step.NONE]
    for line, _ in MARKED[engine]:
        load = advance(load, line, engine)
        seen.append(load.step)
    assert seen == sorted(seen)
    assert {Step.WEIGHTS, Step.SERVING} < set(seen)


def test_every_engine_but_a_custom_one_has_phases() -> None:
    assert set(MARKED) == set(ENGINES) - {"custom"}


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
        # SGLang 0.5.23 model_executor/runner/prefill_cuda_graph_runner.py:1734, model_loader/weight_utils.py:1688
        (
            "sglang",
            "Capturing prefill shape (num_tokens=512 avail_mem=9.09 GB):  25%|##5       | 2/8 [00:01<00:03]",
            Load(Step.GRAPHS, 2, 8),
        ),
        ("sglang", "Loading safetensors using Runai Model Streamer:  50%|##   | 4/8 [00:01<00:01]", Load(Step.WEIGHTS, 4, 8)),
        # vLLM 0.32.0 v1/worker/gpu_model_runner.py:6657, v1/worker/gpu/spec_decode/multi_module_mtp/speculator.py:128
        (
            "vllm",
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  25%|##5       | 2/8 [00:00<00:01,  5.10it/s]",
            Load(Step.GRAPHS, 2, 8),
        ),
        ("vllm", "Capturing multi-module MTP CUDA graphs (FULL):  25%|##5    | 2/8 [00:00<00:01]", Load(Step.GRAPHS, 2, 8)),
        ("vllm", "Capturing dflash CUDA graphs (FULL):  25%|##5       | 2/8 [00:00<00:01]", Load(Step.GRAPHS, 2, 8)),
        ("tensorrt-llm", "Loading weights concurrently:  35%|###5      | 217/617 [00:01<00:02]", Load(Step.WEIGHTS, 217, 617)),
        ("ollama", 'msg="model load progress 0.18"', Load(Step.WEIGHTS, 18, 100)),
        ("ollama", 'msg="model load progress 0.00"', Load(Step.WEIGHTS)),
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
    st.lists(st.sampled_from([line for lines in MARKED.values() for line, _ in lines]) | st.text(max_size=80)),
    st.sampled_from([*MARKED, "custom"]),
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
