"""What is known of each engine, in one table, and what a command line says about the server it starts.

Source of the facts: the released wheels and runs of SGLang 0.5.8 to 0.5.23 and vLLM 0.32.0, llama.cpp's
server source, public documentation of the others. Adding an engine is one entry in ``ENGINES``.

What an engine reads from a file of its own (SGLang's and vLLM's ``--config``) is not seen here: ``server.url``,
``server.model`` and ``server.tp`` say it instead. rules/command.py reads both, for what is checked before a start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.endpoints import Endpoint, endpoint_of_url, knock, port_number
from gpu_lifecycle.rules.metrics import Metrics
from gpu_lifecycle.rules.preset import MODEL, Engine, Request
from gpu_lifecycle.rules.text import printable

__all__ = [
    "ENGINES", "MODEL", "Endpoint", "Engine", "Request", "draft_of", "drains", "endpoint", "endpoint_of_url",
    "metrics_of", "model_of", "option", "tp_of",
]  # fmt: skip

_TABLE = (
    Engine(
        name="sglang",
        default_port=30000,
        default_host="127.0.0.1",
        model_options=("--model-path", "--model"),
        draft_options=("--speculative-draft-model-path", "--speculative-draft-model"),
        tp_options=("--tp", "--tp-size", "--tensor-parallel-size", "-tp"),
        default_tp=1,
        name_options=("--served-model-name",),
        # /health generates one token and says 503 after 20 s where the scheduler hangs; /ready is a mere flag
        ready_path="/health",
        live_path="/health",
        health_generates=True,
        # token ids: no tokenizer takes part, and the model's name is not needed
        generate=Request(
            "POST",
            "/generate",
            {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "temperature": 0}},
            "meta_info",
        ),
        worker_title=r"^sglang::(scheduler|detokenizer|data_parallel_controller)",
        # up to 0.5.10 it SIGKILLs its own tree, itself included, at the end of a clean stop
        clean_exit=frozenset((0, -15, -9)),
        metrics=Metrics(
            # the first counts every forward pass: it moves within a long prefill, and with a health probe
            ("sglang:realtime_tokens_total", "sglang:generation_tokens_total", "sglang:prompt_tokens_total"),
            levels=("sglang:token_usage",),
            running=("sglang:num_running_reqs",),
            queued=("sglang:num_queue_reqs",),
            option="--enable-metrics",
        ),
        drains=True,
        settings={
            "pp": ("--pp-size", "--pipeline-parallel-size", "--pp"),
            "dp": ("--dp-size", "--data-parallel-size", "--dp"),
            "ep": ("--ep-size", "--expert-parallel-size", "--ep"),
            "nnodes": ("--nnodes",),
            "context_length": ("--context-length",),
            "memory_fraction": ("--mem-fraction-static",),
            "algorithm": ("--speculative-algorithm", "--speculative-algo"),
            "steps": ("--speculative-num-steps",),
            "topk": ("--speculative-eagle-topk",),
            "draft_tokens": ("--speculative-num-draft-tokens",),
            "quantization": ("--quantization",),
            "tokenizer": ("--tokenizer-path",),
            "load_format": ("--load-format",),
            "device": ("--device",),
            "config_file": ("--config",),
            "overrides": ("--json-model-override-args",),
        },
        flags=("--enable-dp-attention", "--skip-tokenizer-init"),
    ),
    Engine(
        name="vllm",
        default_port=8000,
        default_host="0.0.0.0",  # noqa: S104 - what vLLM does, not what we do
        uds_options=("--uds",),
        model_options=("--model",),
        positional=("serve",),
        draft_options=("--speculative-config.model", "--speculative-model"),
        draft_json_options=("--speculative-config", "-sc"),
        tp_options=("--tensor-parallel-size", "-tp"),
        default_tp=1,
        name_options=("--served-model-name",),
        ready_path="/health",
        live_path="/health",  # asks nothing of the workers: only a generation proves life
        generate=Request(
            "POST", "/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1, "temperature": 0}, "choices"
        ),
        worker_title=r"^VLLM::(EngineCore|Worker|APIServer|DPCoordinator)",
        drain_options=("--shutdown-timeout",),
        settings={
            "pp": ("--pipeline-parallel-size", "-pp"),
            "dp": ("--data-parallel-size", "-dp"),
            "nnodes": ("--nnodes",),
            "context_length": ("--max-model-len",),
            "memory_fraction": ("--gpu-memory-utilization",),
            "quantization": ("--quantization", "-q"),
            "tokenizer": ("--tokenizer",),
            "load_format": ("--load-format",),
            "config_file": ("--config",),
            "overrides": ("--hf-overrides",),
        },
        flags=("--skip-tokenizer-init",),
        key_env="VLLM_API_KEY",
        metrics=Metrics(
            # none of them moves before a prompt has been read to its end; the KV cache fills meanwhile
            ("vllm:iteration_tokens_total", "vllm:generation_tokens_total", "vllm:prompt_tokens_total"),
            levels=("vllm:kv_cache_usage_perc",),
            running=("vllm:num_requests_running",),
            queued=("vllm:num_requests_waiting",),
        ),
    ),
    Engine(
        name="llama.cpp",
        default_port=8080,
        default_host="127.0.0.1",
        port_env="LLAMA_ARG_PORT",
        host_env="LLAMA_ARG_HOST",
        model_options=("-m", "--model"),
        model_env="LLAMA_ARG_MODEL",
        draft_options=("-md", "--model-draft"),
        name_options=("-a", "--alias"),
        ready_path="/health",
        live_path="/health",
        key_file_options=("--api-key-file",),
        key_env="LLAMA_API_KEY",
        keys_in_one=True,
        generate=Request("POST", "/completion", {"prompt": "a", "n_predict": 1, "cache_prompt": False}, "content"),
        metrics=Metrics(
            ("llamacpp:n_decode_total", "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total"),
            running=("llamacpp:requests_processing",),
            queued=("llamacpp:requests_deferred",),
            option="--metrics",
        ),
    ),
    Engine(
        name="tgi",
        default_port=3000,
        default_host="0.0.0.0",  # noqa: S104 - what TGI does
        port_options=("-p", "--port"),
        port_env="PORT",
        host_options=("--hostname",),
        host_env="HOSTNAME",
        model_options=("--model-id",),
        model_env="MODEL_ID",
        tp_options=("--num-shard",),
        tp_env="NUM_SHARD",
        ready_path="/health",
        live_path="/health",
        generate=Request("POST", "/generate", {"inputs": "a", "parameters": {"max_new_tokens": 1}}, "generated_text"),
        key_env="API_KEY",
        worker_title=r"(^|/)text-generation-(router|server)\b",
        metrics=Metrics(
            ("tgi_batch_inference_count", "tgi_request_generated_tokens_sum"),
            running=("tgi_batch_current_size",),
            queued=("tgi_queue_size",),
        ),
        drains=True,
    ),
    Engine(
        name="triton",
        default_port=8000,
        default_host="0.0.0.0",  # noqa: S104 - what Triton does
        port_options=("--http-port",),
        host_options=("--http-address",),
        ready_path="/v2/health/ready",
        live_path="/v2/health/live",
        generate=None,  # what a model takes as input depends on its backend
        worker_title=r"(^|/)triton_python_backend_stub\b",
        metrics=Metrics(
            ("nv_inference_exec_count", "nv_inference_count"),
            queued=("nv_inference_pending_request_count",),
            port=8002,
            port_options=("--metrics-port",),
            within=False,
        ),
        drains=True,
    ),
    Engine(
        name="tensorrt-llm",
        default_port=8000,
        default_host="localhost",
        positional=("trtllm-serve", "serve"),
        tp_options=("--tp_size",),
        default_tp=1,
        name_options=("--served_model_name",),
        ready_path="/health",
        live_path="/health",
        generate=Request("GET", "/health_generate"),
        worker_title=r"\b(mgmn_worker|mpi4py)\b",
        # no metrics: its page hands each statistic out once, so that reading it takes it away from whoever else reads
        drains=True,
    ),
    Engine(
        name="ollama",
        default_port=11434,
        default_host="127.0.0.1",
        port_options=(),
        host_options=(),
        host_env="OLLAMA_HOST",  # host, host:port or a URL
        ready_path="/",  # 200 without any model: only a generation proves that one can be served
        live_path="/",
        generate=Request(
            "POST",
            "/api/generate",
            {"model": MODEL, "prompt": "a", "stream": False, "options": {"num_predict": 1}},
            "response",
        ),
        worker_title=r"(^|/)ollama runner\b",
    ),
    Engine(
        name="custom",
        default_port=None,
        default_host="127.0.0.1",
        model_options=("--model-path", "--model"),
        tp_options=("--tp", "--tensor-parallel-size"),
        name_options=("--served-model-name",),
        ready_path="/health",
        live_path="/health",
    ),
)

ENGINES: dict[str, Engine] = {engine.name: engine for engine in _TABLE}


def option(argv: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of the last of ``names`` in ``argv``: ``--opt value`` or ``--opt=value``; ``--`` ends them.

    None: not there; an empty text: there without a value. ``--tp_size`` and ``--tp-size`` are the same option
    (vLLM takes both, TensorRT-LLM only the first, none gives them two meanings).
    """
    wanted = {_spelling(name) for name in names}
    found: str | None = None
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name.startswith("-") and _spelling(name) in wanted:
            found = value if equals else following
    return found


