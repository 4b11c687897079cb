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
    from gpu_lifecycle.system.model import Reading

SECONDS = 5.0  # the shards of a large model take some 0.2 s from a warm cache; more is a disk or a network that is slow
CONTAINERS = frozenset(("docker", "podman", "nerdctl", "apptainer", "singularity", "enroot", "kubectl", "srun", "ssh"))
KEY = "server.command"


class Preflight:
    """Begins to read at once, in a child; ``findings`` waits for what is left of that.

    ``env`` is what the engine's environment is made from, without ``server.environment``. Takes at most about so many seconds
    per look at a disk; what did not come back by then is said and not judged. Raises BusyError where no child can be made.
    """

    def __init__(self, config: Config, service: str, env: Mapping[str, str], seconds: float = SECONDS) -> None:
        self.config = config
        self.seconds = seconds
        self.inside = os.path.basename(config.server.command[0]) in CONTAINERS
        self.path = None if self.inside else config_file(config.server.preset, config.server.command)
        values = _values(self.path, seconds) if self.path else {}
        self.plan = _plan(config, env, values)
        self.places: dict[str, str] = {}  # of the models, by what the command calls them
        self.said: list[Finding] = []
        self.reading: Reading | None = None
        if not self.inside:
            self._begin(service)

    def _begin(self, service: str) -> None:
        from gpu_lifecycle.system.model import Reading

        named = [path for path in dict.fromkeys((self.plan.command.model, self.plan.command.draft)) if path]
        user = _user_of(service) if named else ""
        here = {path: path for path in named if os.path.isabs(path)}
        found, self.said = _downloaded(self.plan, [path for path in named if path not in here], user, self.seconds)
        self.places = here | found
        if self.places:
            self.reading = Reading(list(self.places.values()), user)

    def findings(self, memory: int | None = None) -> tuple[Finding, ...]:
        """``memory`` is that of the smallest claimed GPU in bytes; None: not known, so the weights are not compared with it."""
        from dataclasses import replace

        from gpu_lifecycle.rules.preflight import judge

        if self.inside:
            text = "the engine is started in a container or elsewhere: the files of its models are not looked at"
            return (Finding(Level.INFO, "in-container", text, key=KEY), *judge(replace(self.plan, certain=False)))
        folders, command = self._folders(), self.plan.command
        target, draft = folders.get(command.model or ""), folders.get(command.draft or "")
        plan = replace(self.plan, target=_overridden(self.plan, target), draft=draft, memory=memory)
        return (*_unseen_work(self.config), *self._doubts(), *self.said, *judge(plan))

    def _doubts(self) -> Iterator[Finding]:
        if not self.plan.certain:
            text = "the engine's config file was not read with certainty: what follows from it is a warning at most"
            yield Finding(Level.WARN, "not-certain", text, "put the options into server.command", str(self.path), KEY)

    def _folders(self) -> dict[str, ModelFolder]:
        """The folders of the models, by what the command calls them; that they are not read in time is kept, to be said."""
        from gpu_lifecycle.rules.text import printable

        if self.reading is None:
            return {}
        read = self.reading.folders(self.seconds)
        if read is None:
            shown = printable(" and ".join(self.places.values()))
            text = f"the files of {shown} were not read within {self.seconds:g} s: they are not judged"
            hint = "is their file system mounted, and does its server answer?"
            self.said.append(Finding(Level.WARN, "model-slow", text, hint))
        return {name: read[place] for name, place in self.places.items()} if read else {}

    def close(self) -> None:
        if self.reading:
            self.reading.close()


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


def _overridden(plan: Plan, folder: ModelFolder | None) -> ModelFolder | None:
    """The target as the engine sees it: with what its options change of its config.json."""
    from dataclasses import replace

    from gpu_lifecycle.rules.model_config import overridden

    if folder is None or folder.config is None:
        return folder
    rope = f'{{"rope_scaling": {plan.command.rope_scaling}}}' if plan.command.rope_scaling else None
    return replace(folder, config=dict(overridden(overridden(folder.config, plan.command.overrides), rope)))


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


def _downloaded(plan: Plan, names: list[str], user: str, seconds: float) -> tuple[dict[str, str], list[Finding]]:
    """Where the models that are named lie in the cache of downloads, and what is to be said of those that do not."""
    from gpu_lifecycle.rules.hub import cache_of, is_name, other_hub
    from gpu_lifecycle.rules.preflight import by_name
    from gpu_lifecycle.system.hub import snapshots

    cache = "" if other_hub(plan.env) else cache_of(plan.env)
    asked = [name for name in names if is_name(name)] if os.path.isabs(cache) else []
    read = snapshots(asked, cache, user, seconds) if asked else {}
    found = {name: place for name, place in (read or {}).items() if place}
    looked = cache if read is not None else ""
    return found, [by_name(plan, name, looked if name in asked else "") for name in names if name not in found]


def _user_of(service: str) -> str:
    """The unit's user; "" where it cannot be told: then the files are read as we are."""
    from gpu_lifecycle.system.bus import unit_user

    if os.geteuid() != 0:
        return ""
    try:
        return unit_user(service)
    except LifecycleError:
        return ""
