"""The sweep against holders that hide, multiply, or belong to others; and a sweep that is itself killed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.systemd.site import CONFIG, GIB, HOLDER, Site

pytestmark = pytest.mark.machine

GPU1 = ("--gpu", "1", "--uvm", "--memory", f"1={20 * GIB}")
BYSTANDER = ("--gpu", "1", "--ctl", "--signals", "/run/bystander")


def sweep(site: Site, *words: str) -> dict[str, Any]:
    return site.cli("sweep", "sglang-kimi", *words)


def rows(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["pid"]: row for row in document["holders"]}


@pytest.mark.parametrize(
    "words",
    [
        ("--leader-exits",),
        ("--fork-storm", "--ignore-term"),
        ("--ignore-term",),
        ("--title", "nvidia-persistenced"),
        ("--title", "foo) Z 1 1 1"),
        ("--title", "a\nb\x1b]0;x\x07"),
    ],
    ids=lambda words: words[-1].encode("unicode_escape").decode(),
)
def test_orphans_of_every_kind_are_found_and_ended(site: Site, words: tuple[str, ...]) -> None:
    """Field cases F7 and F9, and names that anybody can take: none of them helps, none of them hurts."""
    bystander = site.service_holder("bystander", *BYSTANDER)
    pid = site.plant("orphan", *GPU1, "--daemonize", *words)
    done = sweep(site)
    assert done["outcome"] == "free", done["text"]
    assert rows(done)[pid]["result"] in ("ended", "killed")
    assert not site.alive(pid)
    assert site.used() == 0
    assert rows(site.cli("holders")).keys() == {bystander}
    assert site.ask("cat", "/run/bystander") == ""


def test_node_of_another_name_and_unlinked(site: Site) -> None:
    """Field case F8: the number counts, not the name. (Mappings, rings and single threads: tests/trees/test_holders.py.)"""
    numbers = site.ask("stat", "-c", "%Hr %Lr", "/dev/nvidia1").split()
    site.machine.make_node("/dev/other-name", int(numbers[0]), int(numbers[1]))
    code = "import time; os.open('/dev/other-name', os.O_RDWR | os.O_NOCTTY); os.unlink('/dev/other-name'); time.sleep(1000)"
    site.machine.write("/run/other.py", f"import os; open('/run/other.pid', 'w').write(str(os.getpid()))\n{code}\n")
    site.ask("rm", "-f", "/run/other.pid")
    site.machine.run(["sh", "-c", "setsid --fork python3 /run/other.py >/dev/null 2>&1 </dev/null"])
    pid = site.planted_pid("/run/other.pid")
    site.machine.wait(lambda: "/dev/other-name (deleted)" in site.ask("ls", "-l", f"/proc/{pid}/fd"), 10, "the node to be held")
    done = sweep(site)
    assert rows(done)[pid]["result"] == "ended"
    assert not site.alive(pid)


def test_a_container_is_a_tenant(site: Site) -> None:
    """A holder in a PID namespace of its own, and one in a container's cgroup: both are left alone, whatever the policy."""
    site.ask("rm", "-f", "/run/inner.pid")
    inner = f"{HOLDER} {' '.join(GPU1)} --pidfile /run/inner.pid"
    site.machine.run(["systemd-run", "--quiet", "--collect", "--unit=docker-0123456789abcdef.scope", "--scope", "sh", "-c",
                      f"setsid --fork {inner} >/dev/null 2>&1 </dev/null"])  # fmt: skip
    pid = site.planted_pid("/run/inner.pid")
    document = sweep(site)
    assert document["outcome"] == "conflict"
    row = rows(document)[pid]
    assert (row["verdict"], row["rule"], row["owner"]) == (
        "conflict", "container", {"kind": "container", "name": "docker:0123456789abcdef"},
    )  # fmt: skip
    assert "docker stop 0123456789abcdef" in document["text"]
    assert site.alive(pid)


