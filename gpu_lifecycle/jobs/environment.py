"""What systemd gives a unit's processes as their environment: its settings, and the files that they name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_lifecycle.facts import Finding, Level
from gpu_lifecycle.rules import env_file
from gpu_lifecycle.rules.sandbox import environment
from gpu_lifecycle.rules.units import version_number
from gpu_lifecycle.system.as_user import account
from gpu_lifecycle.system.unit_files import matching, read_text


@dataclass(frozen=True, slots=True)
class Given:
    """``certain`` False: there is a file that could not be read here. ``findings``: files that fail the start."""

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
        for found in _files(str(pattern), version_number(version)):
            if not isinstance(found, str):
                files.append(found)
            elif os.geteuid() != 0:
                certain = False  # systemd reads them as root
            elif not optional:
                certain = False
                findings.append(_broken(str(pattern), found))
    return Given(env_file.merged(base, files), certain, tuple(findings))


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
