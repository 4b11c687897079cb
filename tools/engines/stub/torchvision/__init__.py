"""Stands for torchvision, which has no build that fits the CPU torch: whatever is imported from it by name is there, and empty.

Transformers and SGLang import names for pictures when they are loaded; a model without pictures calls none of them.
"""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

__version__ = "0.0"


class InterpolationMode(enum.Enum):
    """The one that is used at import already."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class Part(types.ModuleType):
    """A module that has every name."""

    __path__: list[str] = []  # noqa: RUF012 - what makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return InterpolationMode if name == "InterpolationMode" else type(name, (), {})


for _name in ("io", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional"):
    _part = Part(f"{__name__}.{_name}")
    sys.modules[_part.__name__] = _part
    _above, _, _last = _part.__name__.rpartition(".")
    setattr(sys.modules[_above], _last, _part)
