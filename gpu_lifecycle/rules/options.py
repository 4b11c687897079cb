"""Options that count for the checks before a start only, by engine: field of ``Command`` -> spellings.

Beside ``settings`` in rules/engines.py. Source: the parsers of SGLang 0.5.23 and vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Mapping

CHECKED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sglang": {
        "kv_dtype": ("--kv-cache-dtype",),
        "offload": ("--cpu-offload-gb",),
    },
    "vllm": {
        "dp_local": ("--data-parallel-size-local", "-dpl"),
        "kv_dtype": ("--kv-cache-dtype",),
        "offload": ("--cpu-offload-gb",),
        "rope_scaling": ("--rope-scaling",),  # up to 0.10: since then a part of --hf-overrides
    },
}
