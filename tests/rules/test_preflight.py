"""Each fault alone gives exactly its finding, and a sound set-up none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Level
from gpu_lifecycle.rules.command import Command, read_command
from gpu_lifecycle.rules.engines import ENGINES
from gpu_lifecycle.rules.model_config import derived_length
from gpu_lifecycle.rules.model_folder import ABSENT, FILE, ModelFolder, Shard
from gpu_lifecycle.rules.preflight import CODES, Plan, judge
from tests.model_folders import FAMILIES, GPT_OSS, KIMI, KIMI_DRAFT, LLAMA, QWEN

SPECULATION = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /m/draft"
INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def folder(config: dict[str, Any], path: str = "/m/target") -> ModelFolder:
    names = ("config.json", INDEX, ONE, TWO, "tokenizer.json")
    return ModelFolder(path, "", names, config, index=(ONE, TWO), shards={ONE: Shard(90, 90), TWO: Shard(90, 90)})


def plan(words: str, target: dict[str, Any], draft: dict[str, Any] | None = None, **changes: Any) -> Plan:
    command = read_command(ENGINES["sglang"], ["sglang", "serve", "--model-path", "/m/target", *words.split()], {})
    made = Plan("sglang", command, {}, folder(target), folder(draft, "/m/draft") if draft else None, 8)
    return replace(made, **changes)


def found(plan: Plan) -> list[tuple[str, str]]:
    return [(str(item.level), item.code) for item in judge(plan)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_sound_model_gives_no_finding(family: str, engine: str) -> None:
    assert found(replace(plan("--tp 8", FAMILIES[family]), engine=engine)) == []


def test_a_sound_pair_gives_no_finding() -> None:
    options = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    assert found(plan(f"--tp 8 {SPECULATION} {options}", KIMI, KIMI_DRAFT)) == []


SHORT = {**KIMI_DRAFT, "max_position_embeddings": 131072}


def test_a_draft_that_is_too_short_names_both_files_both_values_and_both_cures() -> None:
    (finding,) = judge(plan(f"--tp 8 {SPECULATION}", KIMI, SHORT))
    assert (finding.level, finding.code) == (Level.ERROR, "draft-context")
    for words in ("131072", "262144", "/m/draft/config.json", "/m/target/config.json"):
        assert words in finding.message
    assert "--context-length 131072" in finding.hint
    assert "a draft that is made for 262144" in finding.hint
    assert "no cure" in finding.hint


def test_the_override_cures_nothing() -> None:
    env = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    seed = plan(f"--tp 8 {SPECULATION}", KIMI, SHORT, env=env)
    assert found(seed) == [("warn", "length-override"), ("error", "draft-context")]


def test_a_context_length_that_suits_the_draft_is_the_cure() -> None:
    assert found(plan(f"--tp 8 --context-length 131072 {SPECULATION}", KIMI, SHORT)) == []
    (finding,) = judge(plan(f"--tp 8 --context-length 200000 {SPECULATION}", KIMI, SHORT))
    assert "200000 (--context-length)" in finding.message


FAULTS: list[tuple[str, dict[str, Any], dict[str, Any] | None, tuple[str, str]]] = [
    ("--tp 7", KIMI, None, ("error", "heads")),
    ("--tp 8", {**QWEN, "num_key_value_heads": 3}, None, ("error", "kv-heads")),
    ("--tp 8 --ep-size 7", KIMI, None, ("warn", "experts")),
    ("--tp 4 --ep-size 8", KIMI, None, ("error", "experts")),
    ("--tp 8 --enable-dp-attention --dp 3", KIMI, None, ("error", "heads")),
    ("--tp 16", LLAMA, None, ("error", "claim-too-small")),
    ("--tp 8 --dp 2", LLAMA, None, ("warn", "claim-too-small")),
    ("--tp 8 --nnodes 3", LLAMA, None, ("error", "nodes")),
    ("--tp eight", LLAMA, None, ("error", "option-value")),
    ("--tp 8 --context-length 131073", LLAMA, None, ("error", "context-too-long")),
    ("--tp 8 --speculative-algorithm EAGLE3", KIMI, None, ("error", "draft-missing")),
    ("--tp 8 --speculative-draft-model-path /m/draft", KIMI, KIMI_DRAFT, ("warn", "draft-unused")),
    (f"--tp 8 {SPECULATION} --speculative-num-steps 3", KIMI, KIMI_DRAFT, ("warn", "speculative-options")),
    (f"--tp 8 {SPECULATION}", KIMI, {**KIMI_DRAFT, "hidden_size": 4096}, ("error", "draft-hidden-size")),
    (f"--tp 8 {SPECULATION}", KIMI, {**KIMI_DRAFT, "vocab_size": 32000}, ("warn", "draft-vocabulary")),
    (f"--tp 8 {SPECULATION}", KIMI, {**KIMI_DRAFT, "num_attention_heads": 60}, ("error", "heads")),
    (
        f"--tp 8 {SPECULATION}",
        KIMI,
        {**KIMI_DRAFT, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 61]}},
        ("warn", "draft-layers"),
    ),
    ("--tp 8", {**LLAMA, "hidden_size": "8192"}, None, ("warn", "config-odd")),
    ("--tp 8", {**LLAMA, "quantization_config": {"quant_method": "magic"}}, None, ("warn", "quantization-unknown")),
]


@pytest.mark.parametrize(("words", "target", "draft", "code"), FAULTS)
def test_each_fault_alone(words: str, target: dict[str, Any], draft: dict[str, Any] | None, code: tuple[str, str]) -> None:
    assert found(plan(words, target, draft)) == [code]


@pytest.mark.parametrize(
    ("target", "env", "level"),
    [
        (QWEN, {}, "error"),
        (LLAMA, {}, "error"),
        (GPT_OSS, {}, "warn"),  # YaRN, about which its releases differ
        ({**QWEN, "model_max_length": 32768}, {}, "warn"),
        (QWEN, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, "warn"),
    ],
)
def test_vllm_refuses_a_length_that_one_key_alone_says(target: dict[str, Any], env: dict[str, str], level: str) -> None:
    """vLLM 0.32.0: "User-specified max_model_len (1024) is greater than the derived max_model_len", status 1."""
    judged = judge(replace(plan("--tp 1", target), engine="vllm", env=env, command=Command(context_length=1 << 20)))
    assert [str(item.level) for item in judged if item.code == "context-too-long"] == [level]


BROKEN: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"state": ABSENT}, ("warn", "model-absent")),
    ({"shards": {ONE: Shard(90, 90)}, "names": ("config.json", INDEX, ONE, "tokenizer.json")}, ("error", "shard-missing")),
    ({"shards": {ONE: Shard(90, 90), TWO: Shard(89, 90)}}, ("error", "shard-truncated")),
    ({"shards": {ONE: Shard(90, 90), TWO: Shard(90, None, "its header is no JSON")}}, ("error", "shard-broken")),
    ({"index": (ONE,)}, ("warn", "shard-extra")),
    ({"index": None, "index_problem": "it is no JSON"}, ("error", "index-broken")),
    ({"names": ("config.json", INDEX, ONE, TWO)}, ("warn", "tokenizer-missing")),
    ({"config": None, "config_problem": "it is no JSON"}, ("error", "config-broken")),
    ({"config": None, "names": (INDEX, ONE, TWO, "tokenizer.json")}, ("warn", "config-missing")),
    ({"config_odd": "it names a key twice: a"}, ("warn", "config-odd")),
    ({"denied": (ONE,)}, ("warn", "model-denied")),
    ({"not_files": (ONE,), "shards": {TWO: Shard(90, 90)}}, ("warn", "not-a-file")),
    ({"index": None, "shards": {}, "names": ("config.json", "tokenizer.json")}, ("error", "weights-missing")),
]


@pytest.mark.parametrize(("changes", "code"), BROKEN)
def test_each_broken_folder_alone(changes: dict[str, Any], code: tuple[str, str]) -> None:
    assert found(replace(plan("--tp 8", LLAMA), target=replace(folder(LLAMA), **changes))) == [code]


PARTS = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
SPLIT = {PARTS[0]: Shard(90, 90), PARTS[1]: Shard(90, 90)}


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, []),
        ({"files": {PARTS[0]: Shard(90, 90)}}, [("error", "shard-missing")]),
        ({"files": SPLIT | {PARTS[1]: Shard(89, 90)}}, [("error", "shard-truncated")]),
        ({"files": SPLIT | {PARTS[1]: Shard(90, None, "it does not begin as a GGUF file")}}, [("error", "shard-broken")]),
        ({"files": SPLIT | {PARTS[1]: Shard(90)}}, []),  # not read to its end: not judged
        ({"files": {PARTS[0]: Shard(90, 90)}, "denied": (PARTS[1],)}, [("warn", "model-denied")]),
        ({"files": {PARTS[0]: Shard(90, 90)}, "not_files": (PARTS[1],)}, [("warn", "not-a-file")]),
    ],
)
def test_a_gguf_file_and_its_parts(changes: dict[str, Any], codes: list[tuple[str, str]]) -> None:
    model = ModelFolder("/models/m-00001-of-00002.gguf", FILE, parts=PARTS, files=SPLIT)
    judged = judge(Plan("llama.cpp", Command(model=model.path), target=replace(model, **changes)))
    assert [(str(item.level), item.code) for item in judged] == codes
    assert all(str(item.file).startswith("/models/m-0000") for item in judged)


@pytest.mark.parametrize("change", [{"certain": False}, {"env": {}}])
def test_what_is_not_certain_is_no_error(change: dict[str, Any]) -> None:
    words = "--tp 7" if "certain" in change else "--tp 7 --json-model-override-args {}"
    assert found(plan(words, KIMI, **change)) == [("warn", "heads")]


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (KIMI, 262144),
        (LLAMA, 131072),
        ({}, 2048),
        ({"max_position_embeddings": 1000, "rope_scaling": {"type": "linear", "factor": 4.0}}, 4000),
        ({"max_position_embeddings": 1000, "rope_scaling": {"factor": float("nan")}}, None),
        ({"max_position_embeddings": "1000"}, None),
        ({"seq_length": 10, "max_position_embeddings": 1000}, 10),
    ],
)
def test_the_derived_length(config: dict[str, Any], length: int | None) -> None:
    derived = derived_length(config)
    assert (derived and derived[0]) == length


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
MUTATED: Callable[[dict[str, Any]], Any] = lambda base: st.dictionaries(  # noqa: E731
    st.sampled_from([*base, "text_config", "eagle_config", "rope_scaling", "thinker_config"]), VALUES, max_size=4
).map(lambda changes: {**base, **changes})


@given(MUTATED(LLAMA), MUTATED(KIMI_DRAFT), st.integers(0, 70))
def test_any_config_is_judged(target: dict[str, Any], draft: dict[str, Any], tp: int) -> None:
    for item in judge(plan(f"--tp {tp} {SPECULATION}", target, draft)):
        assert item.code in CODES
        assert item.message.isprintable()


def test_nothing_known_is_nothing_found() -> None:
    assert judge(Plan("custom", Command())) == ()
