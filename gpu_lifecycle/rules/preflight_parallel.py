"""Whether a model can be split as the command says. The engines assert it, some without a word, after minutes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules.model_config import experts, number, text_config

if TYPE_CHECKING:
    from gpu_lifecycle.rules.model_folder import ModelFolder
    from gpu_lifecycle.rules.preflight import Plan

KEY = "server.command"


def parallel_findings(plan: Plan) -> Iterator[Finding]:
    """Heads, experts, nodes and GPUs."""
    yield from _gpus(plan)
    if plan.engine not in ("sglang", "vllm") or plan.command.device == "cpu":  # on a CPU heads are padded
        return
    tp, command = plan.command.tp or 1, plan.command
    attention = tp
    if "--enable-dp-attention" in command.flags and command.dp:
        if tp % command.dp:
            text = f"with attention in {command.dp} parts, {tp} GPUs do not divide"
            yield Finding(Level.ERROR, "heads", text, "choose --dp-size as a divisor of --tp-size", key=KEY)
            return
        attention = tp // command.dp
    for folder in (plan.target, plan.draft if command.algorithm and plan.engine == "sglang" else None):
        if folder and folder.config is not None:
            yield from _heads(folder, attention)
    if plan.target and plan.target.config is not None:
        yield from _experts(plan, plan.target, tp)


def _heads(folder: ModelFolder, tp: int) -> Iterator[Finding]:
    from gpu_lifecycle.rules.preflight import place

    config = text_config(folder.config or {})
    heads, pairs = number(config, "num_attention_heads"), number(config, "num_key_value_heads")
    if heads and heads % tp:
        text = f"{heads} attention heads cannot be split over {tp} GPUs"
        yield Finding(Level.ERROR, "heads", text, _divisors(heads), place(folder), "num_attention_heads")
    elif pairs and pairs % tp and tp % pairs and "kv_lora_rank" not in config:
        text = f"{pairs} key-value heads can be neither split over {tp} GPUs nor copied to them evenly"
        yield Finding(Level.ERROR, "kv-heads", text, _divisors(pairs), place(folder), "num_key_value_heads")


def _divisors(number: int) -> str:
    return f"use {', '.join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)} GPUs"


def _experts(plan: Plan, folder: ModelFolder, tp: int) -> Iterator[Finding]:
    from gpu_lifecycle.rules.preflight import place

    count, ep = experts(text_config(folder.config or {})), plan.command.ep
    if ep and ep > tp:
        text = f"--ep-size {ep} is above the {tp} GPUs of --tp-size"
        yield Finding(Level.ERROR, "experts", text, f"use at most {tp}", key=KEY)
    elif count and ep and count % ep:  # redundant experts may make it fit
        text = f"{count} experts do not divide by --ep-size {ep}"
        yield Finding(Level.WARN, "experts", text, _divisors(count), place(folder))


def _gpus(plan: Plan) -> Iterator[Finding]:
    command, nodes = plan.command, plan.command.nnodes or 1
    world = (command.tp or 1) * (command.pp or 1)
    if world % nodes:
        text = f"{world} ranks (tensor times pipeline parallelism) do not divide by {nodes} nodes"
        yield Finding(Level.ERROR, "nodes", text, "correct --nnodes, or the sizes", key=KEY)
        return
    copies = command.dp_local or command.dp or 1
    if "--enable-dp-attention" in command.flags or (nodes > 1 and command.dp_local is None):
        copies = 1
    if plan.claimed is not None and (command.tp or command.dp_local) and world // nodes * copies > plan.claimed:
        text = f"the engine wants {world // nodes * copies} GPUs here, and the unit claims {plan.claimed}"
        elsewhere = copies > 1 and command.dp_local is None  # copies may run on other machines
        level = Level.WARN if elsewhere else Level.ERROR
        yield Finding(level, "claim-too-small", text, "claim more GPUs, or lower the sizes", key="gpus.claim")
