"""What is to happen to one process: ordered, named rules over evidence. The first rule that answers, decides.

Names and command lines never condemn. When it is unclear whether a process may be signalled, it may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_lifecycle.facts import Judged, Owner, OwnerKind, Process, UnitName, Verdict


class Policy(StrEnum):
    """How far a sweep may go (``[sweep] policy``)."""

    OWNED = "owned"
    DEDICATED = "dedicated"
    REPORT = "report"


# Programs that hold the nodes and must live. A unit is trusted by its name, for only root can make system units; a program
# by the whole path of its executable in a folder that only root can write. The 15-character name is never asked: anyone can
# take one.
BYSTANDER_UNITS = frozenset(
    f"{name}.service"
    for name in (
        "nvidia-persistenced", "nvidia-dcgm", "dcgm", "dcgm-exporter", "nvidia-dcgm-exporter", "nvidia-fabricmanager",
        "nvidia-imex", "nvsm", "nvidia-mps", "nvidia-cuda-mps", "display-manager", "gdm", "gdm3", "sddm", "lightdm",
        "netdata", "telegraf", "nvidia-device-plugin", "prometheus-nvidia-exporter", "gpud",
    )
)  # fmt: skip
BYSTANDER_PROGRAMS = frozenset(
    (
        "nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "nv-fabricmanager", "nvidia-imex", "nvsm_core",
        "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "Xorg", "X", "Xwayland", "gnome-shell", "kwin_wayland",
        "weston", "nvtop", "nvidia-smi", "nvidia-settings", "nvidia-modprobe", "netdata", "telegraf",
        "nvidia-device-plugin", "gpu-feature-discovery",
    )
)  # fmt: skip
SYSTEM_FOLDERS = (
    "/usr/bin/",
    "/usr/sbin/",
    "/usr/lib/",
    "/usr/libexec/",
    "/bin/",
    "/sbin/",
    "/usr/local/bin/",
    "/usr/local/sbin/",
)


# A run outside systemd names its daemon, so that a sweep can look whether it lives: foreground.PID.STARTTICKS.
FOREGROUND = "foreground."


@dataclass(frozen=True, slots=True)
class Scene:
    """What is the same for all processes of one sweep."""

    unit: UnitName
    policy: Policy = Policy.OWNED
    protect: tuple[str, ...] = ()
    cgroup: str = ""  # of the unit
    current_run: str = ""  # the run that is alive, "" in the hooks: no earlier run is
    run_unknown: bool = False  # whether a run is alive could not be found out: then none is taken for dead
    past_runs: frozenset[str] = frozenset()  # ids that systemd gave to runs of this unit since the machine booted
    live_runs: frozenset[str] = frozenset()  # runs in the foreground, outside systemd, whose daemon is alive
    ours: frozenset[int] = frozenset()  # this program, its ancestors, its helpers
    survivors_only: bool = False  # post-stop: only what this unit left
    full: frozenset[str] = frozenset()  # claimed GPUs that hold more than counts as free
    sight_full: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """One process with all the evidence about it."""

    process: Process
    owner: Owner
    gpus: tuple[str, ...] = ()  # UUIDs whose nodes it holds
    claimed: tuple[str, ...] = ()  # the claimed ones among them, or with memory of it
    uvm: bool = False
    memory: Mapping[str, int | None] = field(default_factory=dict)
    parent_is_init: bool = False
    marker_alive: bool | None = False  # whether another unit that its run marker names is alive

    @property
    def uses_memory(self) -> bool:
        """True where NVML counts memory of a claimed GPU for it, or where it cannot be excluded.

        CUDA opens the nodes of all GPUs that it can see, and uvm, which monitors do not: so uvm counts only for a process
        that NVML knows nothing about.
        """
        if any(self.memory.get(uuid, 0) != 0 for uuid in self.claimed):
            return True
        return self.uvm and not self.memory


@dataclass(frozen=True, slots=True)
class Ruling:
    verdict: Verdict
    why: str


Rule = Callable[[Case, Scene], Ruling | None]


def _spare(why: str) -> Ruling:
    return Ruling(Verdict.SPARE, why)


def _reap(why: str) -> Ruling:
    return Ruling(Verdict.REAP, why)


def _tenant(case: Case, scene: Scene, why: str) -> Ruling:
    """A tenant stands in the way only where it takes memory on a claimed GPU that is not free."""
    blocked = [uuid for uuid in case.claimed if uuid in scene.full and case.memory.get(uuid, 0) != 0]
    if blocked:
        return Ruling(Verdict.CONFLICT, f"{why}; it holds memory that this unit needs")
    return _spare(f"{why}; it is not in the way")


def in_cgroup(process: Process, cgroup: str) -> bool:
    return bool(cgroup) and (process.cgroup == cgroup or process.cgroup.startswith(cgroup + "/"))


def marks(process: Process, scene: Scene) -> bool:
    """Whether its first environment names this unit, or else no unit and a run id that systemd gave to one of its runs."""
    return process.marker_unit == scene.unit.service or (not process.marker_unit and process.marker_run in scene.past_runs)


def init(case: Case, _: Scene) -> Ruling | None:
    """Process 1: spared, always."""
    return _spare("process 1 is never touched") if case.process.pid == 1 else None


def ourselves(case: Case, scene: Scene) -> Ruling | None:
    """This program, its helpers, and whatever started it (shell, ssh, sudo): spared."""
    if case.process.pid in scene.ours:
        return _spare("it is this program, one of its helpers, or what started it")
    return None


def current_run(case: Case, scene: Scene) -> Ruling | None:
    """Belongs to a run of this unit that is alive, or that may be, for systemd does not say: spared, or a tenant."""
    process = case.process
    marked = marks(process, scene)
    if marked and process.marker_run in scene.live_runs:
        return _tenant(case, scene, f"it belongs to a run of {scene.unit.service} in the foreground, which is alive")
    if marked and scene.run_unknown and not process.marker_run.startswith(FOREGROUND):
        return _tenant(case, scene, f"it belongs to a run of {scene.unit.service}, and whether that is alive is not known")
    if scene.current_run and (in_cgroup(process, scene.cgroup) or (marked and process.marker_run == scene.current_run)):
        return _spare(f"it belongs to the run of {scene.unit.service} that is alive now")
    return None


def leftover_cgroup(case: Case, scene: Scene) -> Ruling | None:
    """In this unit's cgroup although no run of it is alive: reaped."""
    if in_cgroup(case.process, scene.cgroup) and case.owner.kind is OwnerKind.UNIT:
        return _reap(f"it is in the cgroup of {scene.unit.service}, and no run of it is alive")
    return None