def test_a_child_of_a_living_supervisor_is_spared(site: Site) -> None:
    """No unit owns it, but something that lives may answer for it: unclear, so not touched, and named."""
    site.ask("rm", "-f", "/run/child.pid")
    line = f"{HOLDER} {' '.join(GPU1)} --pidfile /run/child.pid; echo gone"
    site.machine.run(["sh", "-c", f"setsid --fork sh -c '{line}' >/dev/null 2>&1 </dev/null"])
    pid = site.planted_pid("/run/child.pid")
    document = sweep(site)
    assert (document["outcome"], rows(document)[pid]["rule"]) == ("conflict", "parented")
    assert site.alive(pid)


def test_only_the_claimed_gpus_count(site: Site) -> None:
    """A holder of GPU 5 alone is no business of a unit that claims 0 to 3."""
    text = site.machine.read("/etc/gpu-lifecycle/sglang-kimi.toml")
    site.machine.write(
        "/etc/gpu-lifecycle/sglang-kimi.toml", text.replace('"all"', "[0, 1, 2, 3]").replace("count = 8", "count = 4")
    )
    other = site.orphan(gpu=5)
    done = sweep(site)
    assert done["outcome"] == "free"
    assert rows(done)[other]["verdict"] == "ignore"
    assert site.alive(other)


def test_a_marker_of_an_earlier_run_is_enough(site: Site) -> None:
    """A worker that moved to another cgroup: its first environment still names the run that it was born in."""
    site.ask("rm", "-f", "/run/marked.pid")
    marker = ["env", "GPU_LIFECYCLE_UNIT=sglang-kimi.service", f"GPU_LIFECYCLE_RUN={'a' * 32}"]
    site.machine.login_session("alice", [*marker, HOLDER, *GPU1, "--pidfile", "/tmp/marked.pid"])
    pid = site.planted_pid("/tmp/marked.pid")
    site.configure(policy="owned")
    done = sweep(site)
    assert (rows(done)[pid]["rule"], rows(done)[pid]["result"]) == ("leftover-marker", "ended")


def test_a_leftover_of_a_sub_reaper(site: Site) -> None:
    """Field case F4: whatever adopted it, and lives, is not process 1; the marker says whose it is all the same."""
    code = (
        "import ctypes, os, subprocess, sys, time\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"  # PR_SET_CHILD_SUBREAPER
        "subprocess.run([sys.argv[1], *sys.argv[2:], '--daemonize'])\n"
        "time.sleep(1000)\n"
    )
    site.ask("rm", "-f", "/run/adopted.pid")
    marker = ["GPU_LIFECYCLE_UNIT=sglang-kimi.service", f"GPU_LIFECYCLE_RUN={'a' * 32}"]
    words = ["env", *marker, "python3", "-c", code, HOLDER, *GPU1, "--pidfile", "/run/adopted.pid"]
    site.machine.run(["systemd-run", "--quiet", "--collect", "--unit=adopter", *words])
    adopter = int(site.machine.run(["systemctl", "show", "adopter", "-P", "MainPID"]).stdout)
    site.planted.append(adopter)
    pid = site.planted_pid("/run/adopted.pid")
    site.machine.wait(lambda: site.parent(pid) == adopter, 10, "it to be adopted")
    site.machine.run(["sh", "-c", f"echo {pid} > /sys/fs/cgroup/cgroup.procs"])
    site.configure(policy="owned")
    assert (rows(sweep(site))[pid]["rule"], site.alive(pid), site.alive(adopter)) == ("leftover-marker", False, True)


