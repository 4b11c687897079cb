"""Example configs, one for each engine: what ``config init`` writes, and the files of ``config/``.

Every key of rules/config_keys.py stands in each of them, with its meaning; a key that keeps its default is commented out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_lifecycle.rules.config import Ready, Stop
from gpu_lifecycle.rules.config_keys import KEYS, SECTION_TEXTS, UNITS, About, Kind, default, default_text, type_text

WIDTH = 100


@dataclass(frozen=True, slots=True)
class Set:
    """A key that an example sets: its value as TOML, and what is to be said about it there."""

    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One example: the unit it is for, what it is, and the keys that it sets. ``command`` is one line of words an entry."""

    unit: str
    title: str
    command: tuple[str, ...]
    keys: Mapping[str, Set] = field(default_factory=dict)
    environment: tuple[str, ...] = ()


_NO_DRAIN = Set('"0s"', "It does not drain: a SIGTERM leaves running requests unfinished.")
_ONE_GPU = {"gpus.claim": Set("[0]"), "gpus.count": Set("1")}

EXAMPLES: dict[str, Example] = {
    "sglang": Example(
        "sglang-kimi",
        "Kimi-K2.5 (INT4) with an EAGLE-3 draft model on 8 GPUs, served by SGLang.",
        (
            '"/opt/sglang/bin/python", "-m", "sglang.launch_server",',
            '"--model-path", "/models/kimi-k2.5-int4",',
            '"--trust-remote-code",',
            '"--tp", "8",',
            "# said in full, so that a draft model that is too short is refused before 547 GB of weights are loaded",
            '"--context-length", "262144",',
            '"--speculative-algorithm", "EAGLE3",',
            '"--speculative-draft-model-path", "/models/kimi-k2.5-eagle3",',
            '"--speculative-num-steps", "3",',
            '"--speculative-eagle-topk", "1",',
            '"--speculative-num-draft-tokens", "4",',
            '"--host", "127.0.0.1",',
            '"--port", "30000",',
            "# the counters that tell busy from hung",
            '"--enable-metrics",',
        ),
        {
            "gpus.count": Set("8"),
            "sweep.policy": Set('"dedicated"'),
        },
        (
            "# Or a crashed worker keeps the server, and the memory of 8 GPUs, for 65 s more of diagnostics.",
            'SGLANG_CUDA_COREDUMP_BEFORE_CRASH = "0"',
            'SGLANG_PYSPY_DUMP_BEFORE_CRASH = "0"',
        ),
    ),
    "vllm": Example(
        "vllm",
        "A vLLM server on 4 GPUs.",
        (
            '"/opt/vllm/bin/vllm", "serve", "/models/llama-3.3-70b-instruct",',
            '"--tensor-parallel-size", "4",',
            '"--host", "127.0.0.1",',
            '"--port", "8000",',
            "# without it SIGTERM aborts the requests that are running; in seconds, as long as stop.drain",
            f'"--shutdown-timeout", "{Stop.drain:.0f}",',
        ),
        {"gpus.claim": Set("[0, 1, 2, 3]"), "gpus.count": Set("4")},
        (
            "# as long as ready.ceiling, in seconds: vLLM's own limit for its start is 600",
            f'VLLM_ENGINE_READY_TIMEOUT_S = "{Ready.ceiling:.0f}"',
        ),
    ),
    "llama.cpp": Example(
        "llama-cpp",
        "llama.cpp's server on one GPU.",
        (
            '"/usr/local/bin/llama-server",',
            '"--model", "/models/qwen3-32b-q4_k_m.gguf",',
            '"--n-gpu-layers", "999",',
            '"--host", "127.0.0.1",',
            '"--port", "8080",',
            '"--metrics",',
        ),
        {**_ONE_GPU, "stop.drain": _NO_DRAIN},
    ),
    "tgi": Example(
        "tgi",
        "Text Generation Inference on 2 GPUs.",
        (
            '"/usr/local/bin/text-generation-launcher",',
            '"--model-id", "/models/mistral-small-24b",',
            '"--num-shard", "2",',
            '"--hostname", "127.0.0.1",',
            '"--port", "3000",',
        ),
        {"gpus.claim": Set("[0, 1]"), "gpus.count": Set("2")},
    ),
    "triton": Example(
        "triton",
        "NVIDIA Triton Inference Server.",
        (
            '"/opt/tritonserver/bin/tritonserver",',
            '"--model-repository", "/models/triton",',
            '"--http-address", "127.0.0.1",',
            '"--http-port", "8000",',
        ),
        {
            "ready.min_used": Set(
                '"4GiB"',
                "What a repository takes on a GPU cannot be read from its files: say what one GPU holds once all is loaded.",
            ),
            "ready.generate": Set("false", "What a model takes as input depends on its backend, so no token is asked for."),
        },
    ),
    "tensorrt-llm": Example(
        "tensorrt-llm",
        "TensorRT-LLM's own server on 8 GPUs.",
        (
            '"/usr/local/bin/trtllm-serve", "/models/deepseek-v3-fp8",',
            '"--tp_size", "8",',
            '"--host", "127.0.0.1",',
            '"--port", "8000",',
        ),
        {"gpus.count": Set("8")},
    ),
    "ollama": Example(
        "ollama",
        "Ollama with one model that it is to keep on the GPU.",
        ('"/usr/local/bin/ollama", "serve",',),
        {
            "server.model": Set(
                '"qwen3:32b"',
                "Ollama answers before any model is loaded; this one is asked for a token before the unit is ready.",
            ),
            **_ONE_GPU,
            "ready.min_used": Set('"16GiB"', "The model's size is not in any file named here."),
            "stop.drain": _NO_DRAIN,
        },
        (
            'OLLAMA_HOST = "127.0.0.1:11434"',
            "# never unload it: an idle unit with an empty GPU would look broken",
            'OLLAMA_KEEP_ALIVE = "-1"',
        ),
    ),
    "custom": Example(
        "custom",
        "Any other server that answers GET /health with 200 once it can work.",
        ('"/opt/my-server/bin/serve", "--config", "/etc/my-server.yaml",',),
        {
            "server.url": Set('"http://127.0.0.1:8000"', "Where this one answers cannot be read from its command."),
            **_ONE_GPU,
            "ready.min_used": Set('"8GiB"', "What its GPU holds once the model is loaded."),
            "ready.generate": Set("false", "How to ask it for a token is not known."),
        },
    ),
}


