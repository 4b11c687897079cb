"""One machine for all tests under real engines: a unit with SGLang, one with vLLM, one with llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.place import Engines, find
from tests.engines.unit import CLIENT, LLAMA_CPP, QUICK, SGLANG, VLLM, Unit
from tests.machine import Machine


@pytest.fixture(scope="session")
def engines() -> Engines:
    return find()


@pytest.fixture(scope="session")
def units(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Unit]]:
    with Machine(tmp_path_factory.mktemp("machine"), gpus=4, shown=engines.shown()) as machine:
        yield boot(machine, engines)


def boot(machine: Machine, engines: Engines) -> dict[str, Unit]:
    """The units, installed on a machine that shows the engines."""
    engines.install(machine)
    machine.copy(Path(__file__).with_name("client.py"), CLIENT)
    made = {
        "sglang": Unit(machine, "sglang-kimi", SGLANG, [0]),
        "vllm": Unit(machine, "vllm", VLLM, [1]),
        "llama.cpp": Unit(machine, "llama-cpp", LLAMA_CPP, [2]),
    }
    for unit in made.values():
        unit.configure()
        machine.run(["gpu-lifecycle", "install", unit.name])
        machine.write(f"/etc/systemd/system/{unit.service}.d/quick.conf", QUICK)
    machine.run(["systemctl", "daemon-reload"])
    return made
