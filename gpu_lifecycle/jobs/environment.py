"""What systemd gives a unit's processes as their environment: its settings, and the files that they name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_lifecycle.errors import BusyError
from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules import env_file
from gpu_lifecycle.rules.sandbox import environment
from gpu_lifecycle.rules.units import version_number
from gpu_lifecycle.system.as_user import account
from gpu_lifecycle.system.unit_files import matching, read_text
from gpu_lifecycle.system.worker import in_child

SECONDS = 5.0  # for the files of one EnvironmentFile= to be read


@dataclass(frozen=True, slots=True)
class Given:
    """``certain`` False: a file could not be read here. ``findings``: files that fail the start, or hold it up."""

    values: dict[str, str]
    certain: bool = True
    findings: tuple[Finding, ...] = ()


def given(properties: Mapping[str, Any], version: str) -> Given:
    """By what systemd has loaded of the unit; the files are read now, as each start does."""
    who = account(str(properties.get("User") or "root"))
    base = environment(properties, who.home if who else "")
    files: list[dict[str, str]] = []
    certain, findings = True, []
    for pattern, optional in properties.get("EnvironmentFiles") or ():
        read, silent = _read(str(pattern), version_number(version))
        findings += silent
        certain = certain and not silent
        for found in read:
            if not isinstance(found, str):
                files.append(found)
            elif os.geteuid() != 0:
                certain = False  # systemd reads them as root
            elif not optional:
                certain = False
                findings.append(_broken(str(pattern), found))
    return Given(env_file.merged(base, files), certain, tuple(findings))


def _read(pattern: str, version: int | None) -> tuple[list[dict[str, str] | str], list[Finding]]:
    """What ``_files`` finds, in a child; nothing, and what is to be said, where that does not come back or cannot be made."""
    try:
        found = in_child(lambda: {"files": list(_files(pattern, version))}, SECONDS)
    except BusyError as error:
        return [], [Finding(Level.WARN, "no-process", error.message, error.hint)]
    if found is None:
        text = f"EnvironmentFile={pattern} was not read within {SECONDS:g} s: a start would be held up by it"
        hint = "is its file system mounted, and does its server answer?"
        return [], [Finding(Level.ERROR, "environment-silent", text, hint, key="EnvironmentFile")]
    return found["files"], []


def _files(pattern: str, version: int | None) -> Iterator[dict[str, str] | str]:
    """The variables of each file that a pattern names, or why systemd would not read it."""
    paths = matching(pattern)
    if not paths:
        yield "there is no such file"
    for path in paths:
        found = read_text(path, "surrogateescape")
        values = None if found.problem else env_file.read(found.text, version)
        yield found.problem or "it holds what is no text" if values is None else values


def _broken(path: str, why: str) -> Finding:
    text = f"EnvironmentFile={path} cannot be read: {why}; systemd will not start the unit"
    return Finding(Level.ERROR, "environment-file", text, 'mend it, or write "-" before its path', key="EnvironmentFile")
