"""What cannot be seen is said, with what to grant; then nobody is killed and nothing is called free."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.systemd.site import Site

pytestmark = pytest.mark.machine

HIDE = "mount -t proc -o hidepid={} proc /proc"
WITHOUT = "setpriv --bounding-set=-sys_ptrace,-dac_read_search"
NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups"
HOLDERS = "gpu-lifecycle holders --json"


def limits(site: Site, mount: str, drop: str) -> str:
    """What limits the sight of ``holders``, in a mount namespace of its own, as somebody who may do less than root."""
    line = f"mount --make-rprivate / && {mount} && exec {drop} {HOLDERS}"
    done = site.machine.run(["unshare", "-m", "sh", "-c", line], check=False)
    document = json.loads(done.stdout)
    assert document["sight"]["full"] is (document["sight"]["limits"] == [])
    return "; ".join(document["sight"]["limits"])


@pytest.mark.parametrize(
    ("mount", "drop", "words"),
    [
        ("true", "env", ""),
        (HIDE.format("invisible"), "env", ""),
        (HIDE.format("invisible"), NOBODY, "others are hidden (/proc is mounted with hidepid=invisible): run as root"),
        (HIDE.format("4"), NOBODY, "hidden (/proc is mounted with hidepid=ptraceable)"),
        (HIDE.format("2,gid=65534"), NOBODY, "cannot be read"),
        (HIDE.format("noaccess"), NOBODY, "cannot be read"),
        (HIDE.format("invisible"), WITHOUT, "hidepid=invisible): grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        ("true", WITHOUT, "cannot be read"),
        ("true", WITHOUT, "grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (a unit: CapabilityBoundingSet="),
        ("true", NOBODY, "run as root"),
    ],
)
def test_what_limits_the_sight(site: Site, mount: str, drop: str, words: str) -> None:
    orphan = site.orphan()
    seen = limits(site, mount, drop)
    assert words in seen
    assert bool(words) is bool(seen)
    if "gid=65534" in mount:
        assert "hidden" not in seen
    assert site.alive(orphan)


def test_a_sweep_that_sees_part_kills_nobody_and_calls_nothing_free(site: Site) -> None:
    orphan = site.orphan()
    line = shlex.join([*WITHOUT.split(), "gpu-lifecycle", "sweep", "sglang-kimi", "--json"])
    done = site.machine.run(["sh", "-c", line], check=False, timeout=60)
    document = json.loads(done.stdout)
    assert (done.returncode, document["outcome"]) == (75, "unknown"), document["text"]
    assert "grant CAP_SYS_PTRACE" in document["text"]
    assert site.alive(orphan)


def test_check_without_root_does_not_say_what_a_start_would_do(site: Site) -> None:
    done = site.machine.run(["gpu-lifecycle", "check", "sglang-kimi"], check=False, user="alice")
    assert done.returncode == 75
    last = done.stdout.splitlines()[-1]
    assert last == "sglang-kimi.service: whether a start would go through is not known: run check as root"
    line = shlex.join([*WITHOUT.split(), "gpu-lifecycle", "check", "sglang-kimi"])
    done = site.machine.run(["sh", "-c", line], check=False)
    assert done.stdout.splitlines()[-1] == "sglang-kimi.service: a start would be refused"