def _spelling(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def endpoint(engine: Engine, argv: Sequence[str], env: Mapping[str, str]) -> Endpoint:
    """Where the server that ``argv`` starts with ``env`` (the engine's environment) will answer.

    Raises ConfigError naming ``server.command`` (or the variable) for a port that is none, and for a custom
    engine whose command line does not show one.
    """
    uds = option(argv, engine.uds_options)
    host = option(argv, engine.host_options) or env.get(engine.host_env, "") or engine.default_host
    if uds or host.endswith(".sock"):
        return Endpoint("localhost", 0, uds=uds or host, bind=uds or host)
    if engine.host_env == "OLLAMA_HOST":
        return _ollama(engine, host)
    port = option(argv, engine.port_options)
    if port is not None:
        return knock(host, port_number(port, "server.command"))
    if engine.port_env in env:
        return knock(host, port_number(env[engine.port_env], f"server.environment.{engine.port_env}"))
    if engine.default_port is None:
        raise ConfigError(
            f"cannot tell where a {engine.name} engine answers: its command has no --port",
            hint='say it: url = "http://127.0.0.1:8000"',
            key="server.url",
        )
    return knock(host, engine.default_port)


def _ollama(engine: Engine, value: str) -> Endpoint:
    """OLLAMA_HOST: ``host``, ``host:port``, ``:port``, or a URL with its scheme's port (Ollama, envconfig)."""
    scheme, _, rest = value.strip(" \"'").rpartition("://")
    rest = rest.split("/", 1)[0]
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*):([^:]*)", rest)
    host, port = match.groups() if match else (rest, None)
    default = {"http": 80, "https": 443}.get(scheme, engine.default_port)
    number = default if port is None else port_number(port, "server.environment.OLLAMA_HOST")
    return replace(knock(host or engine.default_host, number or 0), scheme=scheme or "http")


