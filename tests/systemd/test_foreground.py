"""The daemon in the foreground, and every command on a machine without systemd's bus and journal."""

from __future__ import annotations

import json
import signal

import pytest

from tests.systemd.site import GIB, Site

pytestmark = pytest.mark.machine

# A mount namespace in which nothing of systemd is to be reached: no bus, no journal, no notify socket.
BARE = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /run/dbus && mount -t tmpfs none /run/systemd && exec "$@"', "sh"]


def phase(site: Site) -> str:
    text = site.ask("cat", "/run/gpu-lifecycle/sglang-kimi/state.json")
    return str(json.loads(text)["phase"]) if text else ""


@pytest.mark.parametrize(("wrapper", "number"), [([], signal.SIGTERM), ([], signal.SIGINT), (BARE, signal.SIGHUP)])
def test_serve_in_the_foreground(site: Site, wrapper: list[str], number: signal.Signals) -> None:
    """Ready by the same conditions as under systemd, and a stop by signal leaves nothing and exits with 0."""
    site.configure("--misbehave", "workers-ignore-term")
    site.ask("rm", "-rf", "/run/gpu-lifecycle/sglang-kimi")
    with site.machine.popen([*wrapper, "gpu-lifecycle", "serve", "sglang-kimi"]) as daemon:
        try:
            site.machine.wait(lambda: phase(site) == "ready", 30, "the engine to be ready")
            daemon.send_signal(number)
            out, err = daemon.communicate(timeout=30)
        finally:
            daemon.kill()
    assert daemon.returncode == 0, err
    assert "ready: kimi on 8 GPUs" in out + err
    assert site.cli("holders")["holders"] == []
    assert site.used() == 0


def test_serve_says_what_is_wrong_without_systemd(site: Site) -> None:
    site.configure("--misbehave", "exit-at-once=3")
    done = site.machine.run([*BARE, "gpu-lifecycle", "serve", "sglang-kimi"], check=False, timeout=60)
    assert done.returncode == 75
    assert "the engine exited with status 3" in done.stderr


def test_without_a_bus_nobody_is_called_an_orphan_of_a_unit(site: Site) -> None:
    """A holder in a unit whose state cannot be found out is spared: it may be alive."""
    tenant = site.service_holder("tenant", "--gpu", "5", "--uvm", "--memory", f"5={30 * GIB}")
    done = site.machine.run([*BARE, "gpu-lifecycle", "sweep", "sglang-kimi", "--json"], check=False)
    assert done.returncode == 75, done.stderr
    row = next(row for row in json.loads(done.stdout)["holders"] if row["pid"] == tenant)
    assert (row["verdict"], row["rule"], row["result"]) == ("conflict", "other-unit", None)
    assert site.alive(tenant)


@pytest.mark.parametrize("words", [["holders"], ["gpus"], ["status", "sglang-kimi"], ["check", "sglang-kimi"]])
def test_commands_that_look_work_without_systemd(site: Site, words: list[str]) -> None:
    done = site.machine.run([*BARE, "gpu-lifecycle", *words, "--json"], check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == 1


def test_hooks_are_for_systemd(site: Site) -> None:
    """By hand a hook could take the run that is alive for an earlier one."""
    site.start()
    for hook in ("pre-start", "post-stop"):
        done = site.machine.run(["gpu-lifecycle", "hook", hook, "sglang-kimi"], check=False)
        assert done.returncode == 2
        assert "gpu-lifecycle sweep" in done.stderr
    assert len(site.workers()) == 8
