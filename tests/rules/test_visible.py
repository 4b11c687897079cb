"""What the engine is shown of the machine, and what is refused because it shows something else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.errors import ConfigError, Exit, LifecycleError, UnavailableError
from gpu_lifecycle.facts import ErrorClass, Gpu, GpuError, GpuView
from gpu_lifecycle.rules.config import Server
from gpu_lifecycle.rules.visible import variables

BUSES = (0x3B, 0x1A, 0xC1, 0x5E)  # NVML's order is not that of the addresses here: minors are shuffled, and have a gap
GPUS = tuple(
    Gpu(f"GPU-{bus:x}00-0000", index, (7, 0, 3, 1)[index], f"00000000:{bus:02X}:00.0", "H200", 1 << 37, 0, ())
    for index, bus in enumerate(BUSES)
)
VIEW = GpuView(GPUS)
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
HIDDEN = GpuError("4", "no permission", ErrorClass.PERMANENT)
LOST = GpuError("15", "fallen off the bus", ErrorClass.HOST_ACTION, "reboot")


def server(*options: str, engine: str = "sglang", **environment: str) -> Server:
    return Server(("/bin/engine", *options), engine=engine, environment=environment)


def pick(*indices: int) -> tuple[Gpu, ...]:
    return tuple(GPUS[index] for index in indices)


def broken(index: int, error: GpuError) -> GpuView:
    """NVML cannot say anything of this GPU."""
    gpus = list(GPUS)
    gpus[index] = replace(GPUS[index], uuid=f"unknown-{index}", pci="", minor=None, used=None, error=error)
    return GpuView(tuple(gpus))


def test_a_claim_of_all_selects_nothing() -> None:
    assert variables(VIEW, GPUS, server(), {}) == ORDER


@pytest.mark.parametrize(
    ("indices", "numbers"),
    [((1,), "0"), ((0,), "1"), ((3,), "2"), ((2,), "3"), ((2, 0), "3,1"), ((0, 1, 2), "1,0,3")],
)
def test_numbers_are_those_of_cuda(indices: tuple[int, ...], numbers: str) -> None:
    """For engines that read the variable themselves, and know no UUID. Neither minor nor NVML's index."""
    for engine in ("sglang", "vllm"):
        found = variables(VIEW, pick(*indices), server(engine=engine), {})
        assert found == ORDER | {"CUDA_VISIBLE_DEVICES": numbers}


@pytest.mark.parametrize("engine", ["llama.cpp", "custom", "triton"])
def test_other_engines_are_told_uuids(engine: str) -> None:
    found = variables(VIEW, pick(2, 0), server(engine=engine), {})
    assert found == ORDER | {"CUDA_VISIBLE_DEVICES": "GPU-c100-0000,GPU-3b00-0000"}


def test_a_hidden_gpu_has_no_number() -> None:
    """A container's NVML counts GPUs that its cgroup may not open; CUDA does not."""
    view = broken(1, HIDDEN)
    assert variables(view, pick(2), server(), {})["CUDA_VISIBLE_DEVICES"] == "2"
    assert variables(view, pick(0, 2, 3), server(), {}) == ORDER, "all that can be reached"


def test_beside_a_broken_gpu_no_number_is_sure() -> None:
    view = broken(1, LOST)
    with pytest.raises(UnavailableError, match=r"cannot tell CUDA's numbers .* GPU 1 .*fallen off") as caught:
        variables(view, pick(2), server(), {})
    assert caught.value.status is Exit.UNAVAILABLE
    assert variables(view, pick(2), server(engine="custom"), {})["CUDA_VISIBLE_DEVICES"] == "GPU-c100-0000"
    with pytest.raises(LifecycleError, match="GPU 1"):
        variables(broken(1, replace(LOST, code="999", kind=ErrorClass.RETRY)), pick(2), server(), {})
    with pytest.raises(LifecycleError, match="GPU 0"):
        variables(GpuView((replace(GPUS[0], pci="?"), *GPUS[1:])), pick(2), server(), {})


