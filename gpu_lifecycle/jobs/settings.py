"""What a run starts from: the unit's config, and the cgroup that the unit has."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.system.files import read_config_text
from gpu_lifecycle.system.procfs import Proc

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


def load_config(layout: Layout, unit: UnitName) -> Config:
    """The unit's config. Raises ConfigError, NotPermittedError."""
    path = layout.config(unit)
    return parse(read_config_text(path), path)


def parse(text: str, file: str) -> Config:
    """Parses a config, with the schema library imported without its plugins.

    A root hook must not run what some other package has registered there, nor pay for the search. The variable is taken
    back, so that the engine's environment stays as it was.
    """
    before = os.environ.get(PLUGINS)
    os.environ[PLUGINS] = "1"
    try:
        with _no_plugins():
            from gpu_lifecycle.rules.config import parse_config
    finally:
        if before is None:
            del os.environ[PLUGINS]
        else:
            os.environ[PLUGINS] = before
    return parse_config(text, file)


@contextlib.contextmanager
def _no_plugins() -> Iterator[None]:
    """Meanwhile nobody finds plugins. The real module takes a tenth of the hook's time, only to be imported."""
    name = "importlib.metadata"
    if name in sys.modules or "pydantic" in sys.modules:
        yield
        return
    none = types.ModuleType(name)
    none.entry_points = none.distributions = tuple  # type: ignore[attr-defined]
    sys.modules[name] = none
    try:
        yield
    finally:
        del sys.modules[name]


def unit_cgroup(proc: Proc, unit: UnitName) -> str:
    """The cgroup that this process shares with the unit; "" where it does not run inside the unit."""
    path = proc.cgroup(os.getpid())
    parts = path.split("/")
    if unit.service in parts:
        return "/".join(parts[: parts.index(unit.service) + 1])
    return ""
