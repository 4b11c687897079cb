"""What a unit's sandbox leaves of the machine (systemd.exec(5)): where it may write, how large its own /dev/shm is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SHM = "/dev/shm"  # noqa: S108 - only its name
_FOLDERS = {
    "StateDirectory": "/var/lib", "CacheDirectory": "/var/cache", "RuntimeDirectory": "/run", "LogsDirectory": "/var/log",
}  # fmt: skip
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
DEFAULT_SHARE = 10  # percent of the memory: systemd's default for such a mount (TMPFS_LIMITS_TEMPORARY_FS)


def own_shm(properties: Mapping[str, Any], memory: int) -> int | None:
    """Bytes of the unit's own /dev/shm; None: it has the machine's. ``memory`` is the machine's."""
    found = [options for path, options in properties.get("TemporaryFileSystem") or () if path.rstrip("/") == SHM]
    return tmpfs_size(found[-1], memory) if found else None


def tmpfs_size(options: str, memory: int) -> int:
    """What ``size=`` says (tmpfs(5)): bytes, with k, m or g, or percent of the memory."""
    said = re.findall(r"(?:^|,)size=([0-9]{1,15})([kmgt%]?)(?=,|$)", options.lower())
    number, unit = said[-1] if said else (str(DEFAULT_SHARE), "%")
    return memory * int(number) // 100 if unit == "%" else int(number) * _UNITS[unit]


def managed(properties: Mapping[str, Any]) -> tuple[str, ...]:
    """The folders that systemd makes for the unit, and gives to its user."""
    return tuple(f"{base}/{name}" for key, base in _FOLDERS.items() for name in properties.get(key) or ())


def may_write(path: str, properties: Mapping[str, Any]) -> bool:
    """Whether the sandbox lets the unit write below ``path``; whose the folder is, is another question."""
    if _below(path, _writable(properties)):
        return True
    strict = properties.get("ProtectSystem") == "strict"
    closed = {"yes": ("/usr", "/boot", "/efi"), "full": ("/usr", "/boot", "/efi", "/etc")}
    if strict or _below(path, closed.get(str(properties.get("ProtectSystem")), ())):
        return False
    return properties.get("ProtectHome") in (None, "no") or not _below(path, ("/home", "/root", "/run/user"))


def _writable(properties: Mapping[str, Any]) -> Iterator[str]:
    yield from managed(properties)
    yield from ("/dev", "/proc", "/sys")  # API file systems have protections of their own
    yield from (str(item).lstrip("-+") for item in properties.get("ReadWritePaths") or ())
    yield from (str(item[0]) for item in properties.get("TemporaryFileSystem") or ())
    yield from (str(item[1]) for item in properties.get("BindPaths") or ())
    if properties.get("PrivateTmp") not in (None, False, "no"):
        yield from ("/tmp", "/var/tmp")  # noqa: S108 - only names


def _below(path: str, folders: Any) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def environment(properties: Mapping[str, Any], home: str = "") -> dict[str, str]:
    """What systemd gives the unit's processes, without the files that it would read (EnvironmentFile=)."""
    said = [str(item).partition("=") for item in properties.get("Environment") or ()]
    base = {"HOME": home} if home else {}
    return base | {name: value for name, _, value in said}
