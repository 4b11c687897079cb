"""gpus --watch: look after look until it is interrupted, also over a time in which NVML fails."""

from __future__ import annotations

import json

import pytest

from tests.systemd.site import Site

pytestmark = pytest.mark.machine


def watch(site: Site, seconds: float, *options: str) -> tuple[list[str], str, int]:
    """Its lines, what it complained of, and its exit status after Ctrl-C."""
    words = ["timeout", "--preserve-status", "-s", "INT", str(seconds), "gpu-lifecycle", "gpus", "--watch", *options]
    done = site.machine.run(words, check=False, timeout=60)
    return str(done.stdout).splitlines(), str(done.stderr), done.returncode


def test_json_is_one_document_on_each_line(site: Site) -> None:
    lines, complaints, status = watch(site, 6, "--json")
    assert len(lines) >= 2
    for line in lines:
        document = json.loads(line)
        assert (document["schema"], len(document["gpus"])) == (1, 8)
    assert (complaints, status) == ("", 130)


def test_the_table_comes_again_and_again(site: Site) -> None:
    lines, _, status = watch(site, 6)
    assert sum(line.startswith("GPU ") for line in lines) >= 2
    assert status == 130


def test_a_look_that_fails_is_told_and_the_next_one_made(site: Site) -> None:
    site.machine.nvml.set("error nvmlInitWithFlags 999")
    lines, complaints, status = watch(site, 6, "--json")
    assert lines == []
    assert complaints.count("cannot look at the GPUs") >= 2
    assert status == 130
