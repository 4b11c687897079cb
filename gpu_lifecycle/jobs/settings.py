"""What a run starts from: the unit's config, and the cgroup that the unit has."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator

from gpu_lifecycle import __version__
from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.rules.config import Config, from_plain, plain
from gpu_lifecycle.system.files import read_config_text, read_roots, write_state
from gpu_lifecycle.system.procfs import Proc

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


def load_config(layout: Layout, unit: UnitName) -> Config:
    """The unit's config. Raises ConfigError, NotPermittedError."""
    return load(layout, unit)[0]


def load(layout: Layout, unit: UnitName) -> tuple[Config, str]:
    """The unit's config and its text. A text that was read before, by this very code, needs no schema any more.

    Root keeps what it has read, in a folder that only root writes, as readable as the config itself.
    """
    path = layout.config(unit)
    text = read_config_text(path)
    kept = read_roots(layout.kept_config(unit))
    if kept and kept.get("text") == text and kept.get("code") == _code():
        with contextlib.suppress(ValueError):
            return from_plain(kept.get("config")), text
    config = parse(text, path)
    if os.geteuid() == 0 and os.path.isdir(layout.run_dir):
        with contextlib.suppress(LifecycleError):  # then the next one reads it as this one did
            write_state(layout.kept_config(unit), {"text": text, "code": _code(), "config": plain(config)}, path)
    return config, text


def _code() -> list[object]:
    """What decides how a text is read: after an upgrade, or a change by hand, it is another one."""
    folder = os.path.dirname(os.path.dirname(__file__)) + "/rules"
    names = ("config", "schema", "quantity", "engines", "endpoints", "shared_memory", "events", "listening")
    times = [os.stat(f"{folder}/{name}.py").st_mtime_ns for name in names]
    return [__version__, *times]


def parse(text: str, file: str) -> Config:
    """Parses a config, with the schema library imported without its plugins.

    A root hook must not run what some other package has registered there, nor pay for the search. The variable is taken
    back, so that the engine's environment stays as it was.
    """
    before = os.environ.get(PLUGINS)
    os.environ[PLUGINS] = "1"
    try:
        with _no_plugins():
            from gpu_lifecycle.rules.schema import parse_config
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
    none.entry_points = none.distributions = tuple  # type: ignore[attr-defined]  # an empty module takes any name
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
