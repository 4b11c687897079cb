"""A start on a machine where things were left, and what READY=1 means."""

from __future__ import annotations

import json

import pytest

from tests.machine.nvml import uuid
from tests.systemd.site import GIB, Site

pytestmark = pytest.mark.machine


def test_orphan_is_reaped_and_bystanders_are_spared(site: Site) -> None:
    """Field cases F1 and F2: a daemonised orphan with 76 GiB on GPU 1; persistenced and another user's job beside it."""
    site.machine.run(["cp", "/usr/local/libexec/gpu-holder", "/usr/bin/nvidia-persistenced"], check=True)
    every = [word for gpu in range(8) for word in ("--gpu", str(gpu))]
    bystander = site.service_holder(
        "nvidia-persistenced", *every, "--ctl", "--signals", "/run/signals", program="/usr/bin/nvidia-persistenced"
    )
    monitor = site.service_holder("someones-monitor", "--gpu", "1", "--ctl", "--signals", "/run/monitor-signals")
    orphan = site.orphan("--title", "python -m old_engine")
    stubborn = site.plant("stubborn", "--gpu", "2", "--uvm", "--memory", f"2={40 * GIB}", "--daemonize", "--ignore-term")
    site.start()
    assert site.state() == "active"
    assert not site.alive(orphan)
    assert not site.alive(stubborn)
    assert site.alive(bystander)
    assert site.alive(monitor)
    assert site.ask("cat", "/run/signals", "/run/monitor-signals") == ""
    reaped = {event["OBJECT_PID"]: event for event in site.events("holder-reaped")}
    assert set(reaped) == {str(orphan), str(stubborn)}
    assert reaped[str(orphan)]["GPU_LIFECYCLE_RULE"] == "orphan"
    assert "SIGTERM, then SIGKILL" in reaped[str(stubborn)]["MESSAGE"]
    assert {event["OBJECT_PID"] for event in site.events("holder-spared")} == {str(bystander), str(monitor)}


def test_ready_is_told_with_what_was_seen(site: Site) -> None:
    site.start()
    document = site.cli("status", "sglang-kimi")
    assert document["phase"] == "ready"
    assert [gpu["memory_own"] for gpu in document["gpus"]] == [72 * GIB] * 8
    assert document["probes"][0]["code"] == 200
    assert "ready: kimi on 8 GPUs" in site.show("StatusText")
    words = [event["GPU_LIFECYCLE_EVENT"] for event in site.events()]
    order = ["sweep-finished", "start-allowed", "engine-started", "ready"]
    assert [word for word in words if word in order] == order


@pytest.mark.parametrize(
    ("misbehaviour", "words"),
    [
        (["--misbehave", "skip-gpu=3"], "GPU 3 has"),
        (["--misbehave", "no-memory"], "GPU 0 has"),
        (["--misbehave", "early-health", "--load-seconds", "60"], "this unit's own memory is below"),
        (["--misbehave", "unhealthy-forever"], "status 503"),
        (["--misbehave", "never-listens"], "nobody listens"),
        (["--misbehave", "garbage-health"], "no usable answer"),
        (["--misbehave", "huge-health"], "health endpoint"),
        (["--misbehave", "redirect-health"], "status 30"),
        (["--misbehave", "health-lies"], "no token was generated: no answer yet"),
    ],
)
def test_not_ready_and_says_why(site: Site, misbehaviour: list[str], words: str) -> None:
    """Field case F20 and its kind: a green endpoint alone is nothing."""
    site.configure(*misbehaviour)
    site.start(wait=False)
    site.machine.wait(lambda: words in site.show("StatusText"), 20, f"STATUS to say {words}")
    assert site.state() == "activating"
    assert not site.events("ready")
    site.stop()
    assert site.state() == "inactive"
    assert site.show("Result") == "success"


