"""A command line and its config file, read as the engine reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.command import Command, Wrong, config_file, flat_yaml, read_command
from gpu_lifecycle.rules.engines import ENGINES

SGLANG, VLLM, LLAMA = ENGINES["sglang"], ENGINES["vllm"], ENGINES["llama.cpp"]


def sglang(*words: str, file: dict[str, str] | None = None) -> Command:
    return read_command(SGLANG, ["python", "-m", "sglang.launch_server", *words], {}, file)


def test_the_whole_of_an_sglang_command() -> None:
    line = """--model-path /m/kimi --tp 8 --pp-size=2 --dp 4 --ep-size 8 --context-length 262144 --mem-fraction-static 0.85
    --speculative-algorithm EAGLE3 --speculative-draft-model-path /m/draft --speculative-num-steps 3 --speculative-eagle-topk 1
    --speculative-num-draft-tokens 4 --quantization fp8 --enable-dp-attention --nnodes 2 --api-key hidden"""
    read = sglang(*line.split())
    assert read == Command(
        model="/m/kimi", draft="/m/draft", tp=8, pp=2, dp=4, ep=8, nnodes=2, context_length=262144, memory_fraction=0.85,
        algorithm="EAGLE3", steps=3, topk=1, draft_tokens=4, quantization="fp8", flags=frozenset({"--enable-dp-attention"}),
    )  # fmt: skip
    assert "hidden" not in repr(read)


@pytest.mark.parametrize(
    ("words", "tp"),
    [
        (["--tp", "8"], 8),
        (["--tp=8"], 8),
        (["--tp-size", "8"], 8),
        (["--tensor-parallel-size=8"], 8),
        (["--tensor_parallel_size", "8"], 8),
        (["--tensor-par", "8"], 8),
        (["--tp", "2", "--tensor-parallel-size", "8"], 8),
        (["--", "--tp", "8"], None),
        ([], None),
    ],
)
def test_spellings(words: list[str], tp: int | None) -> None:
    assert sglang(*words).tp == tp


def test_an_option_cut_short_must_fit_one_only() -> None:
    assert sglang("--context-len", "4096").context_length == 4096
    assert sglang("--speculative-num", "4").steps is None
    assert sglang("--model", "/m").model == "/m"


def test_vllm_short_forms_positional_and_sizes() -> None:
    words = ["vllm", "serve", "/m/llama", "-tp", "4", "-pp=2", "-q", "awq", "--max-model-len", "32k"]
    read = read_command(VLLM, words, {})
    assert (read.model, read.tp, read.pp, read.quantization, read.context_length) == ("/m/llama", 4, 2, "awq", 32000)
    assert read_command(VLLM, [*words, "--max-model-len=32K"], {}).context_length == 32768
    thousands = read_command(VLLM, [*words, "--max-model-len", "25.6k"], {})  # as vLLM's own help has it
    assert (thousands.context_length, thousands.wrong) == (25600, ())
    assert read_command(VLLM, [*words, "--max-model-len", "25.6K"], {}).wrong == (Wrong("--max-model-len", "25.6K"),)
    assert read_command(VLLM, [*words, "--max-model-len=auto"], {}).wrong == ()


def test_the_command_line_overrides_the_file() -> None:
    file = {"tensor-parallel-size": "4", "context-length": "1000", "enable-dp-attention": "true"}
    read = sglang("--tp", "8", file=file)
    assert (read.tp, read.context_length, read.flags) == (8, 1000, frozenset({"--enable-dp-attention"}))
    assert sglang(file=file).tp == 4


@pytest.mark.parametrize("text", ["eight", "8.0", "-8", "1e3", "9" * 40])
def test_a_value_that_is_no_number_is_said(text: str) -> None:
    (wrong,) = sglang(f"--tp={text}").wrong
    assert wrong.option == "--tp"


def test_a_fraction_that_is_none_is_said() -> None:
    assert sglang("--mem-fraction-static", "nan").wrong == (Wrong("--mem-fraction-static", "nan"),)


def test_the_environment_counts_last() -> None:
    tgi = ENGINES["tgi"]
    assert read_command(tgi, ["text-generation-launcher"], {"NUM_SHARD": "4", "MODEL_ID": "/m"}) == Command(model="/m", tp=4)
    assert read_command(tgi, ["text-generation-launcher", "--num-shard", "2"], {"NUM_SHARD": "4"}).tp == 2


def test_its_config_file_is_named() -> None:
    assert config_file(SGLANG, ["sglang", "serve", "--config=/etc/kimi.yaml"]) == "/etc/kimi.yaml"
    assert config_file(LLAMA, ["llama-server", "--config", "x"]) is None


def test_flat_yaml() -> None:
    text = "# kimi\n---\ntp-size: 8\nmodel-path: '/m/kimi'  # here\nenable-dp-attention: True\nlog: false\n"
    text += "list: [1, 2]\nmore:\n  a: 1\n"
    assert flat_yaml(text) == {"tp-size": "8", "model-path": "/m/kimi", "enable-dp-attention": "true"}


@pytest.mark.parametrize("text", ["a: &x 1", "a: |\n  b", "no mapping", 'a: "\\x41"', "a: !!int 3", "{a: 1}"])
def test_yaml_that_is_not_surely_read_says_nothing(text: str) -> None:
    assert flat_yaml(text) is None


@given(st.lists(st.text(max_size=30)), st.text(max_size=200))
def test_any_words_are_read(words: list[str], text: str) -> None:
    for engine in ENGINES.values():
        read = read_command(engine, words, {}, flat_yaml(text))
        assert read.tp is None or read.tp >= 0
