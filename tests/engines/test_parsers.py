"""Command lines as we read them, and as the parsers of SGLang and vLLM themselves do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_lifecycle.rules.command import config_file, flat_yaml, read_command
from gpu_lifecycle.rules.engines import ENGINES, draft_of, drains, endpoint, model_of, option
from tests.engines.place import Engines

pytestmark = pytest.mark.engines

FILE = {
    "a.yaml": "model-path: /m\ntp-size: 4\ncontext-length: 4096\n",
    "b.yaml": "model: /m\ntensor-parallel-size: 4\nport: 9\n",
}
SGLANG = """
--model-path /m
--model /m
--model=/m --port 31000
--model-path /m --host 0.0.0.0 --port=31001
--model-path /m --tp 8
--model-path /m --tp-size 8
--model-path /m --tensor-parallel-size=8
--model-path /m --tp 2 --tp 4
--model-path /m --tp-size 2 --tensor-parallel-size 4
--model-path /m --tensor-parallel 4
--model-path /m --pp-size 2 --dp-size 2 --ep-size 4
--model-path /m --pipeline-parallel-size 2 --data-parallel-size 2 --expert-parallel-size 4
--model-path /m --dp 2 --ep 2
--model-path /m --nnodes 2 --node-rank 0 --dist-init-addr h:1
--model-path /m --context-length 262144
--model-path /m --context-len 262144
--model-path /m --context-length 256k
--model-path /m --tp eight
--model-path /m --mem-fraction-static .85
--model-path /m --mem-fraction-static 0.85 --max-running-requests 4
--model-path /m --speculative-algorithm EAGLE3 --speculative-draft-model-path /d --speculative-num-steps 3
--model-path /m --speculative-algo EAGLE3 --speculative-draft-model /d --speculative-eagle-topk 1
--model-path /m --speculative-algorithm EAGLE3 --speculative-draft-model-path=/d --speculative-num-draft-tokens 4
--model-path /m --speculative-draft /d
--model-path /m --quantization fp8 --load-format dummy --device cpu
--model-path /m --tokenizer-path /t --skip-tokenizer-init --enable-dp-attention
--model-path /m --json-model-override-args {"a":1}
--model-path /m --kv-cache-dtype fp8_e5m2 --cpu-offload-gb 4
--model-path /m --served-model-name kimi --enable-metrics
--model-path /m --api-key k --trust-remote-code
--config a.yaml
--config a.yaml --tp 2
--tp 2 --config a.yaml --port 7
--model-path /m --tp_size 2
--port 1 --tp 2
"""
VLLM = """
serve /m
serve /m --port 8001 --host 127.0.0.1
serve --port 8001 --model /m
serve /m -tp 4
serve /m -tp=4 -pp 2
serve /m --tensor-parallel-size 4 --pipeline-parallel-size=2
serve /m --tensor_parallel_size 4
serve /m --tensor-parallel 4
serve /m -tp 2 -tp 4
serve /m --data-parallel-size 2 --data-parallel-size-local 1
serve /m -dp 2 -dpl 1
serve /m --max-model-len 32768
serve /m --max-model-len 32k
serve /m --max-model-len 32K
serve /m --max-model-len 25.6k
serve /m --max-model-len auto
serve /m --max-model-len -1
serve /m --max-model-len many
serve /m --max_model_len=4096
serve /m --gpu-memory-utilization 0.5
serve /m --gpu-memory-utilization=.9 --uds /run/v.sock
serve /m --speculative-config {"model":"/d","num_speculative_tokens":3}
serve /m --speculative-config.model /d --speculative-config.num_speculative_tokens 3
serve /m -sc {"model":"/d"}
serve /m --quantization fp8 --load-format dummy
serve /m -q awq --tokenizer /t
serve /m --hf-overrides {"a":1}
serve /m --hf-overrides.max_position_embeddings 9
serve /m --kv-cache-dtype fp8 --cpu-offload-gb 4
serve /m --served-model-name a b --shutdown-timeout 30
serve /m --shutdown-timeout 0
serve /m --api-key k --skip-tokenizer-init
serve --config b.yaml
serve /n --config b.yaml -tp 2
serve /m --config b.yaml --port 5
serve /m -tp eight
"""
FIELDS: Mapping[str, Mapping[str, str]] = {  # of Command -> the engine's own name
    "sglang": {
        "model": "model_path", "tp": "tp_size", "pp": "pp_size", "dp": "dp_size", "ep": "ep_size", "nnodes": "nnodes",
        "context_length": "context_length", "memory_fraction": "mem_fraction_static", "algorithm": "speculative_algorithm",
        "draft": "speculative_draft_model_path", "steps": "speculative_num_steps", "topk": "speculative_eagle_topk",
        "draft_tokens": "speculative_num_draft_tokens", "quantization": "quantization", "tokenizer": "tokenizer_path",
        "load_format": "load_format", "device": "device", "overrides": "json_model_override_args", "kv_dtype": "kv_cache_dtype",
        "offload": "cpu_offload_gb",
    },
    "vllm": {
        "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size",
        "dp_local": "data_parallel_size_local", "context_length": "max_model_len", "memory_fraction": "gpu_memory_utilization",
        "quantization": "quantization", "tokenizer": "tokenizer", "load_format": "load_format", "kv_dtype": "kv_cache_dtype",
        "offload": "cpu_offload_gb",
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=["sglang", "vllm"])
def readings(request: pytest.FixtureRequest, engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Each command line with what the engine reads in it (None: it refuses the words)."""
    folder = tmp_path_factory.mktemp("config")
    for name, text in FILE.items():
        (folder / name).write_text(text)
    lines = [line.split() for line in (SGLANG if request.param == "sglang" else VLLM).strip().splitlines()]
    program = [engines.python, str(Path(__file__).with_name("parsers.py")), request.param]
    done = subprocess.run(program, cwd=folder, input=json.dumps(lines), capture_output=True, text=True, timeout=300)
    told = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert len(told) == len(lines), done.stderr
    return [(request.param, folder, words, own) for words, own in zip(lines, told, strict=True)]


