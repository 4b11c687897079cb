"""Whether a model's weights, and the keys and values of a whole context, have room on the claimed GPUs. Estimates, with their
working shown.

Sharded weights are split over the ranks of one copy, some parts are copied to each, so an even share is the least that a GPU
must hold. Only what such a share alone does not fit into is certain to fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules.model_config import derived_length, number, text_config
from gpu_lifecycle.rules.quantity import show_size

if TYPE_CHECKING:
    from gpu_lifecycle.rules.model_folder import ModelFolder
    from gpu_lifecycle.rules.preflight import Plan

KEY = "server.command"
FRACTIONS = {"sglang": 0.88, "vllm": 0.92}  # vLLM's default; about what SGLang chooses by itself
UNUSED = 0.05  # of a checkpoint: layers that only speculative decoding reads (DeepSeek's MTP layer: 2 percent)
UNEVEN = (  # layers that keep less than all tokens, or none: what they take cannot be told from the config alone
    "layer_types", "linear_attn_config", "full_attention_interval", "hybrid_override_pattern", "layers_block_type",
    "attn_type_list", "attention_chunk_size", "mamba_d_state", "ssm_cfg", "sliding_window_pattern",
)  # fmt: skip
KV_BYTES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}
CODES = {
    "weights-too-large": "the weights do not fit the memory of the claimed GPUs",
    "kv-room": "how many tokens the keys and values have room for beside the weights: an estimate",
}


def memory_findings(plan: Plan, total: int | None) -> Iterator[Finding]:
    """``total`` is the memory of the smallest claimed GPU in bytes; None: not known, so nothing is said."""
    command = plan.command
    if plan.engine not in FRACTIONS or not total or command.device == "cpu" or command.offload not in (None, "0"):
        return
    share = _share(plan)
    if not share:
        return
    fraction = command.memory_fraction if command.memory_fraction and command.memory_fraction <= 1 else FRACTIONS[plan.engine]
    room = int(total * fraction)
    shown = f"{show_size(share)} of weights on each GPU ({_working(plan)})"
    if share > room:
        level = Level.ERROR if share * (1 - UNUSED) > total else Level.WARN
        text = f"{shown} are more than {fraction:g} of its {show_size(total)}"
        hint = "split the model over more GPUs (--tp), take a smaller quantization"
        yield Finding(level, "weights-too-large", text, hint, key=KEY)
        return
    yield from _kv_room(plan, room - share, f"{fraction:g} x {show_size(total)} - {show_size(share)} of weights")


def ranks(plan: Plan) -> int:
    """Over how many GPUs one copy of the model is split."""
    return (plan.command.tp or 1) * (plan.command.pp or 1)


def _share(plan: Plan) -> int | None:
    """An even share of what is loaded; None: it cannot be told from the files."""
    if plan.target is None or _changes(plan, plan.target):
        return None
    weights = plan.target.weights()
    if plan.draft and plan.command.algorithm:
        weights += plan.draft.weights()
    return weights // ranks(plan) or None


def _working(plan: Plan) -> str:
    assert plan.target
    draft = plan.draft.weights() if plan.draft and plan.command.algorithm else 0
    parts = show_size(plan.target.weights()) + (f" + {show_size(draft)} of the draft" if draft else "")
    return f"{parts}, over {ranks(plan)}"


def _changes(plan: Plan, folder: ModelFolder) -> bool:
    """Whether the weights have another size in memory than in their files: quantized while they are loaded, or halved."""
    config = folder.config or {}
    said = config.get("quantization_config") or text_config(config).get("quantization_config")
    kinds = {text_config(config).get(key) or config.get(key) for key in ("torch_dtype", "dtype") if _is_text(config, key)}
    return bool(plan.command.quantization and not said) or "float32" in kinds


def _is_text(config: Mapping[str, Any], key: str) -> bool:
    return all(isinstance(part.get(key), str | None) for part in (config, text_config(config)))


def _kv_room(plan: Plan, room: int, working: str) -> Iterator[Finding]:
    assert plan.target
    config = plan.target.config or {}
    each = _kv_bytes(plan, text_config(config))
    derived = derived_length(config, plan.engine)
    wanted = plan.command.context_length or (derived[0] if derived else None)
    if not each or not wanted:
        return
    tokens = int(room / each)
    text = f"room for about {tokens} tokens: ({working}) / {each / 1024:.1f} KiB for each; the context is {wanted}"
    if tokens < wanted:
        hint = f"--{'context-length' if plan.engine == 'sglang' else 'max-model-len'} below that, more GPUs, or an fp8 KV cache"
        yield Finding(Level.WARN, "kv-room", text, hint, key=KEY)
    else:
        yield Finding(Level.INFO, "kv-room", text, key=KEY)


def _kv_bytes(plan: Plan, config: Mapping[str, Any]) -> float | None:
    """Bytes that one token takes on one GPU; None: it cannot be told."""
    layers, size = number(config, "num_hidden_layers"), KV_BYTES.get(plan.command.kv_dtype or "auto")
    windows = config.get("sliding_window") is not None and config.get("use_sliding_window") is not False
    if not layers or layers > 10_000 or not size or windows or any(key in config for key in UNEVEN):
        return None
    here = -(-layers // (plan.command.pp or 1))
    if "kv_lora_rank" in config:  # one latent for all heads, copied to each rank
        latent, rope = number(config, "kv_lora_rank"), number(config, "qk_rope_head_dim")
        return (latent + rope) * here * size if latent and rope else None
    heads = number(config, "num_attention_heads")
    pairs, hidden = number(config, "num_key_value_heads") or heads, number(config, "hidden_size")
    width = number(config, "head_dim") or (hidden // heads if hidden and heads else None)
    if not pairs or not width:
        return None
    attention = plan.command.tp or 1
    if "--enable-dp-attention" in plan.command.flags:
        attention = max(1, attention // (plan.command.dp or 1))
    return 2 * -(-pairs // attention) * width * here * size
