"""Models that are named, not given by a folder: what a name may be, whether downloads are allowed, where they are kept. Pure.

Source: huggingface_hub's ``constants.py`` and its guide "Understand caching".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_TRUE = frozenset(("1", "on", "yes", "true"))
OTHER_HUBS = ("SGLANG_USE_MODELSCOPE", "VLLM_USE_MODELSCOPE")  # another hub, with a cache of its own


def is_name(model: str) -> bool:
    """Whether a hub could have a model of this name: ``name`` or ``org/name``."""
    return bool(_NAME.fullmatch(model)) and ".." not in model and "--" not in model


def offline(env: Mapping[str, str]) -> str:
    """The variable that forbids downloads; "" where none does."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((name for name in names if env.get(name, "").lower() in _TRUE), "")


def other_hub(env: Mapping[str, str]) -> bool:
    """Whether names are those of another hub, of whose cache nothing is known here."""
    return any(env.get(name, "").lower() in _TRUE for name in OTHER_HUBS)


def cache_of(env: Mapping[str, str]) -> str:
    """The folder of downloaded models; "" where it cannot be told."""
    said = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    return said or (f"{home}/hub" if (home := hub_home(env)) else "")


def hub_home(env: Mapping[str, str]) -> str:
    """HF_HOME, or where it is without being said; "" where that cannot be told."""
    if env.get("HF_HOME"):
        return env["HF_HOME"]
    base = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else "")
    return f"{base}/huggingface" if base else ""


def folder_name(model: str) -> str:
    """The name of a model's folder in the cache."""
    return "models--" + model.replace("/", "--")