def model_of(engine: Engine, argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The model's path or name on the command line (or in the engine's variable); None: not said there."""
    return option(argv, engine.model_options) or _positional(engine, argv) or env.get(engine.model_env) or None


def _positional(engine: Engine, argv: Sequence[str]) -> str | None:
    for word, following in pairwise(argv):
        if word.rsplit("/", 1)[-1] in engine.positional and following not in engine.positional:
            return None if following.startswith("-") else following
    return None


def draft_of(engine: Engine, argv: Sequence[str]) -> str | None:
    """The draft model of speculative decoding; None: there is none, or it is said in a way not known here."""
    named = option(argv, engine.draft_options)
    if named:
        return named
    import json

    try:
        settings = json.loads(option(argv, engine.draft_json_options) or "null")
    except (ValueError, RecursionError):
        return None  # the engine itself will refuse it, with its own words
    draft = settings.get("model") if isinstance(settings, dict) else None
    return draft if isinstance(draft, str) and draft else None


def tp_of(engine: Engine, argv: Sequence[str], env: Mapping[str, str]) -> int | None:
    """Over how many GPUs each layer is split (tensor parallelism); None: the engine decides by itself.

    Raises ConfigError naming ``server.command`` where the option is not a number of at least 1.
    """
    text = option(argv, engine.tp_options)
    if text is None:
        text = env.get(engine.tp_env)
    if text is None:
        return engine.default_tp
    if re.fullmatch(r"[0-9]{1,5}", text) and int(text) >= 1:
        return int(text)
    raise ConfigError(
        f'cannot use "{printable(text, 40)}" as the tensor parallel size: it is not a number of at least 1',
        hint=f'write it like "{engine.tp_options[0]}", "8"',
        key="server.command",
    )


def drains(engine: Engine, argv: Sequence[str]) -> bool:
    """True where SIGTERM lets running requests finish, by nature or by an option of the command."""
    seconds = option(argv, engine.drain_options) or ""
    return engine.drains or bool(re.fullmatch(r"[0-9.]*[1-9][0-9.]*", seconds))


def metrics_of(engine: Engine, argv: Sequence[str]) -> Metrics | None:
    """Where the server that ``argv`` starts tells of its work; None where it does not.

    Raises ConfigError naming ``server.command`` for a metrics port that is none.
    """
    metrics = engine.metrics
    if metrics is None or (metrics.option and option(argv, (metrics.option,)) is None):
        return None
    port = option(argv, metrics.port_options)
    return metrics if port is None else replace(metrics, port=port_number(port, "server.command"))
