"""A driver made to order: the stand-in library, what it is to say, and a probe that asks it."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.system.gpu import GpuProbe

STANDINS = Path(__file__).parents[1] / "standins"
GIB = 2**30
MEMORY = f"total={80 * GIB} reserved={GIB} base=0"
LINES = [
    "driver 595.71.05",
    *(f"gpu {at} minor={at + 3} uuid=GPU-{at} pci=00000000:0{at + 1}:00.0 {MEMORY} name=NVIDIA H200" for at in (0, 1)),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(runpy.run_path(str(STANDINS / "build.py"))["build"](tmp_path_factory.mktemp("built")).folder)


@pytest.fixture
def driver(tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what the driver is to show; helpers that start from now on inherit the environment."""
    monkeypatch.setenv("LD_LIBRARY_PATH", library)
    monkeypatch.setenv("NVML_STANDIN_DIR", str(tmp_path))
    (tmp_path / "alloc").mkdir()

    def state(*lines: str) -> None:
        new = tmp_path / "state.new"
        new.write_text("\n".join([*LINES, *lines, ""]))
        new.rename(tmp_path / "state")

    return state


@pytest.fixture
def probe() -> Iterator[GpuProbe]:
    with GpuProbe() as probe:
        yield probe
    assert probe.pids == set()
