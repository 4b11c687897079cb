"""The machine's disk: what lies over this machine's root before the first boot."""

from __future__ import annotations

import os
import shutil
import sysconfig
import uuid
from pathlib import Path

KEEP = {
    "dbus.service",
    "dbus.socket",
    "systemd-journal-flush.service",
    "systemd-journald-dev-log.socket",
    "systemd-journald.service",
    "systemd-journald.socket",
    "systemd-logind.service",
    "systemd-tmpfiles-setup.service",
    "systemd-user-sessions.service",
}
WANTS = """
basic default getty graphical local-fs local-fs-pre multi-user network-online paths sockets sysinit timers
"""
# Started by a bus name or another unit, or of no use to a machine without hardware; masked where the system has them.
MASK = """
console-getty.service dev-hugepages.mount getty.target modprobe@.service nvidia-fabricmanager.service
nvidia-persistenced.service systemd-homed.service systemd-hostnamed.service systemd-machine-id-commit.service
systemd-networkd.service systemd-networkd.socket systemd-oomd.service systemd-remount-fs.service
systemd-resolved.service systemd-timesyncd.service systemd-udevd.service systemd-userdbd.socket
"""
# The host's own set-up does not shine through these.
FRESH = """
etc/gpu-lifecycle etc/systemd/journald.conf.d etc/systemd/system etc/systemd/system.conf.d etc/systemd/user home
var/lib/gpu-lifecycle var/lib/systemd var/log/journal var/tmp
"""
UNIT_FOLDERS = ("usr/lib/systemd/system", "lib/systemd/system")
JOURNALD = "[Journal]\nStorage=persistent\nReadKMsg=no\nAudit=no\nForwardToSyslog=no\nForwardToWall=no\nSystemMaxUse=64M\n"


class Disk:
    """An overlay's upper folder, filled by name; the lower one is the root of a system tree."""

    def __init__(self, folder: Path, lower: Path) -> None:
        self.folder = folder
        self.upper = folder / "upper"
        self.lower = lower

    def create(self, hostname: str, users: dict[str, int]) -> None:
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        for name in FRESH.split():
            self.fresh(name)
        (self.upper / "var/tmp").chmod(0o1777)
        self.write("etc/machine-id", uuid.uuid4().hex + "\n", 0o444)
        self.write("etc/hostname", hostname + "\n")
        self.write("etc/hosts", f"127.0.0.1 localhost {hostname}\n::1 localhost\n")
        self.write("etc/fstab", "")
        self.write("etc/systemd/journald.conf.d/50-machine.conf", JOURNALD)
        self._quiet()
        self._users(users)

    def new_boot(self) -> None:
        """A volatile overlay refuses its old work folder."""
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        (self.folder / "work").mkdir()

    def path(self, name: str) -> Path:
        """A place in the upper folder, its parents made like those below (mode and owner)."""
        path = self.upper / name.lstrip("/")
        self._parents(path.parent)
        return path

    def fresh(self, name: str) -> Path:
        """An empty folder that hides what lies below."""
        path = self.path(name)
        path.mkdir(exist_ok=True)
        os.setxattr(path, "trusted.overlay.opaque", b"y")
        return path

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.path(name)
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def copy(self, source: Path, name: str, mode: int | None = None) -> None:
        path = self.path(name)
        if source.is_dir():
            shutil.copytree(source, path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, path)
        if mode is not None:
            path.chmod(mode)

    def link(self, name: str, target: str) -> None:
        path = self.path(name)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def library_folder(self) -> str:
        """Where this system's loader looks without being told."""
        multiarch = str(sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu")
        for name in (f"usr/lib/{multiarch}", "usr/lib64"):
            if (self.lower / name).is_dir():
                return name
        return "usr/lib"

    def _parents(self, folder: Path) -> None:
        if folder == self.upper or folder.exists():
            return
        self._parents(folder.parent)
        folder.mkdir()
        below = self.lower / folder.relative_to(self.upper)
        if below.is_dir():
            status = below.stat()
            folder.chmod(status.st_mode & 0o7777)
            os.chown(folder, status.st_uid, status.st_gid)
        else:
            folder.chmod(0o755)

    def _quiet(self) -> None:
        """Nothing starts but what a machine needs: the journal, D-Bus and logins."""
        for folder in UNIT_FOLDERS:
            units = self.lower / folder
            wanted = {path.name for target in WANTS.split() for path in units.glob(f"{target}.target.wants/*")}
            present = {name for name in MASK.split() if (units / name).exists()}
            for name in (wanted | present) - KEEP:
                self.link(f"etc/systemd/system/{name}", "/dev/null")
        for folder in ("usr/lib/systemd/system-generators", "lib/systemd/system-generators"):
            for generator in (self.lower / folder).glob("*"):
                self.link(f"etc/systemd/system-generators/{generator.name}", "/dev/null")
        self.link("etc/systemd/system/default.target", "/lib/systemd/system/multi-user.target")

    def _users(self, users: dict[str, int]) -> None:
        """The system's own users, and these instead of the host's people."""
        self._table("passwd", users, "{name}:x:{uid}:{uid}::/home/{name}:/bin/bash", 0o644)
        self._table("group", users, "{name}:x:{uid}:", 0o644)
        self._table("shadow", users, "{name}:*:19000:0:99999:7:::", 0o640)
        self._table("gshadow", users, "{name}:*::", 0o640)
        for name, uid in users.items():
            home = self.path(f"home/{name}")
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)

    def _table(self, table: str, users: dict[str, int], form: str, mode: int) -> None:
        people = self._people() | set(users)
        lines = (self.lower / "etc" / table).read_text().splitlines()
        kept = [line for line in lines if line.split(":", 1)[0] not in people]
        added = [form.format(name=name, uid=uid) for name, uid in users.items()]
        self.write(f"etc/{table}", "\n".join([*kept, *added]) + "\n", mode)

    def _people(self) -> set[str]:
        lines = (self.lower / "etc/passwd").read_text().splitlines()
        accounts = [line.split(":") for line in lines if line.count(":") >= 3]
        return {account[0] for account in accounts if 1000 <= int(account[2]) < 60000}
