"""How far a load is, from the lines that the engine writes: one table of markers per engine.

Source of the markers: the released wheels and runs of SGLang 0.5.8 to 0.5.23, vLLM 0.32.0 and llama.cpp's builds 11434 and
11549; the bars of graph capture, which needs a GPU, are from their sources. Those of the others, and of older builds, are from
logs that their users have published (in issues and guides: llama.cpp 2025 and 2026, TGI 1.4 to 3, Triton 23 to 25,
TensorRT-LLM 0.20 and 1, Ollama 0.5 to 0.13), not from runs of ours. An engine that is not in the table has no phases, and is
judged by what can be seen of it from outside alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache


class Step(IntEnum):
    """The phases of a load, in order."""

    NONE = 0
    INIT = 1
    DISTRIBUTED = 2
    WEIGHTS = 3
    KV_CACHE = 4
    GRAPHS = 5
    WARMUP = 6
    SERVING = 7

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Step.NONE: "loading",
    Step.INIT: "initialising",
    Step.DISTRIBUTED: "connecting the GPUs",
    Step.WEIGHTS: "loading weights",
    Step.KV_CACHE: "allocating the KV cache",
    Step.GRAPHS: "capturing CUDA graphs",
    Step.WARMUP: "warming up",
    Step.SERVING: "serving",
}


@dataclass(frozen=True, slots=True)
class Load:
    """Where a load is; ``done`` of ``total`` shards or graphs in this phase, 0 of 0 where nothing is counted."""

    step: Step = Step.NONE
    done: int = 0
    total: int = 0

    @property
    def part(self) -> float:
        return self.done / self.total if self.total else 0.0


NOTHING_SAID = Load()
_BAR = r": +\d+%.{0,80}?\| *(\d{1,6})/(\d{1,6}) \["  # a bar of tqdm; the bracket shows that the number is whole
_SHARDS = tuple(
    (words + _BAR, Step.WEIGHTS) for words in ("loading shards", "checkpoint shards", r"Loading safetensors using [\w ]{1,40}")
)

_MARKERS: Mapping[str, tuple[tuple[str, Step], ...]] = {
    "sglang": (
        (r"server_args=", Step.INIT),
        (r"Init (?:torch distributed|parallel) begin", Step.DISTRIBUTED),
        (r"Load weight begin", Step.WEIGHTS),
        (r"KV Cache is allocated|Memory pool end", Step.KV_CACHE),
        (r"Capturing (?:batches|prefill shape).{0,60}?" + _BAR, Step.GRAPHS),
        (r"capture .{0,40}graph begin", Step.GRAPHS),
        (r"Uvicorn running on http", Step.WARMUP),
        (r"The server is fired up and ready to roll", Step.SERVING),
    ),
    "vllm": (
        (r"non-default args:|Initializing a V1 LLM engine", Step.INIT),
        (r"rank \d+ in world size", Step.DISTRIBUTED),
        (r"Starting to load model", Step.WEIGHTS),
        (r"KV cache size: [\d,]+ tokens", Step.KV_CACHE),
        (r"Capturing (?:[\w-]{1,20} ){0,3}CUDA graphs?.{0,60}?" + _BAR, Step.GRAPHS),
        (r"Starting vLLM server on", Step.WARMUP),
        (r"Application startup complete", Step.SERVING),
    ),
    "llama.cpp": (  # its port is open, and says 503, from the beginning
        (r"main: loading model|load_model: loading model|llama_model_loader: loaded meta data", Step.INIT),
        (r"load_tensors: (?:loading model tensors|offload)|model buffer size *=", Step.WEIGHTS),
        (r"KV buffer size *=|llama_kv_cache\w*: +size *=|load_model: initializing, n_slots = \d", Step.KV_CACHE),
        (r"warming up the model with an empty run|: model loaded\b", Step.WARMUP),
        (r"\blistening on (?:http|unix)|all slots are idle", Step.SERVING),
    ),
    "tgi": (
        (r"text_generation_launcher.{0,40}Args \{|Starting (?:check and )?download process", Step.INIT),
        (r"Starting shard|Waiting for shard.{0,10} to be ready", Step.WEIGHTS),
        (r"Warming up model|KV-cache blocks: \d+", Step.KV_CACHE),
        (r"Cuda Graphs are enabled for sizes", Step.GRAPHS),
        (r"Setting max batch total tokens to", Step.WARMUP),
        (r'text_generation_router.{0,80}: Connected\s*$|"message":"Connected"', Step.SERVING),
    ),
    "triton": (  # with the engine of a backend inside it, such as TensorRT-LLM's
        (r"Pinned memory pool is created at|Initializing Triton Inference Server", Step.INIT),
        (r"\bloading: [\w.-]+:\d+|TRITONBACKEND_ModelInstanceInitialize|Loaded engine size", Step.WEIGHTS),
        (r"in paged KV cache", Step.KV_CACHE),
        (r"Started GRPCInferenceService at", Step.WARMUP),
        (r"Started HTTPService at", Step.SERVING),
    ),
    "tensorrt-llm": (
        (r"TensorRT-LLM version:", Step.INIT),
        (r"MPI size: \d+|Refreshed the MPI local session", Step.DISTRIBUTED),
        (r"Loading weights concurrently" + _BAR, Step.WEIGHTS),
        (r"for model weights|prefetching .{1,300} to memory|Loading weights|Loaded engine size", Step.WEIGHTS),
        (r"in paged KV cache|Max KV cache (?:blocks|pages) per sequence", Step.KV_CACHE),
        (r"Creating CUDA graph instances for|Run generation-only CUDA graph warmup", Step.GRAPHS),
        (r"Started server process", Step.WARMUP),
        (r"Application startup complete", Step.SERVING),
    ),
    "ollama": (  # it serves at once, and loads when it is asked for a token
        (r"Listening on \S+:\d+", Step.INIT),
        (r"model load progress 0\.(\d\d)\b", Step.WEIGHTS),
        (r'starting (?:go )?runner|starting llama server|"waiting for llama runner to start', Step.WEIGHTS),
        (r"KV buffer size *=|kv cache\b.{0,60}\bsize=", Step.KV_CACHE),
        (r"llama runner started in", Step.SERVING),
    ),
}


@cache
def _markers(engine: str) -> tuple[tuple[re.Pattern[str], Step], ...]:
    """Compiled when its engine speaks: a start waits for no other's."""
    markers = (*_SHARDS, *_MARKERS[engine]) if engine in _MARKERS else ()
    return tuple((re.compile(pattern, re.IGNORECASE), step) for pattern, step in markers)


def advance(load: Load, text: str, engine: str) -> Load:
    """The load after this line. A phase never goes back, nor does what is counted in it: ranks speak in any order.

    The first marker of the table that fits counts, of those that do not lie behind.
    """
    for pattern, step in _markers(engine):
        match = pattern.search(text) if step >= load.step else None
        if match:
            return _counted(load if step == load.step else Load(step), match)
    return load


def _counted(load: Load, match: re.Match[str]) -> Load:
    """Two groups of a pattern are a count and its total; one is a percentage."""
    if not match.lastindex:
        return load
    new = Load(load.step, int(match[1]), int(match[2]) if match.lastindex == 2 else 100)
    return new if 0 < new.done <= new.total and new.part > load.part else load


def left(part: float, seconds: float) -> float | None:
    """Seconds until a phase is done of which ``part`` (0..1) took ``seconds``; None where too little is known."""
    return seconds * (1 - part) / part if part >= 0.05 and seconds >= 1.0 else None
