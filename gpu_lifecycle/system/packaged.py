"""The files that come with the package: units, catalog, example configs, man pages, completion of shells.

An installed package has them below itself (``gpu_lifecycle/data``); a checkout has them beside the package.
"""

from __future__ import annotations

import os
from typing import Literal

from gpu_lifecycle.errors import UnavailableError

Kind = Literal["units", "config", "man", "completions"]

# Where shells look for completion, and man for its pages. fish looks below /usr/local only where XDG_DATA_DIRS says so.
_COMPLETIONS = {
    "gpu-lifecycle.bash": "/usr/local/share/bash-completion/completions/gpu-lifecycle",
    "_gpu-lifecycle": "/usr/local/share/zsh/site-functions/_gpu-lifecycle",
    "gpu-lifecycle.fish": "/etc/fish/completions/gpu-lifecycle.fish",
}
_MAN = "/usr/local/share/man/man"

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def package_dir() -> str:
    """The folder that the running code was loaded from."""
    return _PACKAGE


def find_data(kind: Kind, name: str) -> str | None:
    """The path of a packaged file, or None where there is no such file."""
    return next((path for folder in _folders(kind) if os.path.isfile(path := os.path.join(folder, name))), None)


def pages() -> list[tuple[Kind, str, str]]:
    """Man pages and completion: the kind and name of each packaged file, and its place on a machine."""
    found = next((sorted(os.listdir(folder)) for folder in _folders("man") if os.path.isdir(folder)), [])
    manual: list[tuple[Kind, str, str]] = [("man", name, f"{_MAN}{name[-1]}/{name}") for name in found]
    return [*manual, *(("completions", name, place) for name, place in _COMPLETIONS.items())]


def is_page(place: str) -> bool:
    """True for the place of a page, also of one that is packaged no more."""
    return place.startswith(_MAN) or place in _COMPLETIONS.values()


def _folders(kind: Kind) -> tuple[str, str]:
    checkout = os.path.join(os.path.dirname(_PACKAGE), "docs" if kind == "man" else "", kind)
    return os.path.join(_PACKAGE, "data", kind), checkout


def data_file(kind: Kind, name: str) -> str:
    """The path of a packaged file. Raises UnavailableError where the package lacks it."""
    path = find_data(kind, name)
    if path is None:
        raise UnavailableError(
            f"cannot find {kind}/{name}: the package is incomplete",
            hint="install it again: pip install --force-reinstall gpu-lifecycle",
        )
    return path
