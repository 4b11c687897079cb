"""Debian's own promtool, prometheus and node_exporter for the tests: what is installed, else unpacked into a cache.

Nothing is installed: the packages would bring services that listen on every address, and 100 MB, onto the machine of whoever
runs ``make setup``. Fetching them takes a package mirror; without one a test that needs them is skipped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CACHE = Path(tempfile.gettempdir()) / f"gpu-lifecycle-prometheus-{os.getuid()}"
PACKAGES = {  # where each program is to be looked for: promtool is a package of its own from Debian 13 on
    "promtool": ("prometheus", "promtool"),
    "prometheus": ("prometheus",),
    "prometheus-node-exporter": ("prometheus-node-exporter",),
}


def program(name: str) -> Path:
    """The path of one of ``PACKAGES``' programs. Skips the test where it cannot be had."""
    found = shutil.which(name)
    if found:
        return Path(found)
    places = [CACHE / package / "usr/bin" / name for package in PACKAGES[name]]
    for package, place in zip(PACKAGES[name], places, strict=True):
        if not any(known.exists() for known in places):
            _fetch(package)
        if place.exists():
            return place
    pytest.skip(f"no {name} in the packages {', '.join(PACKAGES[name])}")


def _fetch(package: str) -> None:
    CACHE.mkdir(mode=0o700, exist_ok=True)
    if CACHE.stat().st_uid != os.getuid():
        pytest.skip(f"{CACHE} belongs to another user")
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (CACHE / package).exists():
            return
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            words = ["apt-get", "-q", "download", package]
            got = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
            files = list(Path(folder).glob("*.deb"))
            if not files:
                pytest.skip(f"no {package} here, and it cannot be fetched: {got.stderr.strip()[-200:]}")
            subprocess.run(["dpkg-deb", "-x", str(files[0]), f"{folder}/root"], check=True, timeout=120)
            Path(folder, "root").rename(CACHE / package)
