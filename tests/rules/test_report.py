"""What is said about a process: in a line, in journal fields, in JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_lifecycle.facts import ErrorClass, Gpu, GpuError, Identity, Judged, Owner, OwnerKind, Process, Sight, Verdict
from gpu_lifecycle.rules.report import advice, describe, gpu_json, holder_json, judged_fields, label_of, memory_text, sight_json

PROCESS = Process(
    identity=Identity("boot", 4711, 100), ppid=1, state="S", command="python3", executable="/x", uid=1, user="alice",
    cgroup="/", tty=0, login_uid=None, how=("fd", "map"),
)  # fmt: skip
NOBODY = Owner(OwnerKind.NONE)
UNIT = Owner(OwnerKind.UNIT, "llama.service", alive=True)
GIB = 2**30


def judged(
    owner: Owner = NOBODY,
    verdict: Verdict = Verdict.CONFLICT,
    gpus: tuple[str, ...] = (),
    memory: dict[str, int | None] | None = None,
) -> Judged:
    return Judged(PROCESS, owner, verdict, "some-rule", "because", gpus, memory or {})


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (judged(), 'process 4711 "python3" of user alice'),
        (judged(UNIT), 'process 4711 "python3" of user alice in unit llama.service'),
        (judged(memory={"a": GIB, "b": None}), 'process 4711 "python3" of user alice with 1 GiB on 2 GPUs'),
        (judged(memory={"a": None}), 'process 4711 "python3" of user alice'),
    ],
)
def test_describe(item: Judged, text: str) -> None:
    assert describe(item) == text


@pytest.mark.parametrize(
    ("kind", "name", "command"),
    [
        ("unit", "llama.service", "systemctl stop llama.service"),
        ("unit", "user@1000.service/jupyter.service", "systemctl --user --machine=alice@ stop jupyter.service"),
        ("container", "docker:abc", "docker stop abc"),
        ("container", "podman:abc", "podman stop abc"),
        ("container", "lxc:101", "lxc-stop -n 101"),
        ("container", "nspawn:deb", "machinectl poweroff deb"),
        ("container", "pod:1", "stop its container or pod"),
        ("session", "session-3.scope", "kill 4711 (look first: ps -fp 4711)"),
        ("none", "", "kill 4711 (look first: ps -fp 4711)"),
    ],
)
def test_advice_goes_through_the_owner(kind: str, name: str, command: str) -> None:
    owner = Owner(OwnerKind(kind), name)
    assert advice(judged(owner)).endswith(command)
    for verdict in set(Verdict) - {Verdict.CONFLICT}:
        assert advice(judged(owner, verdict)) == ""


@pytest.mark.parametrize(
    ("item", "more"),
    [
        (judged(), {}),
        (judged(UNIT, gpus=("a",)), {"GPU_LIFECYCLE_GPU": "a", "OBJECT_SYSTEMD_UNIT": "llama.service"}),
        (judged(gpus=("a", "b")), {"GPU_LIFECYCLE_GPU": "a b"}),
    ],
)
def test_fields(item: Judged, more: dict[str, str]) -> None:
    common = {"GPU_LIFECYCLE_VERDICT": "conflict", "GPU_LIFECYCLE_RULE": "some-rule", "GPU_LIFECYCLE_PID": "4711"}
    assert judged_fields(item) == common | more | {"OBJECT_PID": "4711"}
    assert judged_fields(replace(item, process=replace(item.process, blocks=True))) == common | more


def test_holder_json() -> None:
    shown = holder_json(judged(UNIT, gpus=("a",), memory={"a": None}))
    assert json.loads(json.dumps(shown)) == {
        "pid": 4711, "start_ticks": 100, "command": "python3", "user": "alice", "how": ["fd", "map", "nvml"], "gpus": ["a"],
        "memory": {"a": None}, "owner": {"kind": "unit", "name": "llama.service"}, "verdict": "conflict", "rule": "some-rule",
        "why": "because",
    }  # fmt: skip
    assert holder_json(judged(), "killed", with_result=True)["result"] == "killed"
    assert holder_json(judged(), with_result=True)["result"] is None
    assert holder_json(judged())["how"] == ["fd", "map"]


def gpu(used: int | None, error: GpuError | None = None) -> Gpu:
    return Gpu("GPU-a", 0, 3, "0000:01:00.0", "H200", 80 * GIB, used, None, error)


def test_gpu_json() -> None:
    shown = gpu_json(gpu(None), ["a.service"], fitness=("warn", ["hot"]))
    assert shown == {
        "uuid": "GPU-a", "index": 0, "label": "0", "minor": 3, "pci": "0000:01:00.0", "name": "H200", "memory_total": 80 * GIB,
        "memory_used": None, "memory_unexplained": None, "health": {"state": "warn", "reasons": ["hot"]},
        "claimed_by": ["a.service"], "instance_of": None, "divided": False,
    }  # fmt: skip
    broken = gpu_json(gpu(1, GpuError("15", "lost", ErrorClass.HOST_ACTION)))
    assert gpu_json(gpu(1))["health"] == {"state": "unknown", "reasons": []}
    assert broken["health"] == {"state": "bad", "reasons": ["lost"]}


@pytest.mark.parametrize(
    ("used", "text"),
    [
        ([], "memory unknown"),
        ([None], "memory unknown"),
        ([GIB, GIB + 1], "1 GiB used on each"),
        ([GIB, 2 * GIB, None], "1 GiB to 2 GiB used"),
    ],
)
def test_memory_text(used: list[int | None], text: str) -> None:
    assert memory_text([gpu(amount) for amount in used]) == text


def test_sight_json() -> None:
    assert sight_json(Sight()) == {"full": True, "limits": []}
    assert sight_json(Sight(("x",)).plus("x", "y")) == {"full": False, "limits": ["x", "y"]}


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "3"),
        ({"parent": "GPU-b", "instance": 2}, "3:2"),
        ({"parent": "GPU-b", "instance": 2, "compute_instance": 0}, "3:2"),
        ({"parent": "GPU-b", "instance": 2, "compute_instance": 1}, "3:2:1"),
    ],
)
def test_instances_of_one_gpu_are_told_apart(changes: dict[str, Any], label: str) -> None:
    gpu = Gpu("GPU-a", 3, 0, "", "H200", 1, 0, (), **changes)
    assert gpu.label == label
    assert label_of(gpu_json(gpu)) == label


@pytest.mark.parametrize(("item", "label"), [({"index": 4}, "4"), ({"label": "\x1b[31m", "index": True}, "?"), ({}, "?")])
def test_a_label_in_a_document_that_may_hold_anything(item: dict[str, Any], label: str) -> None:
    assert label_of(item) == label
