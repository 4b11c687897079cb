"""The whole story on a machine without a GPU: real systemd, real processes, stand-in device nodes and NVML.

Run by ``make demo``. Each step says what it does, runs the real command, and shows what it printed. It fails, with what it
saw, as soon as something is not as told.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tests.machine import Machine
from tests.systemd.conftest import new_site
from tests.systemd.site import GIB, UNIT, Site

OUT = Console(highlight=False, soft_wrap=True)


def heading(text: str) -> None:
    OUT.print(f"\n[bold]== {escape(text)}[/]")


def show(machine: Machine, *words: str) -> str:
    """Runs a command in the machine and shows it as a person would see it."""
    OUT.print(f"[bold green]#[/] {escape(' '.join(words))}")
    text = str(machine.run(list(words), check=False, timeout=90).stdout)
    OUT.print(escape(text.rstrip()), soft_wrap=True)
    return text


def until(what: str, condition: Callable[[], object], seconds: float = 60) -> None:
    """Waits with a display of what for; on a terminal it moves, in a pipe it is one line."""
    deadline = time.monotonic() + seconds
    with OUT.status(f"waiting for {what}") if OUT.is_terminal else OUT.capture():
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"demo: gave up after {seconds:.0f} s waiting for {what}")
            time.sleep(0.2)
    OUT.print(f"   [dim]{escape(what)}: seen[/]")


def expect(fact: bool, what: str) -> None:
    """The demo proves what it says."""
    if not fact:
        raise SystemExit(f"demo: NOT as it should be: {what}")
    OUT.print(f"   [green]✓[/] {escape(what)}")


def journal(site: Site, *words: str) -> str:
    return show(site.machine, "journalctl", "-u", "sglang-kimi", "-b", "--no-pager", "-o", "cat", "-t", "gpu-lifecycle", *words)


def plant(site: Site) -> tuple[int, int]:
    heading("A machine where things were left behind")
    site.machine.run(["cp", "/usr/local/libexec/gpu-holder", "/usr/bin/nvidia-persistenced"])
    every = [word for gpu in range(8) for word in ("--gpu", str(gpu))]
    bystander = site.service_holder(
        "nvidia-persistenced", *every, "--ctl", "--signals", "/run/signals", program="/usr/bin/nvidia-persistenced"
    )
    orphan = site.orphan("--ignore-term", "--title", "python -m sglang.launch_server")
    OUT.print(
        f"   an orphan with 76 GiB on GPU 1 that ignores SIGTERM (pid {orphan}), and nvidia-persistenced (pid {bystander})"
    )
    show(site.machine, "gpu-lifecycle", "holders")
    return orphan, bystander


def start(site: Site, orphan: int, bystander: int) -> None:
    heading("systemctl start sglang-kimi")
    began = time.monotonic()
    site.start(wait=False)
    until("memory to grow", lambda: any(gpu.get("memory_own") for gpu in site.cli("status", "sglang-kimi")["gpus"]))
    show(site.machine, "gpu-lifecycle", "status", "sglang-kimi")
    until("active", lambda: site.state() == "active")
    OUT.print(f"   active after {time.monotonic() - began:.1f} s")
    journal(site)
    expect(not site.alive(orphan), "the orphan was reaped")
    expect(site.alive(bystander) and site.ask("cat", "/run/signals") == "", "nvidia-persistenced lives and got no signal")
    show(site.machine, "gpu-lifecycle", "status", "sglang-kimi")
    expect(site.cli("status", "sglang-kimi")["phase"] == "ready", "ready, with memory on all 8 GPUs")


def lose_a_worker(site: Site) -> None:
    heading("A worker dies; /health stays green")
    first = site.show("InvocationID")
    victim = site.workers()[3]
    OUT.print(f"   kill -9 {victim}  (sglang::scheduler_TP3)")
    site.kill(victim)
    until("the loss to be seen", lambda: bool(site.events("engine-failed")))
    until("the restart to be ready", lambda: site.show("InvocationID") != first and site.state() == "active")
    journal(site, "-p", "notice", "-n", "8")
    expect(site.show("NRestarts") == "1", "one restart, and ready again")


def stop(site: Site) -> None:
    heading("systemctl stop sglang-kimi")
    show(site.machine, "systemctl", "stop", "sglang-kimi")
    journal(site, "-n", "5")
    expect(site.state() == "inactive" and site.used() == 0, "stopped, and all GPUs proven free")
    show(site.machine, "gpu-lifecycle", "gpus")


def reboot(site: Site) -> None:
    heading("Reboot: it comes up by itself")
    show(site.machine, "gpu-lifecycle", "install", "sglang-kimi", "--enable")
    site.machine.reboot()
    until("active after the boot", lambda: site.state() == "active")
    show(site.machine, "systemctl", "status", UNIT, "--no-pager", "-n", "3")
    expect(site.cli("status", "sglang-kimi")["phase"] == "ready", "ready without anybody's help")


def story(site: Site) -> None:
    site.configure("--crash-wait", "never", "--load-seconds", "4", "--memory-per-gpu", str(72 * GIB))
    orphan, bystander = plant(site)
    start(site, orphan, bystander)
    lose_a_worker(site)
    stop(site)
    reboot(site)


def main() -> int:
    options = argparse.ArgumentParser(prog="demo", description=__doc__)
    options.add_argument("--keep", action="store_true", help="leave the machine up until Ctrl-C, and say how to enter it")
    keep = options.parse_args().keep
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="gpu-lifecycle-demo-"))
    try:
        heading("Booting a machine: a real systemd in namespaces of its own, 8 stand-in GPUs")
        with Machine(folder, gpus=8) as machine:
            story(new_site(machine))
            OUT.print(f"\n[bold]All of it as promised, in {time.monotonic() - began:.0f} s.[/]")
            if keep:
                OUT.print(f"The machine stays up until Ctrl-C. Enter it with:\n\n  {escape(machine.enter_command())}\n")
                stay()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    OUT.print("Nothing is left behind.")
    return 0


def stay() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        OUT.print("\nstopping the machine")


if __name__ == "__main__":
    sys.exit(main())
