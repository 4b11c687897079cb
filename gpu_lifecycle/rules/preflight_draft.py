"""Draft and target of speculative decoding, and the length of the context (SGLang: ``_derive_context_length``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules.model_config import derived_length, number, text_config

if TYPE_CHECKING:
    from gpu_lifecycle.rules.preflight import Plan

OVERRIDES = {"sglang": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN"}
WITH_DRAFT = ("EAGLE", "EAGLE3", "STANDALONE")
KEY = "server.command"


def draft_findings(plan: Plan) -> Iterator[Finding]:
    """Everything about lengths and speculation. Only SGLang refuses a short draft; vLLM shortens the context to it."""
    yield from _target_length(plan)
    if plan.engine == "sglang":
        yield from _options(plan)
        if (plan.command.algorithm or "").upper() in WITH_DRAFT:
            yield from _draft_length(plan)
            yield from _shapes(plan)


def _overridden(plan: Plan) -> str:
    name = OVERRIDES.get(plan.engine, "")
    return name if plan.env.get(name, "").lower() in ("1", "true", "yes", "y", "on") else ""


def _plain(config: Mapping[str, Any], key: str) -> bool:
    """Whether vLLM derives the length from this one key alone: its releases differ over scaling, and over keys beside it."""
    text = text_config(config)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else None
    unscaled = kind in ("default", "llama3")
    return key == "max_position_embeddings" and unscaled and "model_max_length" not in {**config, **text}


def _target_length(plan: Plan) -> Iterator[Finding]:
    from gpu_lifecycle.rules.preflight import place

    variable = _overridden(plan)
    if variable:
        text = f"{variable} is set: the engine then starts with lengths that a model is not made for, and long requests end it"
        yield Finding(Level.WARN, "length-override", text, "take it out", key=f"server.environment.{variable}")
    if plan.target is None or plan.target.config is None or plan.engine not in OVERRIDES:
        return
    derived, wanted = derived_length(plan.target.config, plan.engine), plan.command.context_length
    if derived is None or wanted is None or wanted <= derived[0]:
        return
    sure = not variable and (plan.engine == "sglang" or _plain(plan.target.config, derived[1]))
    level = Level.ERROR if sure else Level.WARN
    text = f"the context length {wanted} of the command is above the {derived[0]} of the model ({derived[1]})"
    yield Finding(level, "context-too-long", text, f"lower it to {derived[0]}", place(plan.target), KEY)


def _draft_length(plan: Plan) -> Iterator[Finding]:
    """The draft is read with the target's length: shorter, the engine refuses it after the target's weights are loaded."""
    from gpu_lifecycle.rules.preflight import place

    if plan.draft is None or plan.draft.config is None:
        return
    draft, wanted, source = derived_length(plan.draft.config), plan.command.context_length, "--context-length"
    if wanted is None and plan.target and plan.target.config is not None and (target := derived_length(plan.target.config)):
        wanted, source = target[0], f"{place(plan.target)}: {target[1]}"
    if draft is None or wanted is None or wanted <= draft[0]:
        return
    text = (
        f"the draft model is made for {draft[0]} tokens ({place(plan.draft)}: {draft[1]}), "
        f"and the target is served with {wanted} ({source})"
    )
    hint = (
        f"set --context-length {draft[0]}, or use a draft that is made for {wanted}; "
        f"{OVERRIDES['sglang']} is no cure: it starts, and long requests end it"
    )
    yield Finding(Level.ERROR, "draft-context", text, hint, place(plan.draft), "max_position_embeddings")


def _options(plan: Plan) -> Iterator[Finding]:
    command = plan.command
    if command.algorithm is None:
        if command.draft:
            text = "a draft model is given without --speculative-algorithm: it is not used"
            yield Finding(Level.WARN, "draft-unused", text, "add --speculative-algorithm, or take the draft out", key=KEY)
        return
    if command.algorithm.upper() == "EAGLE3" and not command.draft:
        hint = "add --speculative-draft-model-path"
        yield Finding(Level.ERROR, "draft-missing", "EAGLE3 needs a draft model, and none is given", hint, key=KEY)
    if command.algorithm.upper() not in WITH_DRAFT:
        return
    three = (command.steps, command.topk, command.draft_tokens)
    if None in three and any(value is not None for value in three):
        text = "of --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens only some are given"
        yield Finding(Level.WARN, "speculative-options", text, "give all three, or none", key=KEY)
    elif command.topk == 1 and command.steps is not None and command.draft_tokens != command.steps + 1:
        text = f"with topk 1 and {command.steps} steps there are {command.steps + 1} draft tokens, not {command.draft_tokens}"
        hint = f"--speculative-num-draft-tokens {command.steps + 1}"
        yield Finding(Level.WARN, "speculative-options", text, hint, key=KEY)


def _shapes(plan: Plan) -> Iterator[Finding]:
    from gpu_lifecycle.rules.preflight import place

    if not (plan.draft and plan.target and plan.draft.config is not None and plan.target.config is not None):
        return
    draft, target = text_config(plan.draft.config), text_config(plan.target.config)
    shown, other, hint = place(plan.draft), place(plan.target), "use a draft that is made for this target"
    pair = number(draft, "vocab_size"), number(target, "vocab_size")
    if None not in pair and pair[0] != pair[1]:
        text = f"vocab_size of the draft is {pair[0]}, of the target {pair[1]} ({other})"
        yield Finding(Level.WARN, "draft-vocabulary", text, hint, shown, "vocab_size")
    key = "target_hidden_size" if "target_hidden_size" in draft else "hidden_size"
    pair = number(draft, key), number(target, "hidden_size")
    if (plan.command.algorithm or "").upper() != "STANDALONE" and None not in pair and pair[0] != pair[1]:
        text = f"{key} of the draft is {pair[0]}, hidden_size of the target {pair[1]} ({other})"
        yield Finding(Level.ERROR, "draft-hidden-size", text, hint, shown, key)
    layers, count = _layers(draft), number(target, "num_hidden_layers")
    if layers and count and max(layers) >= count:
        text = f"the draft listens to layer {max(layers)}, and the target has {count} ({other})"
        yield Finding(Level.WARN, "draft-layers", text, hint, shown, "eagle_aux_hidden_state_layer_ids")


def _layers(draft: Any) -> list[int]:
    settings = draft.get("eagle_config")
    found = settings.get("eagle_aux_hidden_state_layer_ids") if isinstance(settings, dict) else None
    return [item for item in found if isinstance(item, int)] if isinstance(found, list) else []
