"""What a start refuses before the engine, and what the engine itself says of it after its minute: both are run and compared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from gpu_lifecycle.rules.signatures import Signs, current, first_cause, hear, match
from tests.engines.place import MODELS, TARGET, TORN, TORN_GGUF
from tests.engines.unit import Unit

pytestmark = [pytest.mark.engines, pytest.mark.machine]
DRAFT = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", f"{MODELS}/draft-128")


class Doom(NamedTuple):
    """A command that cannot work: the finding of ``check``, and the signature that the engine's own words bear."""

    unit: str
    words: tuple[str, ...]
    model: str
    finding: str
    cause: str
    gpus: tuple[int, ...] = ()


DOOMS: Mapping[str, Doom] = {
    "sglang, a shard is missing": Doom("sglang", (), TORN, "shard-missing", "missing-weights"),
    "sglang, the draft is too short": Doom("sglang", DRAFT, TARGET, "draft-context", "draft-context"),
    "sglang, the context is too long": Doom(
        "sglang", ("--context-length", "1024"), TARGET, "context-too-long", "context-length"
    ),
    "vllm, a shard is missing": Doom("vllm", (), TORN, "shard-missing", "missing-weights"),
    "vllm, tp does not divide": Doom("vllm", ("-tp", "3"), TARGET, "heads", "tp-divide", (1, 2, 3)),
    "vllm, the context is too long": Doom("vllm", ("--max-model-len", "1024"), TARGET, "context-too-long", "context-length"),
    "llama.cpp, the file is cut off": Doom("llama.cpp", (), TORN_GGUF, "shard-truncated", "torn-weights"),
}


@pytest.fixture(scope="module")
def bare(units: dict[str, Unit]) -> dict[str, list[str]]:
    """Each without us, two at once."""
    for unit in units.values():
        unit.systemctl("stop", check=False, timeout=150)
    with ThreadPoolExecutor(2) as pool:
        told = {name: pool.submit(units[doom.unit].bare, *doom.words, model=doom.model) for name, doom in DOOMS.items()}
        return {name: future.result() for name, future in told.items()}


@pytest.fixture
def unit(request: pytest.FixtureRequest, units: dict[str, Unit]) -> Iterator[Unit]:
    """The one that is named, or that of the doom."""
    chosen = units[getattr(request, "param", None) or DOOMS[request.getfixturevalue("name")].unit]
    chosen.systemctl("stop", check=False, timeout=150)
    chosen.systemctl("reset-failed", check=False)
    chosen.begin()
    yield chosen
    chosen.systemctl("stop", check=False, timeout=150)
    chosen.systemctl("reset-failed", check=False)
    chosen.configure()


@pytest.mark.parametrize("name", DOOMS)
def test_check_says_before_what_the_engine_says_after(name: str, unit: Unit, bare: dict[str, list[str]]) -> None:
    doom = DOOMS[name]
    unit.configure(*doom.words, model=doom.model, gpus=list(doom.gpus) or None)
    findings = [item for item in unit.cli("check", unit.name)["findings"] if item["level"] == "error"]
    assert [item["code"] for item in findings] == [doom.finding]
    unit.systemctl("start", check=False)
    assert (unit.show("ActiveState"), unit.show("ExecMainStatus"), unit.show("NRestarts")) == ("failed", "78", "0")
    assert findings[0]["message"] in unit.messages("start-refused")
    assert not unit.events("engine-started")
    assert cause_of(bare[name]) == doom.cause, "\n".join(bare[name][-60:])


def cause_of(lines: list[str]) -> str:
    """The cause that a run with these lines would have been given."""
    signs: Signs = ()
    for line in lines:
        for piece in re.split(r"[\r\n]", line):
            if found := match(piece):
                signs = hear(signs, found.code, piece, 1.0)
    sign = first_cause(current(signs, 2.0))
    return sign.code if sign else ""


@pytest.mark.parametrize("unit", ["llama.cpp", "sglang", "vllm"], indirect=True)
def test_a_port_that_a_stranger_has_is_refused(unit: Unit) -> None:
    """And the engine itself, let at it, ends with the words that bear this cause."""
    port = str(unit.preset.port)
    unit.machine.run_in_unit(f"stranger-{unit.name}", ["/usr/local/libexec/gpu-holder", "--listen", port])
    unit.wait(lambda: port in unit.ask("ss", "-Hltn"), 10, "the stranger to listen")
    unit.systemctl("start", "--no-block")
    unit.wait(lambda: unit.events("start-refused"), 30, "the start to be refused")
    assert f"port {port}" in unit.messages("start-refused")
    assert not unit.events("engine-started")
    lines = unit.bare()
    unit.machine.run(["systemctl", "stop", f"stranger-{unit.name}"])
    assert cause_of(lines) == "port-in-use", "\n".join(lines[-60:])
