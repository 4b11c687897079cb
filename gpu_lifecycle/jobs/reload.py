"""``systemctl reload``: the config is read again, and the daemon gives its place to the code that is installed now.

The process stays the same one, and so the engine's parent: execve(2) keeps the pid, the children and what was opened for it.
Nothing is given up before the other side has shown, in a process of its own, that it can take over.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpu_lifecycle import __version__
from gpu_lifecycle.errors import Exit, LifecycleError
from gpu_lifecycle.facts import HANDOVER, Layout, UnitName
from gpu_lifecycle.jobs.limits import limits_for
from gpu_lifecycle.jobs.output import unpack_output
from gpu_lifecycle.jobs.settings import parse
from gpu_lifecycle.rules.config import plain
from gpu_lifecycle.rules.handover import Handover, changes, read, unpack
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.system.files import read_config_text
from gpu_lifecycle.system.probe import load_client

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

FIXED = ("server", "gpus")  # sections that only a new start can follow
SELF_TEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reload will change: the new config's text, and words for a person."""

    latest: str
    changes: str


def merged(started: str, latest: str, file: str) -> Config:
    """The config in force: what the engine was started with, and for all else the latest. Raises ConfigError."""
    old, new = parse(started, file), parse(latest, file)
    return replace(new, server=old.server, gpus=old.gpus)


async def prepare(path: str, handover: Handover) -> Plan:
    """Reads the config and tries the installed code. Raises LifecycleError where everything has to stay as it is."""
    latest = await asyncio.to_thread(read_config_text, path)
    in_force, new = merged(handover.config, handover.latest, path), parse(latest, path)
    now, later = changes(plain(in_force), plain(new), FIXED)
    words = [f"at once: {', '.join(now)}"] if now else []
    words += [f"only with the next start: {', '.join(later)}"] if later else []
    plan = Plan(latest, "; ".join(words) or "the config is the same")
    await asyncio.to_thread(_self_test, handover.document() | {"latest": latest})
    return plan


def _self_test(document: Mapping[str, Any]) -> None:
    words = [*_program(), "--self-test"]
    given = json.dumps(document).encode()
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=SELF_TEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LifecycleError(f"the installed code did not pass its test within {show_duration(SELF_TEST_SECONDS)}") from None
    except OSError as error:
        raise LifecycleError(f"the installed code cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
        raise LifecycleError(f"the installed code does not pass its test: {printable(said, 300)}", hint="install it again")


def self_test(unit: UnitName, layout: Layout) -> Exit:
    """In a process of its own: could this code take over what standard input holds? Raises where it could not."""
    from importlib import import_module

    for name in ("jobs.run", "jobs.serve"):  # with them comes all that a run needs
        import_module(f"gpu_lifecycle.{name}")
    load_client()
    try:
        handover = read(json.load(sys.stdin))
        config = merged(handover.config, handover.latest, layout.config(unit))
        unpack(handover.life, limits_for(config, handover.gpus, None))
        unpack_output(handover.output)
    except ValueError as error:
        raise LifecycleError(f"cannot take over from version {__version__}: {error}") from error
    return Exit.OK


def _program() -> list[str]:
    """How this process was started, with its interpreter (PEP 587 keeps it in ``sys.orig_argv``)."""
    return [sys.executable, *sys.orig_argv[1:]]


def replace_process(handover: Handover) -> None:
    """Becomes the installed code. Returns only where that fails: raises OSError.

    SIGTERM and the like must be blocked: they stay pending, and are heard on the other side.
    """
    text = json.dumps(handover.document()).encode()
    fd = os.memfd_create("handover", 0)
    try:
        while text:
            text = text[os.write(fd, text) :]
        os.lseek(fd, 0, os.SEEK_SET)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, _program(), os.environ | {HANDOVER: str(fd)})  # noqa: S606 - that very program
    finally:
        os.close(fd)


def taken_over() -> Handover:
    """What the program that was here before, in this process, hands over. Raises LifecycleError where it is unfit."""
    try:
        with open(int(os.environ.pop(HANDOVER)), encoding="utf-8") as file:
            return read(json.load(file))
    except (OSError, ValueError) as error:
        raise LifecycleError(f"cannot take over the run: {error}") from error