def test_a_server_that_is_meant_to_outlive_the_engine(site: Site) -> None:
    """Field case F10: MPS, or a cache of weights. Spared whole; where its memory is in the way, the start says whose it is."""
    site.machine.run(["cp", HOLDER, "/usr/bin/nvidia-cuda-mps-server"])
    mps = site.service_holder("nvidia-mps", *GPU1, "--signals", "/run/mps", program="/usr/bin/nvidia-cuda-mps-server")
    cache = site.service_holder("weights-cache", "--gpu", "2", "--uvm", "--memory", f"2={GIB}", "--signals", "/run/cache")
    text = site.machine.read(CONFIG).replace("[sweep]", '[sweep]\nprotect = ["weights-cache.service"]\nfree_below = "2GiB"')
    site.machine.write(CONFIG, text)
    done = sweep(site)
    found = rows(done)
    assert (found[mps]["rule"], found[cache]["rule"]) == ("bystander", "protected")
    assert done["outcome"] == "conflict"
    assert f"process {mps} " in done["text"]
    assert "nvidia-mps.service" in done["text"]
    assert (site.ask("cat", "/run/mps"), site.ask("cat", "/run/cache")) == ("", ""), "nobody has signalled them"
    site.machine.run(["systemctl", "stop", "nvidia-mps"])
    site.start()
    assert site.alive(cache)


def test_a_run_id_of_systemd_is_a_marker_too(site: Site) -> None:
    """A worker of an earlier run whose environment was cleaned of all but systemd's own id, in another cgroup by now."""
    site.start()
    run = site.show("InvocationID")
    site.stop()
    site.ask("rm", "-f", "/tmp/born.pid", "/tmp/stranger.pid")
    site.machine.login_session("alice", ["env", f"INVOCATION_ID={run}", HOLDER, *GPU1, "--pidfile", "/tmp/born.pid"])
    other = ["env", f"INVOCATION_ID={'a' * 32}", HOLDER, *GPU1, "--pidfile", "/tmp/stranger.pid"]
    site.machine.login_session("alice", other)
    born, stranger = site.planted_pid("/tmp/born.pid"), site.planted_pid("/tmp/stranger.pid")
    site.configure(policy="owned")
    found = rows(sweep(site))
    assert (found[born]["rule"], found[born]["result"]) == ("leftover-marker", "ended")
    assert (found[stranger]["rule"], found[stranger]["verdict"]) == ("session", "conflict")
    assert site.machine.run(["stat", "-c", "%U %a", "/run/gpu-lifecycle/.runs"]).stdout.split() == ["root", "755"]


@pytest.mark.parametrize("milliseconds", [0, 60, 120, 180, 250, 400, 700, 1500, 2300])
def test_a_sweep_that_is_killed_is_finished_by_the_next(site: Site, milliseconds: int) -> None:
    """SIGKILL of a sweep at any step leaves nothing that the next one would not finish."""
    bystander = site.service_holder("bystander", *BYSTANDER)
    stubborn = [site.plant(f"stubborn{n}", *GPU1, "--daemonize", "--ignore-term") for n in range(3)]
    meek = site.plant("meek", *GPU1, "--daemonize")
    line = f"gpu-lifecycle sweep sglang-kimi >/dev/null 2>&1 & sleep {milliseconds / 1000}; kill -9 $! 2>/dev/null; wait"
    site.ask("sh", "-c", line)
    done = sweep(site)
    assert done["outcome"] == "free", done["text"]
    assert not any(site.alive(pid) for pid in (*stubborn, meek))
    assert site.alive(bystander)
    assert site.ask("cat", "/run/bystander") == ""


def test_two_sweeps_never_meet(site: Site) -> None:
    """Field case F12: the second waits for the first one's locks, and both end well."""
    pid = site.plant("orphan", *GPU1, "--daemonize", "--ignore-term")
    line = "gpu-lifecycle sweep sglang-kimi --json > /run/first & gpu-lifecycle sweep sglang-kimi --json > /run/second; wait"
    site.machine.run(["sh", "-c", line])
    assert not site.alive(pid)
    reaped = site.events("holder-reaped")
    assert len(reaped) == 1


