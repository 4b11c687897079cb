"""What the how-to pages take for given, made in the test machine: each picture is a function that a page names."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.model_folders import KIMI, KIMI_DRAFT
from tests.systemd.site import ENGINE, GIB, HOLDER, Site

CONTAINER = "docker-0123456789abcdef.scope"
OUR_CONFIGS = "/etc/gpu-lifecycle"
# The pages start SGLang; here it is its stand-in, with the same words.
PYTHON = f"""#!/bin/sh
shift 2
exec /usr/bin/python3 -I {ENGINE} --log-level-http warning --load-seconds 0.6 --warmup-seconds 0.2 --crash-wait 1 "$@"
"""
OLD_SERVER = (
    "nohup /opt/sglang/bin/python -m sglang.launch_server --model-path /models/kimi-k2.5-int4 --tp 8 --port 30000"
    " > /tmp/kimi.log 2>&1 & echo $! > /tmp/kimi.pid; wait"
)


def engine_and_models(site: Site) -> None:
    """What every page has: SGLang, and two sound models."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})
    for name, config in {"kimi-k2.5-int4": KIMI, "kimi-k2.5-eagle3": KIMI_DRAFT}.items():
        site.machine.write(f"/models/{name}/config.json", json.dumps(config))
        site.machine.write(f"/models/{name}/tokenizer.json", "{}")
        site.machine.write(f"/models/{name}/model.safetensors", chr(len(header)) + 7 * "\0" + header)
    site.machine.write("/opt/sglang/bin/python", PYTHON, 0o755)


def nohup_server(site: Site) -> None:
    """Started by hand in alice's login, and answering."""
    site.ask("rm", "-f", "/tmp/kimi.pid")
    site.machine.login_session("alice", ["sh", "-c", OLD_SERVER])
    site.planted_pid("/tmp/kimi.pid")
    _answers(site)


def _answers(site: Site) -> None:
    site.machine.wait(lambda: ":30000" in site.ask("ss", "-Hltn"), 20, "the server to answer")
    site.machine.wait(lambda: site.used() == 8 * 72 * GIB, 20, "the server's memory")


def orphan(site: Site) -> None:
    site.orphan("--title", "sglang::scheduler_TP1")


def installed(site: Site) -> None:
    """As the first page leaves it."""
    site.machine.run(["gpu-lifecycle", "install", "sglang-kimi"])
    words = ["/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/kimi-k2.5-int4", "--tp", "8",
             "--port", "30000"]  # fmt: skip
    text = f'[server]\nengine = "sglang"\ncommand = {json.dumps(words)}\n\n[gpus]\nclaim = "all"\ncount = 8\n'
    site.machine.write(f"{OUR_CONFIGS}/sglang-kimi.toml", text)


def running(site: Site) -> None:
    installed(site)
    site.start()


def container(site: Site) -> None:
    """A process in a cgroup as Docker makes them, with 20 GiB on GPU 2."""
    site.ask("rm", "-f", "/run/inner.pid")
    inner = f"{HOLDER} --gpu 2 --uvm --memory 2={20 * GIB} --title vllm --pidfile /run/inner.pid"
    line = f"setsid --fork {inner} >/dev/null 2>&1 </dev/null"
    site.machine.run(["systemd-run", "--quiet", "--collect", f"--unit={CONTAINER}", "--scope", "sh", "-c", line])
    site.planted_pid("/run/inner.pid")


def container_stopped(site: Site) -> None:
    site.machine.run(["systemctl", "stop", CONTAINER])


def node_missing(site: Site) -> None:
    """As a container has it where the host's config passes seven of eight."""
    site.machine.run(["mv", "/dev/nvidia7", "/dev/was-nvidia7"])


def node_passed(site: Site) -> None:
    site.machine.run(["mv", "/dev/was-nvidia7", "/dev/nvidia7"])


def held_by_host(site: Site) -> None:
    site.machine.nvml.set(f"hidden 1 {76 * GIB}")


def freed_on_host(site: Site) -> None:
    site.machine.nvml.clear("hidden")


def rules_rewritten(site: Site) -> None:
    """The container's device rules no longer let NVML in."""
    site.machine.nvml.set("error nvmlInitWithFlags 999")


def driver_upgraded(site: Site) -> None:
    """New libraries, the old module."""
    link = site.ask("sh", "-c", "ls /usr/lib/*/libnvidia-ml.so.1").strip()
    new = link.replace("libnvidia-ml.so.1", "libnvidia-ml.so.600.10.02")
    site.machine.run(["sh", "-c", f"test -L {link} || {{ mv {link} {new}; ln -s {new} {link}; }}"])
    site.machine.nvml.set("error nvmlInitWithFlags 18")


def all_well(site: Site) -> None:
    site.machine.nvml.clear("error")


def upgrades_by_themselves(site: Site) -> None:
    """A machine with needrestart, which restarts what it likes."""
    site.machine.write("/usr/sbin/needrestart", "#!/bin/sh\n", 0o755)
    site.machine.write("/etc/needrestart/needrestart.conf", "$nrconf{restart} = 'a';\n")
    site.ask("rm", "-rf", "/etc/needrestart/conf.d")


def no_kernel_log(site: Site) -> None:
    site.machine.run(["mv", "/dev/kmsg", "/dev/was-kmsg"])


def kernel_log(site: Site) -> None:
    site.machine.run(["mv", "/dev/was-kmsg", "/dev/kmsg"])


def gpu_lost(site: Site) -> None:
    site.machine.nvml.set("error nvmlDeviceGetHandleByIndex_v2 15 3")


def render_job(site: Site) -> None:
    site.service_holder("render", "--gpu", "0", "--uvm", "--memory", f"0={40 * GIB}")


PICTURES: dict[str, Callable[[Site], None]] = {
    maker.__name__.replace("_", "-"): maker
    for maker in (
        nohup_server, orphan, installed, running, container, container_stopped, node_missing, node_passed, held_by_host,
        freed_on_host, rules_rewritten, driver_upgraded, all_well, upgrades_by_themselves,
        no_kernel_log, kernel_log, gpu_lost, render_job,
    )
}  # fmt: skip


def clear(site: Site) -> None:
    """What a page has installed and planted goes, for the next one begins on a new machine."""
    site.reset()
    units = site.ask("sh", "-c", f"ls {OUR_CONFIGS}").split()
    for name in [unit.removesuffix(".toml") for unit in units]:
        site.ask("systemctl", "stop", name)
        site.ask("gpu-lifecycle", "uninstall", name)
    site.ask("sh", "-c", f"rm -rf {OUR_CONFIGS}/*.toml /etc/systemd/system/sglang-kimi.service.d")
    site.ask("sh", "-c", "rm -rf /etc/systemd/system/gpu-lifecycle@*.d; systemctl daemon-reload; systemctl reset-failed")
