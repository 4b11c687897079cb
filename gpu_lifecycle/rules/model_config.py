"""What a model's config.json says, as the engines read it (SGLang: ``get_hf_text_config``, ``get_context_length``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_NESTED = ("text_config", "llm_config", "language_config")
_LENGTHS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
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


def derived_length(config: Mapping[str, Any]) -> tuple[int, str] | None:
    """The longest context in tokens, and the key that says it. None: it cannot be told.

    Where rope scaling stretches the length (and does not count from ``original_max_position_embeddings``), it is multiplied.
    """
    text = text_config(config)
    key = next((key for key in _LENGTHS if text.get(key) is not None), None)
    length = DEFAULT_LENGTH if key is None else number(text, key)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if length is None or not isinstance(scaling, dict):
        return None
    kind = scaling.get("rope_type", scaling.get("type"))
    if "original_max_position_embeddings" in scaling or kind == "llama3" or scaling.get("factor") is None:
        return length, key or "(none: 2048)"
    factor = scaling["factor"]
    if not isinstance(factor, int | float) or not math.isfinite(factor) or not 0 < factor < 1e6:
        return None
    return int(length * factor), f"{key} x rope_scaling.factor"