def test_a_unit_that_systemd_does_not_know_may_have_a_living_supervisor(site: Site) -> None:
    """A scope made by hand below a live service: systemd calls it inactive, and its supervisor lives."""
    site.ask("rm", "-f", "/run/job.pid")
    job = f"{HOLDER} {' '.join(GPU1)} --pidfile /run/job.pid"
    scope = "/sys/fs/cgroup/nomad.slice/job.scope"
    script = f"mkdir -p {scope}; (echo 0 > {scope}/cgroup.procs; exec {job}); echo over"
    site.machine.run(["systemd-run", "--quiet", "--collect", "--unit=nomad", "sh", "-c", script])
    pid = site.planted_pid("/run/job.pid")
    document = sweep(site)
    assert rows(document)[pid]["verdict"] == "conflict"
    assert site.alive(pid)
    site.machine.run(["systemctl", "stop", "nomad"])


def test_a_bystander_whose_package_was_upgraded_lives(site: Site) -> None:
    site.machine.run(["cp", HOLDER, "/usr/bin/nvidia-persistenced"])
    pid = site.plant("persistenced", *GPU1, "--daemonize", "--signals", "/run/p", program="/usr/bin/nvidia-persistenced")
    site.machine.run(["sh", "-c", f"cp {HOLDER} /usr/bin/new && mv /usr/bin/new /usr/bin/nvidia-persistenced"])
    assert "(deleted)" in site.ask("readlink", f"/proc/{pid}/exe")
    assert rows(sweep(site))[pid]["rule"] == "bystander"
    assert site.alive(pid)


def test_a_run_in_the_foreground_is_not_an_earlier_run(site: Site) -> None:
    """Its processes bear this unit's marker; a sweep sees that its daemon lives, and a start is refused."""
    site.configure("--keep-environ")
    with site.machine.popen(["gpu-lifecycle", "serve", "sglang-kimi"]) as daemon:
        try:
            site.machine.wait(lambda: site.used() > 8 * GIB, 20, "the engine to hold memory")
            document = sweep(site)
            assert document["outcome"] == "conflict"
            assert not any(row["result"] for row in document["holders"])
            assert daemon.poll() is None
            daemon.terminate()
            daemon.wait(20)
        finally:
            daemon.kill()
    assert sweep(site)["outcome"] == "free"


def test_a_tenant_beside_an_orphan_is_no_reason_to_refuse(site: Site) -> None:
    """What was reaped takes a while to let its memory go; who merely sits beside it must not be blamed for it."""
    site.machine.nvml.set("linger 1500")
    tenant = site.service_holder("small", "--gpu", "1", "--uvm", "--memory", f"1={300 << 20}")
    orphan = site.orphan()
    site.start()
    assert site.state() == "active"
    assert site.alive(tenant)
    assert not site.alive(orphan)


def test_a_thousand_leftovers(site: Site) -> None:
    """More victims than a process may have descriptors by default."""
    line = f"for n in $(seq 1100); do {HOLDER} --gpu 2 --daemonize --ignore-term >/dev/null 2>&1 </dev/null; done"
    site.machine.run(["sh", "-c", line], timeout=120)
    done = sweep(site)
    assert done["outcome"] == "free", done["text"]
    assert sum(1 for row in done["holders"] if row["result"] == "killed") == 1100


def test_a_planted_state_file_changes_nothing(site: Site) -> None:
    """The unit's user may write there; whatever stands in it, the hooks and ``status`` work."""
    state = "/run/gpu-lifecycle/sglang-kimi/state.json"
    planted = (
        '{"schema": 1, "failed_starts": 1e999, "since": 1e999}',
        '{"schema": 1, "gpus": 5, "probes": 5, "phase": "\\ud800"}',
        '{"schema": 1, "phase": "\\u001b[2J", "gpus": [{"memory_used": "x"}], "last_end": []}',
        "[" * 100_000,
    )
    for text in planted:
        site.machine.write(state, text)
        done = site.machine.run(["gpu-lifecycle", "status", "sglang-kimi"])
        assert "\x1b" not in done.stdout
        site.machine.write(state, text)
        site.start()
        assert site.state() == "active"
        site.stop()
        assert site.show("Result") == "success"