def example_config(engine: str, unit: str = "") -> str:
    """A commented config file for ``engine``, as it would be named for ``unit`` (empty: the example's own)."""
    example = EXAMPLES[engine]
    return "\n".join(_head(example, unit or example.unit)) + "\n" + "".join(_section(name, engine) for name in KEYS)


def _head(example: Example, unit: str) -> list[str]:
    return [
        *_comment(f"/etc/gpu-lifecycle/{unit}.toml\n{example.title}"),
        "#",
        *_comment(
            "A key that is commented out keeps its default: the value that stands there, or what the lines above it say."
            f" {UNITS} After a change:"
        ),
        f"#     gpu-lifecycle check {unit} && systemctl restart {unit}",
    ]


def _section(section: str, engine: str) -> str:
    lines = ["", *_comment(SECTION_TEXTS[section]), f"[{section}]"]
    # a table comes last: all that follows its name belongs to it
    for key, about in sorted(KEYS[section].items(), key=lambda item: item[1].kind is Kind.VARIABLES):
        lines += _key(section, key, about, engine)
    return "\n".join(lines) + "\n"


def _key(section: str, key: str, about: About, engine: str) -> Iterator[str]:
    example = EXAMPLES[engine]
    found = example.keys.get(f"{section}.{key}") or _general(section, key, engine)
    yield from _comment(" ".join(part for part in (*_facts(section, key, about, found), found.note if found else "") if part))
    if about.kind is Kind.VARIABLES:
        mark = "" if example.environment else "# "
        yield from (f"{mark}{line}" for line in (f"[{section}.{key}]", *(example.environment or (about.sample,))))
    elif found:
        yield f"{key} = {found.value}"
    else:
        yield f"# {key} = {about.sample or default_text(section, key)}"


def _general(section: str, key: str, engine: str) -> Set | None:
    """What every example sets."""
    if (section, key) == ("server", "command"):
        return Set("\n    ".join(("[", *EXAMPLES[engine].command)) + "\n]")
    return Set(f'"{engine}"') if (section, key) == ("server", "engine") else None


def _facts(section: str, key: str, about: About, found: Set | None) -> Iterator[str]:
    """The meaning of a key, what it may be, and the default where the line below does not show it."""
    yield about.meaning
    if about.kind is Kind.CHOICE and (section, key) != ("sweep", "policy"):
        yield f"{type_text(section, key).capitalize()}."
    if about.unset or (found and default(section, key) is not None):
        yield f"Default: {default_text(section, key)}."


def _comment(text: str) -> list[str]:
    lines = (textwrap.wrap(part, WIDTH - 2, break_long_words=False, break_on_hyphens=False) for part in text.split("\n"))
    return [f"# {line}" for part in lines for line in part]
