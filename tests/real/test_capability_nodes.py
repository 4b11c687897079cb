"""The nodes below /dev/nvidia-caps that an instance (MIG) needs: in a mount namespace with a driver's files and nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_lifecycle.rules.nodes import Caps, capability_files
from gpu_lifecycle.system.devices import capability_nodes

ROOT = Path(__file__).parents[2]
GIB = 2**30
OURS = "MIG-aaaa1111-0000"
INSTANCE = f"mig 32 parent=0 instance=3 compute=1 uuid={OURS} total={40 * GIB}"  # of the GPU whose minor is 3
FOLDER = "/proc/driver/nvidia/capabilities/gpu3/mig/gi3"
# Nodes are terminals that nobody uses, and their major is NVIDIA's here.
SET_UP = r"""
set -e
sed 's/^  4 .*$/  4 nvidia/; t; ' /proc/devices | sed '/nvidia$/a \  4 nvidia-caps' > "$1/devices"
mkdir "$1/old"; mount --rbind /dev "$1/old"
mount -t tmpfs none /dev; for name in null zero full urandom; do touch /dev/$name; mount --bind "$1/old/$name" /dev/$name; done
mknod /dev/nvidia3 c 4 51; mknod /dev/nvidiactl c 4 52; mknod /dev/nvidia-uvm c 4 53; mkdir /dev/nvidia-caps
mknod /dev/nvidia-caps/nvidia-cap30 c 4 54
mount --bind "$1/devices" /proc/devices
mount -t tmpfs none /proc/driver; mkdir -p "$FOLDER/ci1"
printf 'DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n' > "$FOLDER/access"
printf 'DeviceFileMinor: 31\nDeviceFileMode: 292\nDeviceFileModify: 1\n' > "$FOLDER/ci1/access"
exec "$2" -c "$3" "$1"
"""
LOOK = """
import os, sys
from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.check import check
from gpu_lifecycle.jobs.presence import await_gpus
from gpu_lifecycle.jobs.settings import load_config
from gpu_lifecycle.system.gpu import GpuProbe
unit, layout, path = UnitName("kimi"), Layout(sys.argv[1]), os.environ["PATH"]
def start():
    try:
        with GpuProbe() as probe:
            await_gpus(probe, load_config(layout, unit), lambda text: print("start shows", text, flush=True))
        print("start goes on")
    except LifecycleError as error:
        print("start", error.status.value, error)
check(unit, layout, as_json=False)
start()
print("--- with the driver's tool", flush=True)
os.environ["PATH"] = f"{sys.argv[1]}/bin:{path}"
start()
check(unit, layout, as_json=False)
print("--- a driver that says nothing of capabilities", flush=True)
os.unlink("/dev/nvidia-caps/nvidia-cap31"); os.unlink(f"{os.environ['FOLDER']}/ci1/access")
start()
"""
TOOL = """#!/bin/sh
[ "$1" = -f ] && mknod /dev/nvidia-caps/nvidia-cap$(sed -n 's/DeviceFileMinor: //p' "$2") c 4 55
"""


@pytest.fixture
def said(driver: Callable[..., None], tmp_path: Path) -> list[str]:
    driver(INSTANCE)
    (tmp_path / "etc/gpu-lifecycle").mkdir(parents=True)
    (tmp_path / "etc/gpu-lifecycle/kimi.toml").write_text(
        '[server]\ncommand = ["/bin/true"]\nengine = "custom"\nurl = "http://127.0.0.1:1"\n'
        f'[gpus]\nclaim = ["{OURS}"]\n[ready]\nmin_used = "1GiB"\ngenerate = false\n'
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-modprobe").write_text(TOOL)
    (tmp_path / "bin/nvidia-modprobe").chmod(0o755)
    words = ["unshare", "-m", "sh", "-c", SET_UP, "sh", str(tmp_path), sys.executable, LOOK]
    env = {**os.environ, "FOLDER": FOLDER, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=90, env=env)
    if "not permitted" in done.stderr or "denied" in done.stderr:
        pytest.skip("this machine allows no mounts, or no nodes, to this user")
    assert "---" in done.stdout, done.stderr
    return done.stdout.splitlines()


def test_a_node_that_is_missing_is_named_demanded_and_made(said: list[str]) -> None:
    first, second = (number for number, line in enumerate(said) if line.startswith("---"))
    text, tool = "/dev/nvidia-caps/nvidia-cap31 is not there", f"nvidia-modprobe -f {FOLDER}/ci1/access"
    cure = f"({tool}; in a container, pass the nodes in from the host)"
    assert [line for line in said[:first] if "nvidia-cap" in line] == [
        f"error: {text} {cure}",
        f"start shows {text}: running {tool}",
        f"start 69 {text} {cure}",
    ]
    assert f"start shows {text}: running {tool}" in said[first:second]
    assert "start goes on" in said[first:second]
    assert [line for line in said[first:second] if line.startswith("error: /dev/")] == []
    assert said[second + 1 :] == ["start shows asking NVML for the GPUs", "start goes on"]


@pytest.mark.parametrize(
    ("registered", "text", "found"),
    [
        ("511 nvidia-caps", "DeviceFileMinor: 30\nDeviceFileMode: 292\n", {"nvidia-cap30": "gpu3/mig/gi3/access"}),
        ("511 nvidia-caps-imex-channels", "DeviceFileMinor: 30\n", {}),
        ("195 nvidia", "DeviceFileMinor: 30\n", {}),
        ("511 nvidia-caps", "DeviceFileMinor: -1\n", {}),
        ("511 nvidia-caps", "\xff\n", {}),
        ("511 nvidia-caps", None, {}),
    ],
)
def test_what_the_drivers_files_say(tmp_path: Path, registered: str, text: str | None, found: dict[str, str]) -> None:
    """As the driver of a machine without such nodes, or an older one, has it: what asks for no node demands none."""
    folder = tmp_path / "driver/nvidia/capabilities"
    (folder / "gpu3/mig/gi3").mkdir(parents=True)
    (tmp_path / "devices").write_text(f"Character devices:\n{registered}\n\nBlock devices:\n")
    if text is not None:
        (folder / "gpu3/mig/gi3/access").write_text(text)
    caps: Caps = capability_nodes(["gpu3/mig/gi3/access"], str(tmp_path))
    assert caps == {name: f"{folder}/{file}" for name, file in found.items()}
    assert capability_nodes(["gpu3/mig/gi3/access"], str(tmp_path / "none")) == {}
    assert list(capability_files([])) == []