def test_memory_of_others_does_not_count(site: Site) -> None:
    """The GPU is not empty, and yet the unit's own processes hold nothing of it."""
    site.configure("--misbehave", "skip-gpu=3")
    site.start(wait=False)
    site.machine.wait(
        lambda: "engine-started" in [e["GPU_LIFECYCLE_EVENT"] for e in site.events()], 20, "the engine to be started"
    )
    site.service_holder("late-tenant", "--gpu", "3", "--uvm", "--memory", f"3={72 * GIB}")
    site.machine.wait(lambda: "GPU 3 has 0 B" in site.show("StatusText"), 20, "STATUS to miss GPU 3")
    assert site.state() == "activating"


def test_a_stranger_that_answers_on_the_port_is_not_the_engine(site: Site) -> None:
    """Field case F21: our engine has moved to another port, somebody else says 200 on ours."""
    site.configure("--misbehave", "port-moves", "--load-seconds", "3")
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("engine-started")), 20, "the engine to be started")
    stranger = site.service_holder_free("stranger", "--listen", "30000")
    site.machine.wait(lambda: "not this unit's" in site.show("StatusText"), 20, "STATUS to name the stranger")
    assert site.state() == "activating"
    assert not site.events("ready")
    assert site.alive(stranger)


def test_port_taken_by_a_stranger_is_refused_before_the_load(site: Site) -> None:
    stranger = site.service_holder_free("stranger", "--listen", "30000")
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("start-refused")), 20, "the start to be refused")
    assert "port 30000" in site.messages("start-refused")
    assert str(stranger) in site.messages("start-refused")
    assert not site.events("engine-started")
    assert site.alive(stranger)


def test_time_wait_on_the_port_is_no_obstacle(site: Site) -> None:
    """Field case F54: a connection that an earlier server closed first keeps the port in TIME_WAIT for a minute."""
    code = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 30000))\n"
        "client = socket.create_connection(('127.0.0.1', 30000))\n"
        "server.accept()[0].close(); server.close(); client.close()\n"
    )
    site.machine.run(["python3", "-c", code])
    assert ":30000" in site.ask("ss", "-Htn", "state", "time-wait")
    site.start()
    assert site.state() == "active"


def test_a_leftover_on_the_port_is_reaped(site: Site) -> None:
    orphan = site.orphan("--listen", "30000")
    site.start()
    assert not site.alive(orphan)
    assert site.state() == "active"


def test_a_tenant_in_the_way_is_refused_with_75_and_named(site: Site) -> None:
    tenant = site.service_holder("tenant", "--gpu", "5", "--uvm", "--memory", f"5={30 * GIB}", "--signals", "/run/tenant")
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("start-refused")), 20, "the start to be refused")
    message = site.messages("start-refused")
    assert "status 75" in message
    assert str(tenant) in message
    assert "systemctl stop tenant.service" in message
    conflict = site.events("holder-conflict")[0]
    assert (conflict["GPU_LIFECYCLE_RULE"], conflict["GPU_LIFECYCLE_VERDICT"]) == ("other-unit", "conflict")
    site.machine.wait(lambda: site.show("SubState") == "auto-restart", 10, "systemd to try again later")
    site.machine.run(["systemctl", "stop", "tenant"], check=True)
    site.wait_state("active", timeout=40)


@pytest.mark.parametrize(("policy", "reaped"), [("dedicated", True), ("owned", False), ("report", False)])
def test_what_a_login_session_left(site: Site, policy: str, reaped: bool) -> None:
    """Field case F3: nohup in a session whose shell is long gone."""
    site.configure(policy=policy)
    site.machine.login_session("alice", ["/usr/local/libexec/gpu-holder", "--gpu", "2", "--uvm", "--memory", f"2={20 * GIB}",
                                         "--pidfile", "/tmp/session.pid"])  # fmt: skip
    pid = site.planted_pid("/tmp/session.pid")
    site.start(wait=False)
    if reaped:
        site.wait_state("active")
        assert not site.alive(pid)
        assert site.events("holder-reaped")[0]["GPU_LIFECYCLE_RULE"] in ("session", "terminal")
    else:
        site.machine.wait(lambda: bool(site.events("start-refused")), 20, "the start to be refused")
        assert site.alive(pid)
        assert f"kill {pid}" in site.messages("start-refused") or policy == "report"