def other_gpu(case: Case, _: Scene) -> Ruling | None:
    """Holds only GPUs that are not claimed: ignored."""
    if case.gpus and not case.claimed:
        return Ruling(Verdict.IGNORE, "it holds none of the claimed GPUs")
    return None


def bystander(case: Case, _: Scene) -> Ruling | None:
    """A known service of the system (by unit, or by an executable in a folder that only root writes): spared."""
    folder, _slash, program = case.process.executable.rpartition("/")
    if case.owner.kind is OwnerKind.UNIT and case.owner.name in BYSTANDER_UNITS:
        return _spare(f"{case.owner.name} is a service of the system that must live")
    if program in BYSTANDER_PROGRAMS and f"{folder}/".startswith(SYSTEM_FOLDERS):
        return _spare(f"{case.process.executable} is a program of the system that must live")
    return None


def protected(case: Case, scene: Scene) -> Ruling | None:
    """Named by sweep.protect (unit, user or executable): a tenant."""
    names = {case.owner.name, case.process.user, case.process.executable} - {""}
    for name in scene.protect:
        if name in names:
            return _tenant(case, scene, f'"{name}" is protected by the config')
    return None


def container(case: Case, scene: Scene) -> Ruling | None:
    """In a container (by cgroup, or by a PID namespace of its own): a tenant."""
    if case.owner.kind is OwnerKind.CONTAINER:
        return _tenant(case, scene, f"it belongs to container {case.owner.name}")
    if case.process.container:
        return _tenant(case, scene, "it lives in a PID namespace of its own, so in some container")
    return None


def outside(case: Case, scene: Scene) -> Ruling | None:
    """In a cgroup above what can be seen here, or in none that can be read: a tenant."""
    if case.owner.outside or not case.process.cgroup:
        return _tenant(case, scene, "its cgroup lies outside of what can be seen here, so its owner is unknown")
    return None


def other_unit(case: Case, scene: Scene) -> Ruling | None:
    """In another unit that is alive, or whose state cannot be found out: a tenant."""
    if case.owner.kind is not OwnerKind.UNIT or in_cgroup(case.process, scene.cgroup):
        return None
    if case.owner.alive:
        return _tenant(case, scene, f"{case.owner.name} is alive and answers for it")
    if case.owner.alive is None:
        return _tenant(case, scene, f"it is in {case.owner.name}, and whether that is alive cannot be found out")
    return None


def other_marker(case: Case, scene: Scene) -> Ruling | None:
    """Carries the run marker of another managed unit that is alive, or may be: a tenant."""
    named = case.process.marker_unit
    if not named or named == scene.unit.service or case.marker_alive is False:
        return None
    return _tenant(case, scene, f"its environment names {named}, which is alive or may be")


