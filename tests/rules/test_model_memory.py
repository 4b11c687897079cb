"""Weights and keys and values against the memory of the GPUs, and what options change of a config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_lifecycle.rules.command import read_command
from gpu_lifecycle.rules.engines import ENGINES
from gpu_lifecycle.rules.model_config import derived_length, overridden
from gpu_lifecycle.rules.model_folder import ModelFolder, Shard
from gpu_lifecycle.rules.model_memory import CODES
from gpu_lifecycle.rules.preflight import Plan, judge
from tests.model_folders import GPT_OSS, KIMI, LLAMA

GIB = 1 << 30
NAMES = ("config.json", "model.safetensors", "tokenizer.json")
KIMI_MLA = {**KIMI, "text_config": {**KIMI["text_config"], "qk_rope_head_dim": 64}}


def folder(config: dict[str, Any], size: int) -> ModelFolder:
    return ModelFolder("/m/target", "", NAMES, config, shards={"model.safetensors": Shard(size, size)})


def plan(words: str, config: dict[str, Any], size: int, total: int | None = 141 * GIB, engine: str = "sglang") -> Plan:
    command = read_command(ENGINES[engine], ["x", "--model", "/m/target", *words.split()], {})
    return Plan(engine, command, {}, folder(config, size), None, 8, memory=total)


def found(made: Plan) -> list[tuple[str, str]]:
    return [(str(item.level), item.code) for item in judge(made)]


def test_kimi_on_eight_h200() -> None:
    made = plan("--tp 8 --mem-fraction-static 0.85", KIMI_MLA, 547 * GIB)
    (item,) = judge(made)
    assert (item.level, item.code) == ("info", "kv-room")
    # (0.85 x 141 - 547 / 8) GiB / ((512 + 64) x 61 layers x 2 bytes)
    assert int((0.85 * 141 - 547 / 8) * GIB / (576 * 61 * 2)) == pytest.approx(int(item.message.split()[3]), rel=1e-3)
    for words in ("0.85 x 141 GiB - 68.4 GiB of weights", "68.6 KiB", "262144"):
        assert words in item.message


@pytest.mark.parametrize(
    ("words", "size", "total", "code"),
    [
        ("--tp 8", 547, 64, ("error", "weights-too-large")),
        ("--tp 8 --mem-fraction-static 0.8", 547, 80, ("warn", "weights-too-large")),
        ("--tp 8 --mem-fraction-static 0.88", 547, 80, ("warn", "kv-room")),
        ("--tp 4 --pp 2", 547, 64, ("error", "weights-too-large")),
        ("--tp 8 --mem-fraction-static 0.88 --context-length 20000", 547, 80, ("info", "kv-room")),
    ],
)
def test_sizes(words: str, size: int, total: int, code: tuple[str, str]) -> None:
    assert found(plan(words, KIMI_MLA, size * GIB, total * GIB)) == [code]


def test_the_draft_counts() -> None:
    options = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /m/draft"
    made = plan(f"--tp 8 --mem-fraction-static 0.88 {options}", KIMI_MLA, 547 * GIB, 80 * GIB)
    made = replace(made, draft=replace(folder(KIMI_MLA["text_config"], 30 * GIB), path="/m/draft"))
    (item,) = (item for item in judge(made) if item.code in CODES)
    assert item.code == "weights-too-large"
    assert "547 GiB + 30 GiB of the draft, over 8" in item.message


@pytest.mark.parametrize(
    ("words", "change", "total"),
    [
        ("--tp 8", {}, None),
        ("--tp 8 --device cpu", {}, 1),
        ("--tp 8 --cpu-offload-gb 200", {}, 1),
        ("--tp 8 --quantization fp8", {"quantization_config": None}, 1),
        ("--tp 8", {"torch_dtype": "float32"}, 1),
    ],
)
def test_what_cannot_be_told_is_not_said(words: str, change: dict[str, Any], total: int | None) -> None:
    assert found(plan(words, {**LLAMA, **change}, 140 * GIB, total)) == []


def test_layers_that_keep_less_are_no_estimate() -> None:
    assert found(plan("--tp 8", {**GPT_OSS, "layer_types": ["sliding_attention"]}, 60 * GIB)) == []
    assert found(plan("--tp 8", {**LLAMA, "sliding_window": 4096}, 140 * GIB)) == []


def test_key_value_heads_are_split_or_copied() -> None:
    def each(words: str) -> str:
        (item,) = judge(plan(words, LLAMA, 140 * GIB))
        return item.message.partition("/ ")[2].partition(" for")[0]

    assert each("--tp 8") == "40.0 KiB"  # 2 x 1 head x 128 x 80 layers x 2 bytes
    assert each("--tp 4") == "80.0 KiB"
    assert each("--tp 8 --kv-cache-dtype fp8_e4m3") == "20.0 KiB"
    assert each("--tp 8 --enable-dp-attention --dp 8") == "320.0 KiB"


def test_what_is_not_certain_is_no_error() -> None:
    assert found(replace(plan("--tp 8", LLAMA, 900 * GIB, 64 * GIB), certain=False)) == [("warn", "weights-too-large")]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "sglang", "vllm"),
    [
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, 40960, 131072),
        ({"max_position_embeddings": 262144, "rope_scaling": YARN}, 262144, 262144),
        ({"max_position_embeddings": 1000, "rope_scaling": {"type": "linear", "factor": 2.0}}, 2000, 2000),
        ({"max_position_embeddings": 1000, "seq_length": 2000}, 2000, 1000),
        ({"max_position_embeddings": 1000, "rope_scaling": {**YARN, "factor": "4"}}, 1000, None),
    ],
)
def test_the_engines_derive_lengths_in_their_own_ways(config: dict[str, Any], sglang: int, vllm: int | None) -> None:
    lengths = [read[0] if (read := derived_length(config, engine)) else None for engine in ("sglang", "vllm")]
    assert lengths == [sglang, vllm]


def test_overrides_change_the_config() -> None:
    config = {"max_position_embeddings": 40960, "text_config": {"a": 1, "b": 2}}
    assert overridden(config, '{"rope_scaling": {"factor": 4}, "text_config": {"a": 3}}') == {
        "max_position_embeddings": 40960, "rope_scaling": {"factor": 4}, "text_config": {"a": 3, "b": 2},
    }  # fmt: skip
    for text in (None, "", "[1]", "{", "null", "[" * 100_000, "?"):
        assert overridden(config, text) == config


def test_overrides_piece_by_piece_make_nothing_certain() -> None:
    words = ["vllm", "serve", "/m/x", "-tp", "7", "--hf-overrides.rope_scaling.factor", "4", "--data-parallel-size-local=2"]
    read = read_command(ENGINES["vllm"], words, {})
    assert (read.overrides, read.dp_local, read.tp) == ("?", 2, 7)
    assert found(Plan("vllm", read, {}, folder(LLAMA, GIB), None, 14))[0] == ("warn", "heads")


def test_copies_of_this_machine_are_counted() -> None:
    one = plan("--tensor-parallel-size 4 --data-parallel-size 8", LLAMA, GIB, None, "vllm")
    assert found(one) == [("warn", "claim-too-small")]
    assert found(plan("-tp 4 -dp 8 -dpl 2", LLAMA, GIB, None, "vllm")) == []
    assert found(plan("-tp 4 -dp 8 -dpl 3", LLAMA, GIB, None, "vllm")) == [("error", "claim-too-small")]
