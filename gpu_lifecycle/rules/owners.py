"""Who answers for a process, read from its cgroup path alone (``systemd.slice(5)``, ``systemd-logind.service(8)``).

Only names are decided here; whether a unit is alive is asked of the bus by who calls.
"""

from __future__ import annotations

import re

from gpu_lifecycle.facts import Owner, OwnerKind

_HEX_ID = r"[0-9a-f]{12,64}"
# Path components by which container engines name a container's cgroup.
_CONTAINERS = (
    (re.compile(rf"^docker-({_HEX_ID})\.scope$"), "docker"),
    (re.compile(rf"^libpod-(?:conmon-)?({_HEX_ID})(?:\.scope)?$"), "podman"),
    (re.compile(rf"^cri-containerd-({_HEX_ID})\.scope$"), "containerd"),
    (re.compile(rf"^crio-(?:conmon-)?({_HEX_ID})(?:\.scope)?$"), "cri-o"),
    (re.compile(r"^lxc\.payload\.(.+)$"), "lxc"),
    (re.compile(r"^machine-(.+)\.scope$"), "machine"),
    (re.compile(r"^systemd-nspawn@(.+)\.service$"), "nspawn"),
    (re.compile(r"^(?:kubepods[^/]*-)?pod([0-9a-f_-]{32,36})(?:\.slice)?$"), "pod"),
)
_SESSION = re.compile(r"^session-([A-Za-z0-9]+)\.scope$")
_USER_MANAGER = re.compile(r"^user@(\d+)\.service$")


def owner_of(cgroup: str) -> Owner:
    """The owner that a cgroup path names; ``alive`` stays None."""
    parts = [part for part in cgroup.split("/") if part]
    if ".." in parts:
        return Owner(OwnerKind.NONE, cgroup, outside=True)
    container = _container(parts)
    if container:
        return container
    session = _session(parts)
    if session:
        return session
    units = [part for part in parts if part.endswith((".service", ".scope"))]
    if units:  # the first one: what is below it is the unit's own affair, whatever it is called
        return Owner(OwnerKind.UNIT, units[0])
    return Owner(OwnerKind.NONE, cgroup if parts else "")


def _container(parts: list[str]) -> Owner | None:
    for before, part in zip(["", *parts], parts, strict=False):
        for pattern, engine in _CONTAINERS:
            match = pattern.match(part)
            if match:
                return Owner(OwnerKind.CONTAINER, f"{engine}:{match[1]}")
        if before in ("docker", "lxc", "libpod_parent") and part not in ("", "init.scope"):
            return Owner(OwnerKind.CONTAINER, f"{before}:{part}")
    return None


def _session(parts: list[str]) -> Owner | None:
    """A login session's scope, or what a user's own manager runs: a service there is a unit, a scope is a session."""
    for at, part in enumerate(parts):
        match = _SESSION.match(part)
        if match:
            return Owner(OwnerKind.SESSION, part)
        if _USER_MANAGER.match(part):
            rest = [name for name in parts[at + 1 :] if name.endswith((".service", ".scope"))]
            if rest and rest[0].endswith(".service"):
                return Owner(OwnerKind.UNIT, f"{part}/{rest[0]}")
            return Owner(OwnerKind.SESSION, "/".join([part, *rest[:1]]))
    return None