def test_hidden_memory_is_never_called_free(site: Site) -> None:
    """Field case F11: held from another container; refused after the deadline, in words, and nobody is killed."""
    site.machine.nvml.set(f"hidden 4 {6 * GIB}", f"process 4 77777 {4 * GIB}")
    fake = "mount -t tmpfs none /sys/module && mkdir -p /sys/module/nvidia/holders/uvm && echo 8 > /sys/module/nvidia/refcnt"
    site.machine.run(["sh", "-c", fake])
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("start-refused")), 30, "the start to be refused")
    site.machine.run(["umount", "/sys/module"])
    told = site.events("memory-unexplained")
    assert len(told) == 1, "once, and before the deadline"
    assert told[0]["GPU_LIFECYCLE_GPU"] == uuid(4)
    for words in (told[0]["MESSAGE"], site.messages("start-refused")):
        assert "10 GiB on GPU 4 held by nobody that can be seen from here: held outside this container or PID name" in words
        assert "(NVML names process 77777, which holds no device here; the driver counts 7 open handles on this host)" in words
        assert "; on the host: nvidia-smi --query-compute-apps=pid,name,used_memory" in words
    assert not site.events("holder-reaped")


def test_memory_that_lingers_is_waited_for(site: Site) -> None:
    site.machine.nvml.set("linger 2000")
    site.orphan()
    site.start()
    assert site.state() == "active"
    assert float(site.messages("sweep-finished").split("sweep ended in ")[1].split()[0]) > 2.0


def test_without_the_token_where_the_config_says_so(site: Site) -> None:
    site.configure("--misbehave", "health-lies", extra='[ready]\ngenerate = false\n[stop]\ndrain = "2s"\n')
    site.start()
    assert site.state() == "active"


def test_an_engine_with_a_key_is_asked_with_it(site: Site) -> None:
    site.configure("--api-key", "sesame")
    site.start()
    assert site.state() == "active"
    assert "sesame" not in site.messages()
    assert "sesame" not in site.machine.read("/run/gpu-lifecycle/sglang-kimi/state.json")


def test_the_weights_say_how_much_must_be_resident(site: Site) -> None:
    """min_used = "auto": a load that stopped at 20 of 72 GiB per GPU is not ready, whatever health says."""
    site.machine.run(["mkdir", "-p", "/models/kimi"])
    data = 8 * 72 * GIB
    header = json.dumps({"w": {"dtype": "U8", "shape": [data], "data_offsets": [0, data]}})
    site.machine.write("/models/kimi/config.json", "{}")
    site.machine.write("/models/kimi/tokenizer.json", "{}")
    site.machine.write("/models/kimi/model.safetensors", chr(len(header)) + 7 * "\0" + header)
    site.machine.run(["truncate", "-s", f"{8 + len(header) + data}", "/models/kimi/model.safetensors"])
    try:
        site.configure("--memory-per-gpu", "20GiB")
        site.start(wait=False)
        site.machine.wait(lambda: "below 36 GiB: GPU 0 has 20 GiB" in site.show("StatusText"), 20, "STATUS to say so")
        assert site.state() == "activating"
    finally:
        site.machine.run(["rm", "-r", "/models/kimi"])


def test_a_driver_that_does_not_say_what_a_process_holds(site: Site) -> None:
    """Then it is what the GPU holds more than before the start, and marked as such."""
    site.machine.nvml.set("error nvmlDeviceGetComputeRunningProcesses_v3 3", f"hidden 3 {GIB // 4}")
    site.start()
    assert "(memory estimated from each GPU's total" in site.messages("ready")


def test_an_estimate_is_no_excuse_for_a_gpu_without_the_model(site: Site) -> None:
    site.configure("--misbehave", "skip-gpu=6", extra='[ready]\nstall = "4s"\n[watch]\ninterval = "500ms"\n')
    site.machine.nvml.set("error nvmlDeviceGetComputeRunningProcesses_v3 3")
    site.start(wait=False)
    site.machine.wait(lambda: bool(site.events("engine-failed")), 40, "the start to be given up")
    assert not site.events("ready")
    assert "GPU 6 has 0 B" in site.messages("engine-failed")
