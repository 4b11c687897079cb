"""Compile the C stand-ins, once for each content of their sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=gnu11", "-O1", "-g0", "-Wall", "-Wextra", "-Wno-format-truncation", "-pthread")
NVML = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1")
SOURCES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "libnvidia-ml.so.1": (("nvml/nvml.c", "nvml/world.c"), NVML),
    "gpu-holder": (("holder.c",), ()),
}
CACHE = Path(tempfile.gettempdir()) / f"gpu-lifecycle-standins-{os.getuid()}"


@dataclass(frozen=True)
class Built:
    """Where the compiled files are."""

    folder: Path

    @property
    def nvml(self) -> Path:
        return self.folder / "libnvidia-ml.so.1"

    @property
    def holder(self) -> Path:
        return self.folder / "gpu-holder"


def build(out_dir: Path | None = None) -> Built:
    """Compile both into a folder named by their content below the cache folder, unless they are there."""
    cache = CACHE if out_dir is None else out_dir
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    if out_dir is None and cache.stat().st_uid != os.getuid():
        raise PermissionError(f"{cache} belongs to another user")
    folder = cache / _digest()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _compile(folder)
    return Built(folder)


def _digest() -> str:
    digest = hashlib.sha256(repr(FLAGS).encode())
    for name, (sources, flags) in SOURCES.items():
        digest.update(repr((name, sources, flags)).encode())
    for source in sorted([*HERE.glob("*.c"), *HERE.glob("nvml/*.[ch]")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(folder: Path) -> None:
    scratch = folder.with_suffix(".new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name, (sources, flags) in SOURCES.items():
        files = [str(HERE / source) for source in sources]
        subprocess.run(["gcc", *FLAGS, *flags, "-o", str(scratch / name), *files], check=True)
    scratch.rename(folder)
