"""Which rule decides on which process, and that no rule reaps where it is unclear who answers for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.facts import Identity, Owner, OwnerKind, Process, UnitName, Verdict
from gpu_lifecycle.rules.verdict import RULES, Case, Policy, Scene, in_cgroup, judge

UNIT = UnitName("sglang-kimi")
CGROUP = "/system.slice/sglang-kimi.service"
GPU, OTHER = "GPU-aaaa", "GPU-bbbb"
SCENE = Scene(UNIT, cgroup=CGROUP, full=frozenset({GPU}))
NOBODY = Owner(OwnerKind.NONE)
OWN = Owner(OwnerKind.UNIT, UNIT.service, alive=True)
ALIVE = Owner(OwnerKind.UNIT, "llama.service", alive=True)
UNSURE = Owner(OwnerKind.UNIT, "llama.service", alive=None)
DEAD = Owner(OwnerKind.UNIT, "llama.service", alive=False)
USERS = Owner(OwnerKind.UNIT, "user@1000.service/jupyter.service", alive=None)
SESSION = Owner(OwnerKind.SESSION, "session-3.scope")
DOCKER = Owner(OwnerKind.CONTAINER, "docker:0123456789ab")
ABOVE = Owner(OwnerKind.NONE, "/../other", outside=True)
PROCESS = Process(
    identity=Identity("boot", 4711, 100), ppid=1, state="S", command="python3 -m sglang", executable="/opt/sglang/bin/python3",
    uid=1000, user="alice", cgroup="/elsewhere", tty=0, login_uid=None, devices=frozenset({1}), how=("fd",),
)  # fmt: skip
MARKED: dict[str, Any] = {"marker_unit": UNIT.service, "marker_run": "r1"}


def case(owner: Owner = NOBODY, **changed: Any) -> Case:
    """An orphan with memory on the claimed GPU, but for what is changed; unknown names go to the process."""
    fields = {key: changed.pop(key) for key in list(changed) if key in Case.__slots__}
    base = Case(PROCESS, owner, gpus=(GPU,), claimed=(GPU,), uvm=True, memory={GPU: 2**30}, parent_is_init=True)
    if "pid" in changed:
        changed["identity"] = Identity("boot", changed.pop("pid"), 100)
    return replace(base, process=replace(PROCESS, **changed), **fields)


def scene(**changed: Any) -> Scene:
    return replace(SCENE, **changed)


DEDICATED = scene(policy=Policy.DEDICATED)
STOPPED = scene(survivors_only=True)
LIVE = scene(current_run="r2")
RAN = scene(past_runs=frozenset({"r1", "r2"}))
INSIDE: dict[str, Any] = {"cgroup": CGROUP}
NOT_FULL = scene(full=frozenset())

# case, scene, verdict, the rule that gives it
TABLE: list[tuple[Case, Scene, str, str]] = [
    # Never touched, whatever else speaks for it.
    (case(OWN, pid=1, **INSIDE, **MARKED), SCENE, "spare", "init"),
    (case(OWN, **INSIDE), scene(ours=frozenset({4711})), "spare", "ourselves"),
    (case(NOBODY, **MARKED), scene(ours=frozenset({4711})), "spare", "ourselves"),
    (case(OWN, **INSIDE), LIVE, "spare", "current-run"),
    (case(OWN, cgroup=CGROUP + "/sub"), LIVE, "spare", "current-run"),
    (case(SESSION, marker_unit=UNIT.service, marker_run="r2"), LIVE, "spare", "current-run"),
    (case(Owner(OwnerKind.UNIT, "nvidia-persistenced.service", alive=True)), SCENE, "spare", "bystander"),
    (case(Owner(OwnerKind.UNIT, "gdm.service", alive=False)), SCENE, "spare", "bystander"),
    (case(executable="/usr/bin/nvidia-smi", **MARKED), SCENE, "spare", "bystander"),
    (case(OWN, executable="/usr/bin/nvidia-persistenced", **INSIDE), SCENE, "spare", "bystander"),
    (case(OWN, executable="/usr/lib/xorg/Xorg", **INSIDE), STOPPED, "spare", "bystander"),
    # Surely this unit's.
    (case(OWN, **INSIDE), SCENE, "reap", "leftover-cgroup"),
    (case(OWN, cgroup=CGROUP + "/sub", gpus=(OTHER,), claimed=()), SCENE, "reap", "leftover-cgroup"),
    (case(OWN, executable="/tmp/nvidia-smi", **INSIDE), SCENE, "reap", "leftover-cgroup"),
    (case(OWN, executable="/usr/binx/nvidia-smi", **INSIDE), SCENE, "reap", "leftover-cgroup"),
    (case(OWN, **INSIDE), STOPPED, "reap", "leftover-cgroup"),
    (case(OWN, **INSIDE), scene(sight_full=False), "reap", "leftover-cgroup"),
    (case(OWN, gpus=(), claimed=(), memory={}, **INSIDE), SCENE, "reap", "leftover-cgroup"),
    (case(OWN, **INSIDE, user="bob"), scene(protect=("bob",)), "reap", "leftover-cgroup"),
    (case(replace(OWN, alive=None), **INSIDE), SCENE, "reap", "leftover-cgroup"),
    (case(gpus=(OTHER,), claimed=(), **MARKED), SCENE, "ignore", "other-gpu"),
    # Protected by the config: by owner, user or the whole executable.
    (case(**MARKED), scene(protect=("alice",)), "conflict", "protected"),
    (case(ALIVE), scene(protect=("llama.service",)), "conflict", "protected"),
    (case(), scene(protect=("/opt/sglang/bin/python3",), full=frozenset()), "spare", "protected"),
    # Others that may answer for it, even where our marker was inherited.
    (case(DOCKER, **MARKED), DEDICATED, "conflict", "container"),
    (case(DOCKER, **MARKED), NOT_FULL, "spare", "container"),
    (case(container="pid namespace", **MARKED), DEDICATED, "conflict", "container"),
    (case(Owner(OwnerKind.CONTAINER, "pod:1"), cgroup=CGROUP), DEDICATED, "conflict", "container"),
    (case(ABOVE, **MARKED), DEDICATED, "conflict", "outside"),
    (case(cgroup="", **MARKED), DEDICATED, "conflict", "outside"),
    (case(ALIVE, **MARKED), DEDICATED, "conflict", "other-unit"),
    (case(UNSURE, **MARKED), DEDICATED, "conflict", "other-unit"),
    (case(USERS), DEDICATED, "conflict", "other-unit"),
    (case(ALIVE, memory={}), SCENE, "spare", "other-unit"),
    (case(Owner(OwnerKind.UNIT, "x.service", alive=True), cgroup=CGROUP + "-2"), SCENE, "conflict", "other-unit"),
    # The marker of an earlier run.
    (case(**MARKED), SCENE, "reap", "leftover-marker"),
    (case(marker_unit=UNIT.service), SCENE, "reap", "leftover-marker"),
    (case(DEAD, **MARKED), SCENE, "reap", "leftover-marker"),
    (case(SESSION, **MARKED), SCENE, "reap", "leftover-marker"),
    (case(gpus=(), claimed=(), memory={}, **MARKED), SCENE, "reap", "leftover-marker"),
    (case(**MARKED), LIVE, "reap", "leftover-marker"),
    (case(**MARKED), STOPPED, "reap", "leftover-marker"),
    # A run id of systemd's own, in a process that names no unit.
    (case(marker_run="r1"), RAN, "reap", "leftover-marker"),
    (case(SESSION, marker_run="r1"), RAN, "reap", "leftover-marker"),
    (case(SESSION, marker_run="r3"), RAN, "conflict", "session"),
    (case(SESSION, marker_run="r2"), replace(RAN, current_run="r2"), "spare", "current-run"),
    (case(SESSION, marker_run="r1"), replace(RAN, run_unknown=True), "conflict", "current-run"),
    (case(ALIVE, marker_run="r1"), RAN, "conflict", "other-unit"),
    (case(SESSION, marker_unit="other.service", marker_run="r1", marker_alive=True), RAN, "conflict", "other-marker"),
    # After a stop, nothing but leftovers.
    (case(), STOPPED, "spare", "not-a-survivor"),
    (case(DEAD), scene(survivors_only=True, policy=Policy.DEDICATED), "spare", "not-a-survivor"),
    (case(SESSION), scene(survivors_only=True, policy=Policy.DEDICATED), "spare", "not-a-survivor"),
    # Memory and nodes.
    (case(gpus=(), claimed=(), memory={}), DEDICATED, "spare", "no-gpu"),
    (case(DEAD, gpus=(), claimed=(), memory={}), SCENE, "spare", "no-gpu"),
    # Logins.
    (case(SESSION), SCENE, "conflict", "session"),
    (case(SESSION), NOT_FULL, "spare", "session"),
    (case(SESSION), DEDICATED, "reap", "session"),
    (case(SESSION, uvm=False, memory={GPU: 0}), DEDICATED, "spare", "session"),
    (case(SESSION, uvm=False, memory={GPU: None}), DEDICATED, "reap", "session"),
    (case(SESSION, memory={}), DEDICATED, "reap", "session"),
    (case(SESSION, memory={OTHER: 2**30}), DEDICATED, "spare", "session"),
    # Runs that are alive, or may be.
    (case(marker_unit=UNIT.service, marker_run="foreground.7.9"), scene(live_runs=frozenset({"foreground.7.9"})),
     "conflict", "current-run"),
    (case(marker_unit=UNIT.service, marker_run="foreground.7.9"), SCENE, "reap", "leftover-marker"),
    (case(marker_unit=UNIT.service, marker_run="foreground.7.9"), scene(run_unknown=True), "reap", "leftover-marker"),
    (case(SESSION, **MARKED), scene(run_unknown=True, policy=Policy.DEDICATED), "conflict", "current-run"),
    (case(tty=34816), SCENE, "conflict", "terminal"),
    (case(login_uid=1000), SCENE, "conflict", "terminal"),
    (case(login_uid=0), DEDICATED, "reap", "terminal"),
    # Nobody.
    (case(DEAD), SCENE, "reap", "dead-unit"),
    (case(DEAD, tty=34816), SCENE, "reap", "dead-unit"),
    # A unit that systemd does not know, or that is being upgraded: a living parent may answer all the same.
    (case(DEAD, parent_is_init=False), DEDICATED, "conflict", "parented"),
    (case(DEAD, readable=False), SCENE, "conflict", "parented"),
    (case(parent_is_init=False), DEDICATED, "conflict", "parented"),
    (case(readable=False), DEDICATED, "conflict", "parented"),
    (case(parent_is_init=False, memory={GPU: 0}), SCENE, "spare", "parented"),
    (case(), SCENE, "reap", "orphan"),
    (case(marker_unit="other.service", marker_run="r1"), SCENE, "reap", "orphan"),
    (case(marker_unit="other.service", marker_alive=True), DEDICATED, "conflict", "other-marker"),
    (case(SESSION, marker_unit="other.service", marker_alive=None), DEDICATED, "conflict", "other-marker"),
    (case(SESSION, marker_unit="other.service"), DEDICATED, "reap", "session"),
    (case(executable="/home/alice/nvidia-smi"), SCENE, "reap", "orphan"),
    (case(executable="nvidia-smi"), SCENE, "reap", "orphan"),
    # What policy and sight forbid.
    (case(OWN, **INSIDE), scene(policy=Policy.REPORT), "conflict", "policy-report"),
    (case(), scene(policy=Policy.REPORT, sight_full=False), "conflict", "policy-report"),
    (case(SESSION), scene(policy=Policy.REPORT), "conflict", "session"),
    (case(), scene(sight_full=False), "conflict", "partial-sight"),
    (case(**MARKED), scene(sight_full=False), "conflict", "partial-sight"),
    (case(DEAD), scene(sight_full=False), "conflict", "partial-sight"),
    (case(SESSION), scene(policy=Policy.DEDICATED, sight_full=False), "conflict", "partial-sight"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "where", "verdict", "rule"), TABLE, ids=lambda x: x if isinstance(x, str) else "")
def test_verdict(what: Case, where: Scene, verdict: str, rule: str) -> None:
    judged = judge(what, where)
    assert (str(judged.verdict), judged.rule) == (verdict, rule)
    assert judged.why
    assert (judged.process, judged.owner, judged.gpus, judged.memory) == (what.process, what.owner, what.gpus, what.memory)


def test_every_rule_decides_and_declines() -> None:
    """Each rule gives a verdict in the table, and is asked and passes on another row (the last one never passes)."""
    rules = dict(RULES)
    assert len(rules) == len(RULES)
    decided = {rule for *_, rule in TABLE}
    declined = {name for name, rule in RULES for what, where, *_ in TABLE if rule(what, where) is None}
    assert decided == set(rules) | {"policy-report", "partial-sight"}
    assert declined == set(rules) - {"orphan"}


def test_order() -> None:
    names = [name for name, _ in RULES]
    for first, then in [
        ("init", "ourselves"), ("ourselves", "current-run"), ("current-run", "leftover-cgroup"),
        ("bystander", "leftover-cgroup"), ("leftover-cgroup", "protected"), ("protected", "leftover-marker"),
        ("container", "leftover-marker"),
        ("outside", "leftover-marker"), ("other-unit", "leftover-marker"), ("leftover-marker", "not-a-survivor"),
        ("not-a-survivor", "session"), ("not-a-survivor", "orphan"), ("parented", "orphan"),
    ]:  # fmt: skip
        assert names.index(first) < names.index(then), (first, then)
    assert names[0] == "init"
    assert names[-1] == "orphan"


@pytest.mark.parametrize(
    ("memory", "full", "verdict"),
    [
        ({GPU: 1}, {GPU}, "conflict"),
        ({GPU: None}, {GPU}, "conflict"),  # not known is not nothing
        ({GPU: 0}, {GPU}, "spare"),
        ({}, {GPU}, "spare"),
        ({GPU: 1}, set(), "spare"),
        ({GPU: None}, {OTHER}, "spare"),
        ({OTHER: 1}, {GPU, OTHER}, "spare"),  # not claimed
    ],
)
def test_a_tenant_is_in_the_way_only_with_memory_on_a_claimed_full_gpu(
    memory: dict[str, int | None], full: set[str], verdict: str
) -> None:
    assert judge(case(ALIVE, memory=memory), scene(full=frozenset(full))).verdict == verdict


@pytest.mark.parametrize(
    ("path", "inside"),
    [(CGROUP, True), (CGROUP + "/a/b", True), (CGROUP + "2", False), ("/system.slice", False), ("", False)],
)
def test_in_cgroup(path: str, inside: bool) -> None:
    process = replace(PROCESS, cgroup=path)
    assert in_cgroup(process, CGROUP) is inside
    assert not in_cgroup(process, "")


OWNERS = st.builds(
    Owner,
    st.sampled_from(OwnerKind),
    st.sampled_from(["", UNIT.service, "llama.service", "session-1.scope"]),
    st.sampled_from([True, False, None]),
    st.booleans(),
)
SCENES = st.builds(
    scene,
    policy=st.sampled_from(Policy),
    current_run=st.sampled_from(["", "r1", "r2"]),
    ours=st.sampled_from([frozenset(), frozenset({4711})]),
    survivors_only=st.booleans(),
    full=st.sampled_from([frozenset(), frozenset({GPU})]),
    sight_full=st.booleans(),
    protect=st.sampled_from([(), ("alice",), (UNIT.service,)]),
)
CASES = st.builds(
    case,
    OWNERS,
    pid=st.sampled_from([1, 2, 4711]),
    cgroup=st.sampled_from(["", "/", CGROUP, "/elsewhere"]),
    tty=st.sampled_from([0, 34816]),
    login_uid=st.sampled_from([None, 1000]),
    marker_unit=st.sampled_from(["", UNIT.service, "other.service"]),
    marker_run=st.sampled_from(["", "r1", "r2"]),
    container=st.sampled_from(["", "pid namespace"]),
    executable=st.sampled_from(["", "/usr/bin/nvidia-smi", "/opt/x"]),
    readable=st.booleans(),
    claimed=st.sampled_from([(), (GPU,)]),
    uvm=st.booleans(),
    memory=st.sampled_from([{}, {GPU: 0}, {GPU: None}, {GPU: 5}]),
    parent_is_init=st.booleans(),
)


@given(CASES, SCENES)
def test_what_is_reaped_has_nobody_else(what: Case, where: Scene) -> None:
    """The promise, written apart from the rules: each line is one reason for which nothing may be signalled."""
    if judge(what, where).verdict is not Verdict.REAP:
        return
    process, owner = what.process, what.owner
    own = in_cgroup(process, CGROUP) and owner.kind is OwnerKind.UNIT
    marked = process.marker_unit == UNIT.service
    assert process.pid != 1
    assert process.pid not in where.ours
    assert where.policy is not Policy.REPORT
    assert own or where.sight_full
    assert own or not owner.outside
    assert own or not process.container
    assert own or owner.kind is not OwnerKind.CONTAINER
    assert own or not (owner.kind is OwnerKind.UNIT and owner.alive is not False)
    assert own or marked or not where.survivors_only
    assert own or marked or what.claimed
    assert own or marked or owner.kind is not OwnerKind.SESSION or where.policy is Policy.DEDICATED
    if where.current_run:
        assert not in_cgroup(process, CGROUP)
        assert not (marked and process.marker_run == where.current_run)


@given(CASES, SCENES, st.text())
def test_names_and_titles_condemn_nobody(what: Case, where: Scene, title: str) -> None:
    renamed = replace(what, process=replace(what.process, command=title))
    before, after = judge(what, where), judge(renamed, where)
    assert (before.verdict, before.rule, before.why) == (after.verdict, after.rule, after.why)