def test_there_are_enough_of_them() -> None:
    assert len((SGLANG + VLLM).strip().splitlines()) >= 50


def test_we_read_what_the_engine_reads(readings: list[Any]) -> None:
    """What is not said is None with us; where the engine refuses the words, nothing is asked of our reading."""
    refused = [words for _, _, words, own in readings if own is None]
    wrong = [text for reading in readings if reading[3] is not None for text in differences(*reading)]
    assert wrong == []
    assert len(refused) < len(readings) / 4, refused


def differences(name: str, folder: Path, words: list[str], own: dict[str, Any]) -> list[str]:
    engine = ENGINES[name]
    argv = ["python", "-m", "sglang.launch_server", *words] if name == "sglang" else ["vllm", *words]
    file = config_file(engine, argv)
    values = flat_yaml((folder / file).read_text()) if file else None
    ours = read_command(engine, argv, {}, values)
    found = [(field, getattr(ours, field), own.get(key)) for field, key in FIELDS[name].items()]
    found += [("wrong", bool(ours.wrong), False)]
    if file is None:  # what lies in the file is said by server.url and its like, where a probe needs it
        found += surface(name, argv, own)
    if name == "vllm" and file is None:
        found += [("model", ours.model, own.get("model_tag"))]
    return [f"{' '.join(words)}: {field}: {mine!r} != {theirs!r}" for field, mine, theirs in found if not same(mine, theirs)]


def surface(name: str, argv: list[str], own: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """What the probes go by."""
    engine = ENGINES[name]
    place = endpoint(engine, argv, {})
    found: list[tuple[str, Any, Any]] = [("draft", draft_of(engine, argv), draft(name, own))]
    found += [("flags", flags(name, argv), own_flags(name, own))]
    if not own.get("uds"):
        found += [("port", place.port, own.get("port", engine.default_port))]
        found += [("bind", place.bind or place.host, own.get("host") or engine.default_host)]
    if name == "vllm":
        found += [("uds", place.uds or None, own.get("uds"))]
        found += [("drains", drains(engine, argv), bool(own.get("shutdown_timeout")))]
    served = own.get("served_model_name")
    first = served[0] if isinstance(served, list) else served
    found += [("name", option(argv, engine.name_options), first), ("key", option(argv, engine.key_options), key(own))]
    return [*found, ("model again", model_of(engine, argv, {}), own.get("model_path") or own.get("model_tag"))]


def draft(name: str, own: dict[str, Any]) -> str | None:
    if name == "sglang":
        return own.get("speculative_draft_model_path")
    settings: dict[str, str] = own.get("speculative_config") or {}
    return settings.get("model")


def flags(name: str, argv: list[str]) -> set[str]:
    return set(read_command(ENGINES[name], argv, {}).flags)


def own_flags(name: str, own: dict[str, Any]) -> set[str]:
    return {flag for flag in ENGINES[name].flags if own.get(flag[2:].replace("-", "_"))}


def key(own: dict[str, Any]) -> str | None:
    told = own.get("api_key")
    return told[0] if isinstance(told, list) else told


def same(mine: Any, theirs: Any) -> bool:
    """Numbers may be text with us; -1 is "as the engine likes", which is not said."""
    if theirs is None or theirs == -1:
        return mine is None
    return bool(mine == theirs) or str(mine) == str(theirs) or _number(mine) == _number(theirs) is not None


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None
