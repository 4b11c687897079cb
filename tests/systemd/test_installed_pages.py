"""What install put there is found by itself: pages by man, completion by zsh and fish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.systemd.site import Site

pytestmark = pytest.mark.machine

TAB = Path(__file__).parents[1] / "tab.py"
SHARE = "/usr/local/share"


@pytest.mark.parametrize("name", ["gpu-lifecycle", "gpu-lifecycle-sweep", "gpu-lifecycle.toml", "gpu-lifecycle-events"])
def test_man_finds_the_page(site: Site, name: str) -> None:
    assert site.ask("sh", "-c", f"readlink -f $(man -w {name})").startswith(f"{SHARE}/man/man")
    assert "gpu-lifecycle" in site.machine.run(["man", "-P", "cat", name]).stdout


@pytest.mark.parametrize(
    ("shell", "setup"), [("bash", f"source {SHARE}/bash-completion/completions/gpu-lifecycle"), ("zsh", ""), ("fish", "")]
)
def test_a_shell_offers_commands_and_units(site: Site, shell: str, setup: str) -> None:
    site.machine.copy(TAB, "/run/tab/tab.py")
    words = ["/opt/gpu-lifecycle/bin/python", "/run/tab/tab.py", shell, setup, "/run/tab"]
    lines = "gpu-lifecycle swe\ngpu-lifecycle check \ngpu-lifecycle sweep sglang-kimi --d\n"
    done = site.machine.run(words, input=lines)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [["sweep"], ["sglang-kimi"], ["--dry-run"]]


def test_config_init_and_show_on_a_machine(site: Site) -> None:
    """The commented file, taken as it is, is a config; what holds is told with its lines."""
    init = ["gpu-lifecycle", "config", "init", "--engine", "vllm", "--output", "/etc/gpu-lifecycle/vllm.toml"]
    site.machine.run([*init, "vllm"])
    shown = site.ask("gpu-lifecycle", "config", "show", "vllm")
    assert 'engine = "vllm"' in shown
    assert "/etc/gpu-lifecycle/vllm.toml:" in shown
    again = site.machine.run(init, check=False)
    assert (again.returncode, "it is there already" in again.stderr) == (2, True)
    site.ask("rm", "/etc/gpu-lifecycle/vllm.toml")
