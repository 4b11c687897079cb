"""Model folders as published ones are, tiny: real configs' fields, real headers, no weights to speak of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KIMI: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {
        "hidden_size": 7168, "vocab_size": 163840, "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512,
        "num_hidden_layers": 61, "n_routed_experts": 384, "max_position_embeddings": 262144,
        "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096},
        "quantization_config": {"quant_method": "compressed-tensors"},
    },
}  # fmt: skip
KIMI_DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 7168, "vocab_size": 163840, "draft_vocab_size": 32000,
    "num_attention_heads": 64, "num_key_value_heads": 64, "num_hidden_layers": 1, "max_position_embeddings": 262144,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "vocab_size": 129280, "num_attention_heads": 128,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "num_hidden_layers": 61, "n_routed_experts": 256,
    "max_position_embeddings": 163840, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "vocab_size": 128256, "num_attention_heads": 64,
    "num_key_value_heads": 8, "num_hidden_layers": 80, "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
}  # fmt: skip
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 4096, "vocab_size": 151936, "num_attention_heads": 64,
    "num_key_value_heads": 4, "num_hidden_layers": 94, "num_experts": 128, "max_position_embeddings": 40960,
    "rope_scaling": None,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "vocab_size": 201088, "num_attention_heads": 64,
    "num_key_value_heads": 8, "num_hidden_layers": 36, "num_local_experts": 128, "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
FAMILIES = {"kimi": KIMI, "deepseek": DEEPSEEK, "llama": LLAMA, "qwen": QWEN, "gpt-oss": GPT_OSS}


def shard(tensors: dict[str, int]) -> bytes:
    """A safetensors file with tensors of so many bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def write_model(folder: Path, config: dict[str, Any], shards: int = 3) -> Path:
    """A sound folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    names = [f"model-{n:05}-of-{shards:05}.safetensors" for n in range(1, shards + 1)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(shard({f"layers.{number}.weight": 64, f"layers.{number}.bias": 8}))
    table = {f"layers.{number}.{part}": name for number, name in enumerate(names) for part in ("weight", "bias")}
    index = {"metadata": {"total_size": 72 * shards}, "weight_map": table}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
