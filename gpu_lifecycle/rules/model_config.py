"""What a model's config.json says, as the engines read it (SGLang: ``get_hf_text_config``, ``get_context_length``)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_NESTED = ("text_config", "llm_config", "language_config")
_LENGTHS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_VLLM_LENGTHS = (*_LENGTHS, "n_positions", "max_target_positions", "max_seq_length", "seq_len")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
_NUMBERS = (
    *_LENGTHS,
    *_EXPERTS,
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
)
DEFAULT_LENGTH = 2048  # what SGLang takes where a config names none


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: nested in a multimodal model's config."""
    parts = [config, config.get("thinker_config")]
    for part in parts:
        for key in _NESTED:
            nested = part.get(key) if isinstance(part, dict) else None
            if isinstance(nested, dict) and "num_attention_heads" in nested:
                return nested
    return config


def number(config: Mapping[str, Any], key: str) -> int | None:
    """A whole number above 0; None: not said, or not said as one."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def experts(config: Mapping[str, Any]) -> int | None:
    """How many routed experts each layer has; None: it has none."""
    return next((found for key in _EXPERTS if (found := number(config, key))), None)


def wrong_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that must be whole numbers above 0 and are something else."""
    text = text_config(config)
    return tuple(key for key in _NUMBERS if text.get(key) is not None and number(text, key) is None and text[key] != 0)


def derived_length(config: Mapping[str, Any], engine: str = "sglang") -> tuple[int, str] | None:
    """The longest context in tokens, and the key that says it. None: it cannot be told.

    SGLang takes the first key of several, vLLM the smallest. Where rope scaling stretches the length (and does not count from
    ``original_max_position_embeddings``), it is multiplied. vLLM's releases disagree about YaRN: older ones multiply the
    original length, newer ones take the config's; the longer one counts.
    """
    text = text_config(config)
    said = _said_length(text, engine)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if said is None or not isinstance(scaling, dict):
        return None
    length, key = said
    kind, original = scaling.get("rope_type", scaling.get("type")), scaling.get("original_max_position_embeddings")
    factor = scaling.get("factor")
    if engine == "vllm" and kind == "yarn" and original is not None:
        return _yarn(length, key, original, factor)
    if original is not None or kind == "llama3" or factor is None:
        return length, key
    return (int(length * factor), f"{key} x rope_scaling.factor") if _is_factor(factor) else None


def _said_length(text: Mapping[str, Any], engine: str) -> tuple[int, str] | None:
    keys = [key for key in (_LENGTHS if engine != "vllm" else _VLLM_LENGTHS) if text.get(key) is not None]
    if not keys:
        return DEFAULT_LENGTH, "(none: 2048)"
    found = [(length, key) for key in keys if (length := number(text, key)) is not None]
    if engine == "vllm":
        return min(found) if len(found) == len(keys) else None
    return found[0] if found and found[0][1] == keys[0] else None


def _yarn(length: int, key: str, original: Any, factor: Any) -> tuple[int, str] | None:
    if not _is_factor(factor) or not isinstance(original, int) or isinstance(original, bool) or not 0 < original < 1 << 40:
        return None
    stretched = int(original * factor)
    return (length, key) if length >= stretched else (stretched, "original_max_position_embeddings x factor (YaRN)")


def _is_factor(factor: Any) -> bool:
    return isinstance(factor, int | float) and math.isfinite(factor) and 0 < factor < 1e6


def overridden(config: Mapping[str, Any], text: str | None) -> Mapping[str, Any]:
    """A config with the overrides of the command line (SGLang: --json-model-override-args, vLLM: --hf-overrides).

    What is no JSON object changes nothing: the engine refuses it with its own words, or it is not understood here.
    """
    try:
        changes = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return config
    return _merged(config, changes, 8) if isinstance(changes, dict) else config


def _merged(config: Mapping[str, Any], changes: Mapping[str, Any], depth: int) -> dict[str, Any]:
    found = dict(config)
    for key, value in changes.items():
        old = found.get(key)
        found[key] = _merged(old, value, depth - 1) if depth and isinstance(old, dict) and isinstance(value, dict) else value
    return found
