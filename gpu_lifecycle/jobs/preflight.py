"""Reads what a start would read of command line and models, and judges it before the engine is started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules.command import config_file, flat_yaml, read_command

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config
    from gpu_lifecycle.rules.model_folder import ModelFolder
    from gpu_lifecycle.rules.preflight import Plan

SECONDS = 5.0  # the shards of a large model take some 0.2 s from a warm cache; more is a disk or a network that is slow
CONTAINERS = frozenset(("docker", "podman", "nerdctl", "apptainer", "singularity", "enroot", "kubectl", "srun", "ssh"))
KEY = "server.command"


def preflight(config: Config, service: str, env: Mapping[str, str], seconds: float = SECONDS) -> tuple[Finding, ...]:
    """All findings. ``env`` is what the engine's environment is made from, without ``server.environment``.

    Takes at most about so many seconds per look at a disk; what did not come back by then is said and not judged.
    """
    from dataclasses import replace

    from gpu_lifecycle.rules.preflight import judge

    inside = os.path.basename(config.server.command[0]) in CONTAINERS
    path = None if inside else config_file(config.server.preset, config.server.command)
    values = _values(path, seconds) if path else {}
    plan = _plan(config, env, values)
    if inside:
        text = "the engine is started in a container or elsewhere: the files of its models are not looked at"
        return (Finding(Level.INFO, "in-container", text, key=KEY), *judge(replace(plan, certain=False)))
    found = [*_unseen_work(config)]
    if values is None:
        text = "the engine's config file was not read with certainty: what follows from it is a warning at most"
        found.append(Finding(Level.WARN, "not-certain", text, "put the options into server.command", str(path), KEY))
    model, draft = plan.command.model, plan.command.draft
    folders, said = _folders(model, draft, service, seconds)
    plan = replace(plan, target=folders.get(model or ""), draft=folders.get(draft or ""))
    return (*found, *said, *judge(plan))


def _unseen_work(config: Config) -> Iterator[Finding]:
    """Of an engine without counters only a token tells whether it works, and that may wait behind the requests of others."""
    from gpu_lifecycle.rules.engines import metrics_of

    server = config.server
    preset = server.preset
    if preset.health_generates or not preset.generate or metrics_of(preset, server.command):
        return
    text = "no counters of this engine's work can be seen: a hang behind which requests wait is found only after half an hour"
    option = preset.metrics.option if preset.metrics else ""
    yield Finding(Level.INFO, "unseen-work", text, f"add {option} to server.command" if option else "", key=KEY)


def _plan(config: Config, env: Mapping[str, str], values: Mapping[str, str] | None) -> Plan:
    """What the config and the command say; the config's own keys override the command."""
    from dataclasses import replace

    from gpu_lifecycle.rules.preflight import Plan

    server = config.server
    environment = {**env, **server.environment}
    said = read_command(server.preset, server.command, environment, values)
    command = replace(said, model=server.model or said.model, draft=server.draft_model or said.draft, tp=server.tp or said.tp)
    claimed = config.gpus.count if config.gpus.claim == "all" else len(config.gpus.claim)
    return Plan(server.engine, command, environment, claimed=claimed, certain=values is not None)


def _values(path: str, seconds: float) -> dict[str, str] | None:
    """What the engine's own config file says; None: not read with certainty."""
    from gpu_lifecycle.system.model import read_text

    text = read_text(path, seconds)
    return None if text is None else flat_yaml(text)


def _folders(
    model: str | None, draft: str | None, service: str, seconds: float
) -> tuple[dict[str, ModelFolder], list[Finding]]:
    """The folders of the models, and what is to be said of those that are not looked into."""
    from gpu_lifecycle.rules.text import printable
    from gpu_lifecycle.system.model import read_folders

    named = [path for path in dict.fromkeys((model, draft)) if path]
    paths = [path for path in named if os.path.isabs(path)]
    said = [
        Finding(Level.INFO, "model-by-name", f"{printable(path)} is a name, no folder: its files are not looked at", key=KEY)
        for path in named
        if path not in paths
    ]
    if not paths:
        return {}, said
    read = read_folders(paths, _user_of(service), seconds)
    if read is None:
        text = f"the files of {printable(' and '.join(paths))} were not read within {seconds:g} s: they are not judged"
        said.append(Finding(Level.WARN, "model-slow", text, "is their file system mounted, and does its server answer?"))
    return read or {}, said


def _user_of(service: str) -> str:
    """The unit's user; "" where it cannot be told: then the files are read as we are."""
    from gpu_lifecycle.system.bus import unit_user

    if os.geteuid() != 0:
        return ""
    try:
        return unit_user(service)
    except LifecycleError:
        return ""