def leftover_marker(case: Case, scene: Scene) -> Ruling | None:
    """Its first environment names an earlier run of this unit, by our marker or by the id that systemd gave it: reaped."""
    process = case.process
    if marks(process, scene) and process.marker_run != (scene.current_run or None):
        run = process.marker_run or "an unnamed run"
        return _reap(f"its environment names run {run} of {scene.unit.service}, which has ended")
    return None


def survivors_end(_: Case, scene: Scene) -> Ruling | None:
    """After a stop only what this unit left is looked for, the rest is for the next start to judge: spared."""
    return _spare("it is not a survivor of this unit") if scene.survivors_only else None


def no_gpu(case: Case, _: Scene) -> Ruling | None:
    """Holds no claimed GPU, only nodes that belong to none, and no memory: spared."""
    if not case.claimed:
        return _spare("it holds no particular GPU and has no memory on a claimed one")
    return None


def session(case: Case, scene: Scene) -> Ruling | None:
    """In a login session's scope: a tenant; under policy dedicated reaped, if it uses GPU memory."""
    if case.owner.kind is not OwnerKind.SESSION:
        return None
    return _from_login(case, scene, f"login session {case.owner.name} of {case.process.user} owns it")


def terminal(case: Case, scene: Scene) -> Ruling | None:
    """In no unit, but with a terminal, or with a login in the audit record, so a person started it: like a session."""
    if case.owner.kind is not OwnerKind.NONE or (case.process.tty == 0 and case.process.login_uid is None):
        return None
    return _from_login(case, scene, f"it was started from a login of {case.process.user}")


def _from_login(case: Case, scene: Scene, why: str) -> Ruling:
    if scene.policy is Policy.DEDICATED and case.uses_memory:
        return _reap(f'{why}, and the policy is "dedicated"')
    return _tenant(case, scene, why)


def dead_unit(case: Case, _: Scene) -> Ruling | None:
    """In the cgroup of a unit that is not active, with no living parent but holders and process 1: an orphan, reaped."""
    if case.owner.kind is OwnerKind.UNIT and case.owner.alive is False and case.process.readable and case.parent_is_init:
        return _reap(f"it is left in the cgroup of {case.owner.name}, which is not active: nobody answers for it")
    return None


def parented(case: Case, scene: Scene) -> Ruling | None:
    """A living parent that is no holder may answer for it (a supervisor, a step of a job), or it cannot be read: a tenant."""
    if not case.process.readable or not case.parent_is_init:
        return _tenant(case, scene, "no living unit, session or container owns it, but a living parent may answer for it")
    return None


def orphan(_: Case, _scene: Scene) -> Ruling | None:
    """No unit, session, container, terminal or living parent answers for it: reaped."""
    return _reap("no unit, session, container, terminal or living parent answers for it")


# The order is the meaning. First what must never be touched, then what is surely this unit's, then who else may own it; an
# orphan is what is left.
RULES: tuple[tuple[str, Rule], ...] = (
    ("init", init),
    ("ourselves", ourselves),
    ("current-run", current_run),
    ("bystander", bystander),
    ("leftover-cgroup", leftover_cgroup),
    ("other-gpu", other_gpu),
    ("protected", protected),
    ("container", container),
    ("outside", outside),
    ("other-unit", other_unit),
    ("other-marker", other_marker),
    ("leftover-marker", leftover_marker),
    ("not-a-survivor", survivors_end),
    ("no-gpu", no_gpu),
    ("session", session),
    ("terminal", terminal),
    ("dead-unit", dead_unit),
    ("parented", parented),
    ("orphan", orphan),
)


def judge(case: Case, scene: Scene) -> Judged:
    """The verdict on one process, with the rule that gave it."""
    for name, rule in RULES:
        ruling = rule(case, scene)
        if ruling is not None:
            return _limited(case, scene, name, ruling)
    raise AssertionError("the last rule answers always")


def _limited(case: Case, scene: Scene, name: str, ruling: Ruling) -> Judged:
    """What the policy and our sight allow of a ruling. An own cgroup is known without sight of anything else."""
    if ruling.verdict is Verdict.REAP and scene.policy is Policy.REPORT:
        name, ruling = "policy-report", Ruling(Verdict.CONFLICT, f'{ruling.why}; the policy "report" reaps nothing')
    if ruling.verdict is Verdict.REAP and not scene.sight_full and name != "leftover-cgroup":
        ruling = Ruling(Verdict.CONFLICT, f"{ruling.why}; not reaped, because not all processes could be seen")
        name = "partial-sight"
    return Judged(case.process, case.owner, ruling.verdict, name, ruling.why, case.gpus, dict(case.memory))
