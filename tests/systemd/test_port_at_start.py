"""The engine's port at a start: a server that has lost its workers gets time to give it back, a stranger gets none."""

from __future__ import annotations

import shlex
import time

import pytest

from tests.systemd.site import ENGINE, GIB, Site

pytestmark = pytest.mark.machine


def launcher(site: Site, crash_wait: str) -> int:
    """A server of alice's, with workers on all GPUs; its launcher holds the port and no GPU. Returns the launcher's pid."""
    words = ["/usr/bin/python3", "-I", ENGINE, "--model-path", "/models/kimi", "--tp", "8", "--port", "30000"]
    words += ["--load-seconds", "0.3", "--warmup-seconds", "0.1", "--crash-wait", crash_wait]
    site.ask("rm", "-f", "/tmp/launcher.pid")
    line = f"{shlex.join(words)} > /tmp/launcher.log 2>&1 & echo $! > /tmp/launcher.pid; wait"
    site.machine.login_session("alice", ["sh", "-c", line])
    pid = site.planted_pid("/tmp/launcher.pid")
    site.machine.wait(lambda: site.used() == 8 * 72 * GIB, 20, "the workers to hold their GPUs")
    site.machine.wait(lambda: ":30000" in site.ask("ss", "-Hltn"), 20, "the launcher to listen")
    return pid


def port_finding(site: Site) -> dict[str, str]:
    (found,) = (item for item in site.cli("check", "sglang-kimi")["findings"] if item["code"] == "port-taken")
    return dict(found)


def test_a_launcher_gives_the_port_back_once_its_workers_are_gone(site: Site) -> None:
    pid = launcher(site, crash_wait="2")
    found = port_finding(site)
    assert (found["level"], found["hint"]) == ("info", f"if it does not: kill {pid} (look first: ps -fp {pid})")
    assert site.cli("check", "sglang-kimi")["ok"]
    site.start()
    assert (site.state(), site.show("NRestarts")) == ("active", "0")
    assert not site.alive(pid)
    assert len(site.events("holder-reaped")) == 8, "the launcher is not among them: it holds no GPU"


def test_one_that_does_not_is_named_and_never_signalled(site: Site) -> None:
    pid = launcher(site, crash_wait="never")
    site.start_and_fail()
    told = site.messages("start-refused")
    assert f"port 30000 of the engine is taken by process {pid} " in told
    assert f"to clear it: kill {pid} (look first: ps -fp {pid})" in told
    assert site.alive(pid)
    assert port_finding(site)["level"] == "error"


def test_a_stranger_is_not_waited_for(site: Site) -> None:
    site.service_holder_free("stranger", "--listen", "30000")
    site.orphan()
    began = time.monotonic()
    site.start_and_fail()
    assert time.monotonic() - began < 4, "sweep.exit_deadline is 5 s"
    assert "to clear it: systemctl stop stranger.service" in site.messages("start-refused")
    assert port_finding(site)["hint"] == "to clear it: systemctl stop stranger.service"
