"""What can be known to go wrong before an engine is started, from its command line and the files of its models.

An ERROR is what the engine itself would refuse or die of, after minutes; a guess is a WARN. Where something was not read with
certainty (a config file of another form, values overridden by an option), nothing is more than a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules.command import Command
from gpu_lifecycle.rules.model_config import wrong_types
from gpu_lifecycle.rules.model_folder import ABSENT, DENIED, EMPTY, FILE, PARTIAL, ModelFolder, Shard
from gpu_lifecycle.rules.model_memory import CODES as MEMORY_CODES
from gpu_lifecycle.rules.model_memory import memory_findings
from gpu_lifecycle.rules.quantity import show_size
from gpu_lifecycle.rules.text import printable

KEY = "server.command"
AGAIN = "download the model again: it was not finished"
KNOWN_QUANTIZATIONS = frozenset(
    (
        "fp8", "mxfp4", "mxfp8", "awq", "gptq", "gptq_marlin", "awq_marlin", "compressed-tensors", "modelopt",
        "modelopt_fp8", "modelopt_fp4", "bitsandbytes", "quark", "w8a8_int8", "w8a8_fp8", "torchao", "auto-round", "gguf",
        "marlin", "moe_wna16", "fbgemm_fp8", "petit_nvfp4", "qoq", "nvfp4", "deepspeedfp", "experts_int8", "ipex", "hqq",
        "aqlm", "tpu_int8", "rtn", "inc", "bitnet", "higgs", "quanto", "eetq", "vptq", "spqr", "fp_quant", "mxfp4_a8",
    )
)  # fmt: skip
CODES = {
    "option-value": "an option of the engine that takes a number has something else",
    "not-certain": "something was not read with certainty, so the findings about it are warnings only",
    "in-container": "the engine runs in a container: the files of its models are not looked at",
    "unseen-work": "the engine shows no counters: only a token that it is asked for tells whether it works",
    "model-by-name": "a model is named and not downloaded yet: its files are not looked at",
    "model-offline": "a model is named, it is not downloaded, and downloads are switched off",
    "model-absent": "the folder of a model is not there, or empty",
    "model-denied": "the unit's user may not read the folder of a model, or a file in it",
    "model-partial": "the folder of a model has too many entries to be read",
    "model-slow": "the files of a model were not read in time: a network file system that hangs, or a slow disk",
    "config-missing": "a model has weights and no config.json",
    "config-broken": "a config.json cannot be read as JSON",
    "config-odd": "a config.json has a key twice, a value that is no JSON, or a value of the wrong type",
    "index-broken": "an index of shards cannot be read",
    "shard-missing": "a shard that the index names is not there",
    "shard-truncated": "a shard is shorter than its own header says",
    "shard-broken": "a shard has no readable header",
    "shard-extra": "a shard is there that the index does not name",
    "weights-missing": "a model has no weights",
    "tokenizer-missing": "a model has no tokenizer",
    "not-a-file": "a file of a model is a pipe, a device or a folder",
    "quantization-unknown": "the quantization of a model is not a known one",
    "context-too-long": "--context-length is longer than what the model is made for",
    "draft-context": "the draft model is made for a shorter context than the target is served with",
    "length-override": "the variable is set that lets an engine go beyond the length a model is made for",
    "draft-missing": "EAGLE3 without a draft model",
    "draft-unused": "a draft model without --speculative-algorithm",
    "draft-vocabulary": "draft and target have vocabularies of different sizes",
    "draft-hidden-size": "draft and target have different hidden sizes",
    "draft-layers": "the draft listens to layers that the target does not have",
    "speculative-options": "speculative options that do not go together",
    "heads": "the attention heads cannot be split over so many GPUs",
    "kv-heads": "the key-value heads can be neither split nor copied evenly",
    "experts": "the experts cannot be split over so many GPUs",
    "nodes": "tensor and pipeline parallelism do not divide by the number of nodes",
    "claim-too-small": "the engine wants more GPUs than the unit claims",
    **MEMORY_CODES,
}  # every finding's code, and what it says


@dataclass(frozen=True, slots=True)
class Plan:
    """What a start is judged by. ``certain`` False: part of the command was not read. ``claimed`` GPUs, None: not known.

    ``memory`` is that of the smallest claimed GPU, in bytes.
    """

    engine: str
    command: Command
    env: Mapping[str, str] = field(default_factory=dict)
    target: ModelFolder | None = None
    draft: ModelFolder | None = None
    claimed: int | None = None
    certain: bool = True
    memory: int | None = None


def judge(plan: Plan) -> tuple[Finding, ...]:
    """All findings, in the order in which they are best read."""
    from gpu_lifecycle.rules.preflight_draft import draft_findings
    from gpu_lifecycle.rules.preflight_parallel import parallel_findings

    found = [*_options(plan.command), *_models(plan), *draft_findings(plan), *parallel_findings(plan)]
    found += memory_findings(plan, plan.memory)
    if not plan.certain or plan.command.overrides:
        found = [replace(item, level=Level.WARN) if item.level is Level.ERROR else item for item in found]
    return tuple(found)


def by_name(plan: Plan, name: str, cache: str) -> Finding:
    """What is to be said of a model that is named and not in ``cache``; "": no cache was looked into.

    Engines of hubs load nothing else: offline, such a start fails. A name without a "/" may as well be a folder beside the
    engine's own, and what is in no cache may have been given its own loader.
    """
    from gpu_lifecycle.rules.hub import is_name, offline

    shown, variable = printable(name, 120), offline(plan.env)
    if variable and cache and is_name(name):
        plain = plan.command.load_format in (None, "auto", "safetensors")
        sure = plain and plan.certain and "/" in name and plan.engine in ("sglang", "vllm", "tgi")
        text = f"{shown} is the name of a model, {variable} forbids to download it, and it is not in {printable(cache, 200)}"
        hint = f"download it first (HF_HOME, huggingface-cli download {shown}), or give the path of its folder"
        level = Level.ERROR if sure else Level.WARN
        return Finding(level, "model-offline", text, hint, printable(cache, 200), KEY)
    where = f", and not in {printable(cache, 200)}: it is downloaded at the start" if cache else ""
    return Finding(Level.INFO, "model-by-name", f"{shown} is a name, no folder{where}: its files are not looked at", key=KEY)


def place(folder: ModelFolder, name: str = "config.json") -> str:
    """The path of a file of a model, to be shown."""
    where = folder.path.rpartition("/")[0] if folder.state == FILE else folder.path.rstrip("/")
    return printable(f"{where}/{name}", 300)


def _options(command: Command) -> Iterator[Finding]:
    for wrong in command.wrong:
        text = f'{wrong.option} is "{wrong.text}", which is no number that the engine takes'
        yield Finding(Level.ERROR, "option-value", text, f"correct {wrong.option}", key=KEY)


def _models(plan: Plan) -> Iterator[Finding]:
    loads_files = plan.command.load_format in (None, "auto", "safetensors")
    if plan.target:
        wants_tokenizer = not plan.command.tokenizer and "--skip-tokenizer-init" not in plan.command.flags
        yield from _model(plan.target, "model", loads_files=loads_files, tokenizer=wants_tokenizer)
    if plan.draft and plan.command.algorithm:
        yield from _model(plan.draft, "draft model", loads_files=loads_files, tokenizer=False)


def _model(folder: ModelFolder, what: str, *, loads_files: bool, tokenizer: bool) -> Iterator[Finding]:
    shown = printable(folder.path, 300)
    if folder.state in (ABSENT, EMPTY):
        text = f"the {what} {shown} is {'empty' if folder.state == EMPTY else 'not there'}"
        yield Finding(Level.WARN, "model-absent", text, "correct the path, unless the unit mounts it there", shown, KEY)
    elif folder.state == DENIED:
        yield Finding(Level.WARN, "model-denied", f"the {what} {shown} may not be read", f"ls -ld {shown}", shown, KEY)
    elif folder.state == PARTIAL:
        yield Finding(Level.WARN, "model-partial", f"the {what} {shown} has too many entries to be read", file=shown)
    elif folder.state == FILE:
        yield from _rights(folder)
        yield from _parts(folder)
    else:
        yield from _rights(folder)
        yield from _config(folder)
        if loads_files and not any(name.endswith(".gguf") for name in folder.names):
            yield from _shards(folder)
        if tokenizer and not any(_is_tokenizer(name) for name in folder.names):
            hint = "download the model again, or say where with --tokenizer-path"
            yield Finding(Level.WARN, "tokenizer-missing", f"the {what} has no tokenizer", hint, shown)


def _is_tokenizer(name: str) -> bool:
    return name.startswith(("token", "tik", "tek", "vocab", "spiece", "sentencepiece")) or name.endswith((".tiktoken", ".gguf"))


def _rights(folder: ModelFolder) -> Iterator[Finding]:
    if folder.denied:
        shown = place(folder, folder.denied[0])
        more = f" nor {len(folder.denied) - 1} more" if len(folder.denied) > 1 else ""
        text = f"the unit's user may not read {shown}{more}"
        yield Finding(Level.WARN, "model-denied", text, f"namei -l {shown}", shown)
    for name in folder.not_files[:8]:
        text = f"{printable(name, 80)} is no regular file"
        yield Finding(Level.WARN, "not-a-file", text, "download the model again", place(folder, name))


def _config(folder: ModelFolder) -> Iterator[Finding]:
    shown = place(folder)
    if folder.config_problem and not {"config.json"} & {*folder.not_files, *folder.denied}:
        text = f"config.json cannot be used: {folder.config_problem}"
        yield Finding(Level.ERROR, "config-broken", text, "download it again", shown)
    elif "config.json" not in folder.names and folder.shards:
        yield Finding(Level.WARN, "config-missing", "config.json is not there", "download the model again", shown)
    if folder.config_odd:
        yield Finding(Level.WARN, "config-odd", f"config.json is odd: {folder.config_odd}", "correct it", shown)
    if folder.config is not None:
        for key in wrong_types(folder.config):
            yield Finding(Level.WARN, "config-odd", f"{key} is no whole number above 0", "download it again", shown, key)
        yield from _quantization(folder)


def _quantization(folder: ModelFolder) -> Iterator[Finding]:
    from gpu_lifecycle.rules.model_config import text_config

    config = folder.config or {}
    settings = config.get("quantization_config") or text_config(config).get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if isinstance(method, str) and method.lower() not in KNOWN_QUANTIZATIONS:
        text = f'the quantization "{printable(method, 40)}" is not a known one'
        yield Finding(Level.WARN, "quantization-unknown", text, "see what the engine supports", place(folder), "quant_method")


def _parts(folder: ModelFolder) -> Iterator[Finding]:
    """Of a GGUF file, which may be split."""
    there = {*folder.files, *folder.not_files, *folder.denied}
    yield from _missing(folder, folder.parts, there)
    for name, shard in folder.files.items():
        yield from _torn(folder, name, shard, "GGUF file")


def _missing(folder: ModelFolder, wanted: Sequence[str], there: AbstractSet[str]) -> Iterator[Finding]:
    missing = [name for name in wanted if name not in there]
    if missing:
        named = printable(missing[0], 80) + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        text = f"{len(missing)} of {len(wanted)} shards are not there: {named}"
        yield Finding(Level.ERROR, "shard-missing", text, AGAIN, place(folder, missing[0]))


def _torn(folder: ModelFolder, name: str, shard: Shard, kind: str) -> Iterator[Finding]:
    if shard.need is not None and shard.size < shard.need:
        text = f"{printable(name, 80)} has {show_size(shard.size)} ({shard.size} bytes) of {shard.need} bytes"
        yield Finding(Level.ERROR, "shard-truncated", text, AGAIN, place(folder, name))
    elif shard.problem:
        text = f"{printable(name, 80)} is no {kind}: {shard.problem}"
        yield Finding(Level.ERROR, "shard-broken", text, AGAIN, place(folder, name))


def _shards(folder: ModelFolder) -> Iterator[Finding]:
    index = "model.safetensors.index.json"
    if folder.index_problem and not {index} & {*folder.not_files, *folder.denied}:
        text = f"the index cannot be used: {folder.index_problem}"
        yield Finding(Level.ERROR, "index-broken", text, AGAIN, place(folder, index))
    here = {*folder.names, *folder.shards, *folder.not_files}
    yield from _missing(folder, folder.index or (), here)
    for name, shard in list(folder.shards.items()):
        used = folder.index is None or name in folder.index
        if used:
            yield from _torn(folder, name, shard, "shard")
        elif "-of-" in name:
            text = f"{printable(name, 80)} is not in the index: it is not loaded"
            yield Finding(Level.WARN, "shard-extra", text, "remove it, or download the index again", place(folder, name))
    if not folder.shards and folder.config is not None and not _other_weights(folder):
        yield Finding(Level.ERROR, "weights-missing", "there are no weights", AGAIN, printable(folder.path, 300))


def _other_weights(folder: ModelFolder) -> bool:
    """Weights of other forms, which are not looked into; or shards that are already told to be missing or unreadable."""
    ends = (".bin", ".pt", ".pth", ".gguf", ".tensors", ".npcache")
    return bool(folder.index or folder.index_problem or folder.denied or folder.not_files) or any(
        name.endswith(ends) for name in folder.names
    )
