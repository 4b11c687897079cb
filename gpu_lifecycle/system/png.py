"""The door to the library that makes a PNG of an SVG: optional, for it brings a renderer of several MiB."""

from __future__ import annotations

from importlib import import_module

from gpu_lifecycle.errors import LifecycleError, UnavailableError

ZOOM = 2  # sharp on a screen of today


def png_of(svg: str) -> bytes:
    """The picture as PNG. Raises UnavailableError where the library is not there, LifecycleError where it fails."""
    try:
        library = import_module("resvg_py")
    except ImportError as error:
        hint = "pip install 'gpu-lifecycle[png]', or draw it as SVG: --svg FILE"
        raise UnavailableError("cannot make a PNG: the library resvg-py is not installed", hint=hint) from error
    try:
        return bytes(library.svg_to_bytes(svg_string=svg, zoom=ZOOM))
    except (ValueError, TypeError) as error:
        raise LifecycleError(f"cannot make a PNG: {error}", hint="draw it as SVG: --svg FILE") from error
