"""Who answers for a process, by its cgroup path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Owner, OwnerKind
from gpu_lifecycle.rules.owners import owner_of

ID = "0123456789abcdef" * 4
POD = "0a1b2c3d_1111_2222_3333_0a1b2c3d4e5f"
USER = "/user.slice/user-1000.slice"
MANAGER = f"{USER}/user@1000.service"


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("", "none", ""),
        ("/", "none", ""),
        ("/init.scope", "unit", "init.scope"),
        ("/system.slice", "none", "/system.slice"),
        ("/process_api/0123", "none", "/process_api/0123"),
        ("/system.slice/sglang-kimi.service", "unit", "sglang-kimi.service"),
        ("/system.slice/sglang-kimi.service/worker", "unit", "sglang-kimi.service"),
        ("/system.slice/system-vllm.slice/vllm@1.service", "unit", "vllm@1.service"),
        ("/system.slice/docker.service", "unit", "docker.service"),
        ("/system.slice/run-u12.scope", "unit", "run-u12.scope"),
        # What a unit makes below itself is its own affair: systemd knows no such unit, and would call it dead.
        ("/machine.slice/foo.service/supervisor.scope", "unit", "foo.service"),
        ("/system.slice/foo.service/payload/system.slice/bar.service", "unit", "foo.service"),
        (f"{MANAGER}/app.slice/jupyter.service/kernel.scope", "unit", "user@1000.service/jupyter.service"),
        (f"{MANAGER}/app.slice/tmux.scope/x.service", "session", "user@1000.service/tmux.scope"),
        (f"{USER}/session-3.scope", "session", "session-3.scope"),
        (f"{USER}/session-c2.scope/sub", "session", "session-c2.scope"),
        (MANAGER, "session", "user@1000.service"),
        (f"{MANAGER}/init.scope", "session", "user@1000.service/init.scope"),
        (f"{MANAGER}/app.slice/app-gnome-xterm-12.scope", "session", "user@1000.service/app-gnome-xterm-12.scope"),
        (f"{MANAGER}/tmux-spawn-1.scope", "session", "user@1000.service/tmux-spawn-1.scope"),
        (f"{MANAGER}/app.slice/jupyter.service", "unit", "user@1000.service/jupyter.service"),
        (f"/system.slice/docker-{ID}.scope", "container", f"docker:{ID}"),
        (f"/docker/{ID}", "container", f"docker:{ID}"),
        (f"/docker/{ID}/init.scope", "container", f"docker:{ID}"),
        (f"{MANAGER}/user.slice/docker-{ID}.scope", "container", f"docker:{ID}"),
        (f"/machine.slice/libpod-{ID}.scope/container", "container", f"podman:{ID}"),
        (f"/libpod_parent/libpod-{ID}", "container", f"podman:{ID}"),
        (f"/machine.slice/libpod-conmon-{ID}.scope", "container", f"podman:{ID}"),
        (f"{MANAGER}/user.slice/libpod-{ID}.scope", "container", f"podman:{ID}"),
        (f"/system.slice/cri-containerd-{ID}.scope", "container", f"containerd:{ID}"),
        (f"/system.slice/crio-{ID}.scope", "container", f"cri-o:{ID}"),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice/cri-containerd-{ID}.scope",
         "container", f"pod:{POD}"),
        (f"/kubepods/besteffort/pod{POD.replace('_', '-')}/{ID}", "container", f"pod:{POD.replace('_', '-')}"),
        ("/lxc.payload.web/system.slice/nginx.service", "container", "lxc:web"),
        ("/lxc.payload.web", "container", "lxc:web"),
        ("/lxc/101/ns/system.slice/sglang-kimi.service", "container", "lxc:101"),
        ("/lxc/101/ns", "container", "lxc:101"),
        ("/machine.slice/machine-deb.scope/payload", "container", "machine:deb"),
        ("/machine.slice/systemd-nspawn@deb.service/payload/init.scope", "container", "nspawn:deb"),
        # Only look like one.
        ("/system.slice/docker-compose.service", "unit", "docker-compose.service"),
        ("/system.slice/session-recorder-1.scope", "unit", "session-recorder-1.scope"),
        ("/system.slice/user@home.service", "unit", "user@home.service"),
        ("/docker", "none", "/docker"),
        ("/lxc", "none", "/lxc"),
    ],
)  # fmt: skip
def test_owner(path: str, kind: str, name: str) -> None:
    assert owner_of(path) == Owner(OwnerKind(kind), name)


@pytest.mark.parametrize("path", ["/..", "/../..", "/../system.slice/x.service", f"/../docker-{ID}.scope"])
def test_above_our_own_namespace_nobody_is_known(path: str) -> None:
    assert owner_of(path) == Owner(OwnerKind.NONE, path, outside=True)


PARTS = st.sampled_from(["..", "docker", "lxc", "a.service", "b.scope", "session-1.scope", "user@0.service", "", "\n", "x"])


@given(st.one_of(st.text(), st.lists(PARTS).map("/".join)))
def test_every_path_has_an_owner_and_no_liveness(path: str) -> None:
    owner = owner_of(path)
    assert owner.alive is None
    assert owner.outside is (".." in path.split("/"))
    assert owner.name or owner.kind is OwnerKind.NONE
