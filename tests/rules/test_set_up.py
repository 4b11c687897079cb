"""Small readers of what is set up on a machine: apt, needrestart, journald, a unit's sandbox, the cache of models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.rules.command import read_command
from gpu_lifecycle.rules.engines import ENGINES
from gpu_lifecycle.rules.hub import cache_of, folder_name, is_name, offline
from gpu_lifecycle.rules.journald import limit_of
from gpu_lifecycle.rules.preflight import Plan, by_name
from gpu_lifecycle.rules.sandbox import environment, may_write, own_shm, tmpfs_size
from gpu_lifecycle.rules.unit_file import UnitText
from gpu_lifecycle.rules.upgrades import apt_settings, plain_text, restarts, upgraded, upgrades_itself

GIB = 1 << 30
ON = 'APT::Periodic::Unattended-Upgrade "1";\n'
LIST = 'Unattended-Upgrade::Package-Blacklist {\n  // "vim";\n  "nvidia-driver.*";\n  "libnvidia-";\n};\n'


def test_apt_conf() -> None:
    nested = 'APT { Periodic { Unattended-Upgrade "0"; }; };  # off\n/* "x" */ Foo::Bar:: "b";'
    assert list(apt_settings(nested)) == [("apt::periodic::unattended-upgrade", "0"), ("foo::bar", "b")]
    assert upgrades_itself([ON]) == (True, ())
    assert upgrades_itself([ON, nested]) == (False, ())
    assert upgrades_itself([ON + LIST]) == (True, ("nvidia-driver.*", "libnvidia-"))


def test_packages_of_the_driver() -> None:
    names = ["libnvidia-compute-550", "nvidia-driver-550", "libnvidia-container1", "vim"]
    assert upgraded(names, ()) == ("libnvidia-compute-550", "nvidia-driver-550")
    assert upgraded(names, ("nvidia-driver.*", "libnvidia-")) == ()
    assert upgraded(names, ("nvidia-driver$", "(a+)+$")) == ("libnvidia-compute-550", "nvidia-driver-550")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^nvidia", "nvidia"),
        ("nvidia.*", "nvidia"),
        (r"kimi\.service$", "kimi.service"),
        ("(a+)+$", None),
        ("a|b", None),
        ("", None),
    ],
)
def test_only_plain_patterns_are_understood(pattern: str, text: str | None) -> None:
    assert plain_text(pattern) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "by default"),
        ("$nrconf{restart} = 'l';", ""),
        ("$nrconf{restart} = 'a';", "restart = 'a'"),
        ("#$nrconf{restart} = 'l';", "by default"),
        (r"$nrconf{override_rc}{qr(^sglang-kimi\.service)} = 0;", ""),
        (r"$nrconf{override_rc}{qr(^sglang-kimi)} = 1;", "by default"),
        ("$nrconf{override_rc} = {\n    qr(^dbus) => 0,\n    qr(^sglang) => 0,\n};", ""),
        ("    qr(^dbus) => 0,", "by default"),
        ("push @{$nrconf{x}}, 1;\n\0\xff", "by default"),
    ],
)
def test_needrestart(text: str, why: str) -> None:
    assert restarts([text], "sglang-kimi.service") == why


@pytest.mark.parametrize(
    ("text", "properties", "limit"),
    [
        ("", {}, (30.0, 10_000)),
        ("", {"LogRateLimitIntervalUSec": 0, "LogRateLimitBurst": 0}, (30.0, 10_000)),  # "=0" is "not set" to systemd
        ("", {"LogRateLimitIntervalUSec": 1}, None),
        ("", {"LogRateLimitIntervalUSec": 5_000_000, "LogRateLimitBurst": 50}, (5.0, 50)),
        ("", {"LogRateLimitBurst": 10_000_000}, None),
        ("[Journal]\nRateLimitIntervalSec=0\n", {}, None),
        ("[Journal]\nRateLimitBurst=0\n", {}, None),
        ("[Journal]\nRateLimitIntervalSec=1min\nRateLimitBurst=50\n", {}, (60.0, 50)),
        ("[Other]\nRateLimitIntervalSec=0\n", {}, (30.0, 10_000)),
        ("[Journal]\nRateLimitIntervalSec=rubbish\nRateLimitBurst=-1\n", {}, (30.0, 10_000)),
    ],
)
def test_journald(text: str, properties: dict[str, Any], limit: tuple[float, int] | None) -> None:
    assert limit_of((UnitText("/etc/systemd/journald.conf", text),), properties) == limit


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ("mode=1777,size=50%", 50 * GIB),
        ("size=64g", 64 * GIB),
        ("size=1048576", 1 << 20),
        ("mode=1777", 10 * GIB),
        ("size=x", 10 * GIB),
        ("size=1g,size=2G", 2 * GIB),
    ],
)
def test_a_shm_of_its_own(options: str, size: int) -> None:
    assert tmpfs_size(options, 100 * GIB) == size
    assert own_shm({"TemporaryFileSystem": [["/dev/shm", options]]}, 100 * GIB) == size
    assert own_shm({"TemporaryFileSystem": [["/mnt", options]]}, 100 * GIB) is None


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/var/cache/gpu-lifecycle/kimi/x", True),
        ("/var/cache/gpu-lifecycle/kimix", False),
        ("/models/cache", False),
        ("/scratch/x", True),
        ("/tmp/x", True),
        ("/home/alice/x", False),
    ],
)
def test_where_a_strict_unit_may_write(path: str, allowed: bool) -> None:
    strict = {
        "ProtectSystem": "strict", "ProtectHome": "read-only", "PrivateTmp": True, "ReadWritePaths": ["-/scratch"],
        "CacheDirectory": ["gpu-lifecycle/kimi"],
    }  # fmt: skip
    assert may_write(path, strict) is allowed


def test_where_an_open_unit_may_write() -> None:
    assert may_write("/models/cache", {})
    assert not may_write("/etc/x", {"ProtectSystem": "full"})
    assert not may_write("/home/alice", {"ProtectHome": "yes"})


def test_the_units_environment() -> None:
    assert environment({"Environment": ["A=1=2", "HOME=/x"]}, "/root") == {"HOME": "/x", "A": "1=2"}


def test_names_of_models() -> None:
    names = ("moonshotai/Kimi-K2.5", "gpt2", "./x", "a/b/c", "../x", "a b", "", "x/../y")
    assert [name for name in names if is_name(name)] == ["moonshotai/Kimi-K2.5", "gpt2"]
    assert folder_name("a/b") == "models--a--b"


def test_the_cache_of_models() -> None:
    assert cache_of({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == "/a"
    assert cache_of({"HF_HOME": "/b"}) == "/b/hub"
    assert cache_of({"XDG_CACHE_HOME": "/c"}) == "/c/huggingface/hub"
    assert cache_of({"HOME": "/h"}) == "/h/.cache/huggingface/hub"
    assert cache_of({}) == ""
    assert [offline(env) for env in ({}, {"HF_HUB_OFFLINE": "0"}, {"TRANSFORMERS_OFFLINE": "yes"})] == [
        "", "", "TRANSFORMERS_OFFLINE",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "name", "env", "cache", "code"),
    [
        ("sglang", "a/b", {"HF_HUB_OFFLINE": "1"}, "/hub", ("error", "model-offline")),
        ("llama.cpp", "a/b", {"HF_HUB_OFFLINE": "1"}, "/hub", ("warn", "model-offline")),
        ("sglang", "b", {"HF_HUB_OFFLINE": "1"}, "/hub", ("warn", "model-offline")),
        ("sglang", "a/b", {"HF_HUB_OFFLINE": "1"}, "", ("info", "model-by-name")),
        ("sglang", "a/b", {}, "/hub", ("info", "model-by-name")),
    ],
)
def test_a_name_that_is_not_there(engine: str, name: str, env: dict[str, str], cache: str, code: tuple[str, str]) -> None:
    made = Plan(engine, read_command(ENGINES[engine], ["x"], {}), env)
    item = by_name(made, name, cache)
    assert (str(item.level), item.code) == code
    assert name in item.message


@given(st.text(), st.text())
def test_any_text_is_taken(one: str, two: str) -> None:
    upgrades_itself([one, ON + two])
    restarts([one, f"$nrconf{{override_rc}}{{qr({two})}} = 0;"], "x.service")
    limit_of((UnitText("/x", f"[Journal]\nRateLimitBurst={one}\nRateLimitIntervalSec={two}"),), {})
    assert tmpfs_size(one, GIB) >= 0
    assert is_name(one) in (True, False)
