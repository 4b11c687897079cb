"""The stand-ins inside the machine: the NVML library and the device holder."""

from __future__ import annotations

import sys

from .disk import Disk
from .project import CHECKOUT

if str(CHECKOUT) not in sys.path:
    sys.path.append(str(CHECKOUT))

from tests.standins.build import build

HOLDER = "/usr/local/libexec/gpu-holder"


def install_standins(disk: Disk) -> None:
    built = build()
    disk.copy(built.nvml, f"{disk.library_folder()}/libnvidia-ml.so.1", 0o644)
    disk.copy(built.holder, HOLDER, 0o755)
