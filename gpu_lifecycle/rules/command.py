"""An engine's command line and its ``--config`` file, read as the engine itself reads them.

Python's argparse: the last of repeated options wins, ``--opt=value`` is ``--opt value``, and a long option may be cut short
(``allow_abbrev``). SGLang and vLLM put the values of their config file before the words of the command line, which so override
them. Only the options named in rules/engines.py are read, never a key or a token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpu_lifecycle.rules.engines import Engine, draft_of, model_of
from gpu_lifecycle.rules.options import CHECKED
from gpu_lifecycle.rules.text import printable

__all__ = ["Command", "Wrong", "config_file", "flat_yaml", "read_command"]

SHORTEST = 8  # characters of a long option that is cut short: fewer are left alone
_NUMBER = re.compile(r"\+?[0-9]{1,12}")
_MULTIPLES = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
_LINE = re.compile(r"(?P<key>[A-Za-z][A-Za-z0-9_-]*)[ \t]*:(?:[ \t]+(?P<value>.*))?")


@dataclass(frozen=True, slots=True)
class Wrong:
    """An option whose value is not what the engine takes."""

    option: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """What is said of the server. None: not said, so the engine's own default. Lengths are tokens."""

    model: str | None = None
    draft: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    nnodes: int | None = None
    context_length: int | None = None
    memory_fraction: float | None = None
    algorithm: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    quantization: str | None = None
    tokenizer: str | None = None
    load_format: str | None = None
    device: str | None = None
    config_file: str | None = None
    overrides: str | None = None  # of the model's config.json
    dp_local: int | None = None
    kv_dtype: str | None = None
    offload: str | None = None  # GiB of the weights that stay in the machine's memory
    rope_scaling: str | None = None
    flags: frozenset[str] = frozenset()
    wrong: tuple[Wrong, ...] = ()


_COUNTS = ("tp", "pp", "dp", "ep", "nnodes", "context_length", "steps", "topk", "draft_tokens", "dp_local")
_NAMES = (
    "algorithm", "quantization", "tokenizer", "load_format", "device", "config_file", "overrides", "kv_dtype", "offload",
    "rope_scaling",
)  # fmt: skip
UNCLEAR = "?"  # overrides that are given piece by piece (vLLM: --hf-overrides.key value), which are not put together here


def read_command(engine: Engine, argv: Sequence[str], env: Mapping[str, str], file: Mapping[str, str] | None = None) -> Command:
    """Reads ``argv``, over ``file`` (the values of its ``--config``), over ``env``. Never raises."""
    words = [*_as_words(file or {}), *(argv[: argv.index("--")] if "--" in argv else argv)]
    tables = {"tp": engine.tp_options, "model": engine.model_options, "draft": engine.draft_options}
    tables |= {**engine.settings, **CHECKED.get(engine.name, {})}
    known = {_spelling(name): key for key, names in tables.items() for name in names}
    flags = {_spelling(name): name for name in engine.flags}
    texts, shown, seen = {}, {}, set()
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if (key := _known(name, known)) is not None:
            texts[key] = value if equals else following
            shown[key] = name
        elif _spelling(word) in flags:
            seen.add(flags[_spelling(word)])
        elif known.get(_spelling(name).partition(".")[0]) == "overrides":
            texts["overrides"] = UNCLEAR
    if "tp" not in texts and engine.tp_env in env:
        texts["tp"], shown["tp"] = env[engine.tp_env], engine.tp_env
    return _typed(texts, shown, frozenset(seen), texts.get("model") or model_of(engine, argv, env), draft_of(engine, argv))


def config_file(engine: Engine, argv: Sequence[str]) -> str | None:
    """The path of the engine's own config file; None: it has none."""
    return read_command(engine, argv, {}).config_file


def _as_words(file: Mapping[str, str]) -> list[str]:
    return [word for key, value in file.items() for word in ([f"--{key}", value] if value != "true" else [f"--{key}"])]


def _spelling(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def _known(name: str, known: Mapping[str, str]) -> str | None:
    """The field that an option sets. Cut short, it must fit one field only, as argparse demands."""
    name = _spelling(name)
    if name in known:
        return known[name]
    if not name.startswith("--") or len(name) < SHORTEST:
        return None
    fits = {key for spelled, key in known.items() if spelled.startswith(name)}
    return fits.pop() if len(fits) == 1 else None


def _typed(
    texts: dict[str, str], shown: dict[str, str], flags: frozenset[str], model: str | None, draft: str | None
) -> Command:
    wrong: list[Wrong] = []
    counts: dict[str, Any] = {}
    for key in _COUNTS:
        if key in texts:
            counts[key] = _count(texts[key])
            # an empty value and vLLM's "auto" are the engine's own matter
            if counts[key] is None and texts[key] not in ("", "auto", "-1"):
                wrong.append(Wrong(shown[key], printable(texts[key], 40)))
    fraction = _fraction(texts.get("memory_fraction"))
    if texts.get("memory_fraction") and fraction is None:
        wrong.append(Wrong(shown["memory_fraction"], printable(texts["memory_fraction"], 40)))
    names: dict[str, Any] = {key: texts.get(key) or None for key in _NAMES}
    return Command(
        model=model,
        draft=texts.get("draft") or draft,
        memory_fraction=fraction,
        flags=flags,
        wrong=tuple(wrong),
        **counts,
        **names,
    )


def _count(text: str) -> int | None:
    """A whole number; vLLM also takes 256k or 25.6k (thousands) and 256K (1024s)."""
    text = text.strip()
    if text[-1:] in _MULTIPLES and re.fullmatch(r"[0-9]{1,9}", text[:-1]):
        return int(text[:-1]) * _MULTIPLES[text[-1]]
    if text[-1:] in ("k", "m", "g") and re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", text[:-1]):
        return int(float(text[:-1]) * _MULTIPLES[text[-1]])
    return int(text) if _NUMBER.fullmatch(text) else None


def _fraction(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def flat_yaml(text: str) -> dict[str, str] | None:
    """A config file of plain ``key: value`` lines, which is all that SGLang and vLLM use for what is checked here.

    A nested or listed value is left out with its key. None: not read with certainty (anchors, tags, documents, block text),
    so nothing may be concluded from what it does not say.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#") or line == "---" or line[0] in " \t-":
            continue
        match = _LINE.fullmatch(line.rstrip())
        value = _scalar(match["value"] or "") if match else None
        if match is None or value is None:
            return None
        if value and value[0] not in "[{":
            found[match["key"]] = value
    return found


def _scalar(text: str) -> str | None:
    text = text.strip()
    if text[:1] in ('"', "'"):
        quoted = re.fullmatch(r"""(["'])([^"'\\]*)\1\s*(?:#.*)?""", text)
        return quoted[2] if quoted else None
    if text[:1] in ("&", "*", "!", "|", ">"):
        return None
    text = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    return "" if text in ("null", "~", "false", "False") else "true" if text == "True" else text
