"""The files that come with the package: units, catalog, example configs.

An installed package has them below itself (``gpu_lifecycle/data``); a checkout has them beside the package.
"""

from __future__ import annotations

import os
from typing import Literal

from gpu_lifecycle.errors import UnavailableError

Kind = Literal["units", "config"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def package_dir() -> str:
    """The folder that the running code was loaded from."""
    return _PACKAGE


def find_data(kind: Kind, name: str) -> str | None:
    """The path of a packaged file, or None where there is no such file."""
    for folder in (os.path.join(_PACKAGE, "data", kind), os.path.join(os.path.dirname(_PACKAGE), kind)):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    return None


def data_file(kind: Kind, name: str) -> str:
    """The path of a packaged file. Raises UnavailableError where the package lacks it."""
    path = find_data(kind, name)
    if path is None:
        raise UnavailableError(
            f"cannot find {kind}/{name}: the package is incomplete",
            hint="install it again: pip install --force-reinstall gpu-lifecycle",
        )
    return path