@pytest.mark.parametrize("text", ["0,2", " 2 , 0 ", "GPU-1a00-0000,GPU-5e00-0000", "GPU-5e,0", "GPU-1a,GPU-5e00"])
def test_who_says_the_claim_may_say_it(text: str) -> None:
    """The claim is NVML's 1 and 3, which are CUDA's 0 and 2. The order is the user's."""
    claim = pick(1, 3)
    assert variables(VIEW, claim, server(CUDA_VISIBLE_DEVICES=text), {}) == ORDER
    assert variables(VIEW, claim, server(), {"CUDA_VISIBLE_DEVICES": text}) == ORDER
    in_command = Server(("/usr/bin/env", f"CUDA_VISIBLE_DEVICES={text}", "/bin/engine"))
    assert variables(VIEW, claim, in_command, {}) == ORDER


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1,3", r"shows the engine 2 GPUs \(0, 2\), and the claim is 2 GPUs \(1, 3\)"),
        ("0", r"shows the engine 1 GPU \(1\)"),
        ("0,1,2", "shows the engine 3 GPUs"),
        ("", "has an empty name"),
        ("0,", "has an empty name"),
        ("-1", 'has "-1" for a GPU that is not there'),
        ("0,-1,2", 'has "-1"'),
        ("0,4", 'has "4"'),
        ("0,0", "names one GPU twice"),
        ("0,GPU-1a", "names one GPU twice"),
        ("GPU-", 'has "GPU-"'),
        ("GPU-ffff", 'has "GPU-ffff"'),
        ("1a00-0000,2", 'has "1a00-0000"'),
        ("gpu-1a,2", 'has "gpu-1a"'),
        ("none", 'has "none"'),
        ("0 2", 'has "0 2"'),
        ("99999999999999999999", "has"),
        ("0\x1b[31m", r"\\x1b"),
    ],
)
def test_who_says_something_else_is_refused(text: str, why: str) -> None:
    for said, own, key in (
        (server(CUDA_VISIBLE_DEVICES=text), {}, "server.environment.CUDA_VISIBLE_DEVICES"),
        (server(), {"CUDA_VISIBLE_DEVICES": text}, "the service's own environment"),
        (Server(("/usr/bin/env", "A=1", f"CUDA_VISIBLE_DEVICES={text}", "/bin/engine")), {}, "server.command"),
    ):
        with pytest.raises(ConfigError, match=why) as caught:
            variables(VIEW, pick(1, 3), said, own)
        assert (caught.value.key, caught.value.status) == (key, Exit.CONFIG)
        assert "the claim says it" in caught.value.hint
        assert "\x1b" not in str(caught.value)


def test_the_last_who_says_it_counts() -> None:
    wrong = {"CUDA_VISIBLE_DEVICES": "3"}
    assert variables(VIEW, pick(1), server(CUDA_VISIBLE_DEVICES="0"), wrong) == ORDER
    words = ("/usr/bin/env", "CUDA_VISIBLE_DEVICES=2", "CUDA_VISIBLE_DEVICES=0", "/bin/engine")
    assert variables(VIEW, pick(1), Server(words, environment=wrong), wrong) == ORDER


@pytest.mark.parametrize("where", ["config", "own"])
def test_another_order_than_that_of_the_addresses(where: str) -> None:
    fastest = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}

    def shown(engine: str, **more: str) -> dict[str, str]:
        if where == "own":
            return variables(VIEW, pick(1), server(engine=engine, **more), fastest)
        return variables(VIEW, pick(1), server(engine=engine, **(fastest | more)), {})

    with pytest.raises(ConfigError, match="by their speed"):
        shown("sglang")
    with pytest.raises(ConfigError, match="by their speed"):
        shown("custom", CUDA_VISIBLE_DEVICES="0")
    assert shown("custom") == {"CUDA_VISIBLE_DEVICES": "GPU-1a00-0000"}, "a UUID needs no order"
    assert shown("sglang", CUDA_VISIBLE_DEVICES="GPU-1a") == {}


@pytest.mark.parametrize(
    ("options", "fine"),
    [
        ((), True),
        (("--base-gpu-id", "0"), True),
        (("--gpu-id-step=1",), True),
        (("--base-gpu-id", "4"), False),
        (("--base-gpu-id=x",), False),
        (("--base-gpu-id",), False),
        (("--gpu-id-step", "2"), False),
    ],
)
def test_options_that_pass_over_gpus(options: tuple[str, ...], fine: bool) -> None:
    """SGLang on half of a machine was told where to begin; with a claim it begins at 0 within it."""
    if fine:
        assert variables(VIEW, pick(1), server(*options), {})["CUDA_VISIBLE_DEVICES"] == "0"
        return
    with pytest.raises(ConfigError, match="pass over some of the 1 GPU") as caught:
        variables(VIEW, pick(1), server(*options), {})
    assert caught.value.key == "server.command"
    assert variables(VIEW, pick(1), server(*options, engine="custom"), {}), "an option of SGLang's"


@given(st.permutations(range(4)), st.text(max_size=12), st.sampled_from(["sglang", "custom"]))
def test_what_is_shown_is_the_claim_or_refused(order: list[int], text: str, engine: str) -> None:
    claim = pick(*order[:2])
    found = variables(VIEW, claim, server(engine=engine), {})["CUDA_VISIBLE_DEVICES"]
    assert variables(VIEW, claim, server(engine=engine), {"CUDA_VISIBLE_DEVICES": found}) == ORDER, "it accepts what it sets"
    try:
        shown = variables(VIEW, claim, server(engine=engine), {"CUDA_VISIBLE_DEVICES": text})
    except ConfigError as error:
        said = error.message
        assert said.isprintable()
    else:
        assert shown == ORDER
