"""The project inside the machine: its own Python environment and a copy of the checkout under /opt/gpu-lifecycle."""

from __future__ import annotations

import compileall
import os
import py_compile
import sys
import sysconfig
from pathlib import Path

from .disk import Disk

HOME = "/opt/gpu-lifecycle"
CHECKOUT = Path(__file__).resolve().parents[2]
HIDDEN = ("/root", "/home", "/tmp", "/var/tmp", "/run", "/dev", "/opt/gpu-lifecycle")
PROGRAM = f"""#!{HOME}/bin/python -IB
from gpu_lifecycle.cli import main

raise SystemExit(main())
"""
Binds = list[tuple[str, str]]


def install(disk: Disk) -> Binds:
    """Fill the disk; what is too large to copy comes as read-only mounts, which are returned."""
    disk.fresh(HOME)
    for name in ("gpu_lifecycle", "units", "config", "completions", "docs/man"):
        if (CHECKOUT / name).is_dir():
            disk.copy(CHECKOUT / name, f"{HOME}/src/{name}")
    source = disk.path(f"{HOME}/src/gpu_lifecycle")
    if source.is_dir():
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(source, quiet=2, stripdir=str(disk.upper), invalidation_mode=mode)
    disk.write(f"{HOME}/bin/gpu-lifecycle", PROGRAM, 0o755)
    disk.link("/usr/local/bin/gpu-lifecycle", f"{HOME}/bin/gpu-lifecycle")
    return [*_environment(disk), _mount_point(disk, sysconfig.get_paths()["purelib"], "deps")]


def _environment(disk: Disk) -> Binds:
    """What `python -m venv --without-pip` makes, of an interpreter that every user of the machine can reach."""
    prefix, binds = sys.base_prefix, []
    if disk.lower != Path("/") or _out_of_reach(Path(prefix)):
        binds.append(_mount_point(disk, prefix, "python"))
        prefix = f"{HOME}/python"
        _shared_library(disk, prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = f"{HOME}/lib/{version}/site-packages"
    disk.write(f"{HOME}/pyvenv.cfg", f"home = {prefix}/bin\ninclude-system-site-packages = false\n")
    disk.write(f"{site}/gpu_lifecycle_machine.pth", f"{HOME}/src\n{HOME}/deps\n")
    for name in ("python", "python3", version):
        disk.link(f"{HOME}/bin/{name}", f"{prefix}/bin/{version}")
    return binds


def _shared_library(disk: Disk, prefix: str) -> None:
    """A moved interpreter looks for its library where it was built to lie."""
    name = sysconfig.get_config_var("INSTSONAME")
    if isinstance(name, str) and (Path(sys.base_prefix) / "lib" / name).exists():
        disk.link(f"{disk.library_folder()}/{name}", f"{prefix}/lib/{name}")


def _mount_point(disk: Disk, source: str, name: str) -> tuple[str, str]:
    disk.path(f"{HOME}/{name}").mkdir(mode=0o755, exist_ok=True)
    return source, f"{HOME}/{name}"


def _out_of_reach(prefix: Path) -> bool:
    """Closed to other users, hidden by the machine or its units, or on a mount of its own."""
    parents = [prefix, *prefix.parents]
    closed = any(not folder.stat().st_mode & 0o001 for folder in parents)
    other = os.stat(prefix).st_dev != os.stat("/").st_dev
    return closed or other or any(prefix.is_relative_to(name) for name in HIDDEN)
