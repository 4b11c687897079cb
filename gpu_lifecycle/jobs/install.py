"""``gpu-lifecycle install`` and ``uninstall``: bring a unit and what it needs onto a machine; take it away.

Both may be repeated, and may be killed at any moment. Nothing that a person wrote or edited is overwritten or
removed. Below another root than ``/`` only files are written: an image makes its user and folders at boot.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_lifecycle.errors import BusyError, LifecycleError, NotPermittedError, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.rules.names import template_instance
from gpu_lifecycle.rules.quantity import show_count
from gpu_lifecycle.system import bus, setup
from gpu_lifecycle.system.packaged import Kind, data_file, find_data, is_page, package_dir, pages
from gpu_lifecycle.system.placed import Outcome, Placed

_UNITS = "/etc/systemd/system"
_WANTS = f"{_UNITS}/multi-user.target.wants"
_TEMPLATE = "gpu-lifecycle@.service"
_COMMAND = "@GPU_LIFECYCLE@"

# What all units share: the packaged file and its place.
_SYSUSERS = ("gpu-lifecycle.sysusers.conf", "/usr/local/lib/sysusers.d/gpu-lifecycle.conf")
_TMPFILES = ("gpu-lifecycle.tmpfiles.conf", "/usr/local/lib/tmpfiles.d/gpu-lifecycle.conf")
_CATALOG = ("gpu-lifecycle.catalog", "/usr/local/lib/systemd/catalog/gpu-lifecycle.catalog")

_DOWN = ("inactive", "failed")  # ActiveState= of a unit that nothing of runs

# A unit's user may not enter the first two; its PrivateTmp= hides the others.
_UNREACHABLE = ("/home/", "/root/", "/tmp/", "/var/tmp/")  # noqa: S108 - names only


@dataclass
class _Work:
    """One installation under way, and what there is to say about it."""

    unit: UnitName
    layout: Layout
    placed: Placed
    lines: list[str] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)

    @property
    def on_machine(self) -> bool:
        """True on this machine's own root, where programs may be run."""
        return os.path.realpath(self.layout.root) == "/"

    @property
    def booted(self) -> bool:
        """True where systemd runs this machine (sd_booted(3))."""
        return self.on_machine and os.path.isdir("/run/systemd/system")

    @property
    def unit_place(self) -> str:
        file = _TEMPLATE if template_instance(self.unit) else self.unit.service
        return f"{_UNITS}/{file}"

    @property
    def shm_place(self) -> str:
        return f"{_UNITS}/{self.unit.service}.d/gpu-lifecycle-shm.conf"

    @property
    def link(self) -> str:
        return self.layout.under(_WANTS, self.unit.service)

    def say(self, line: str) -> None:
        self.lines.append(line)


def install(unit: UnitName, layout: Layout, *, enable: bool) -> list[str]:
    """Install ``unit``; what was done, a line each, and what a person should know.

    Raises NotPermittedError where this is not root on ``/``, LifecycleError for what the machine refuses.
    """
    work = _begin(unit, layout)
    _place_unit(work)
    _place_config(work)
    _place_shm(work)
    for name, place in (_SYSUSERS, _TMPFILES, _CATALOG):
        _place_shared(work, "units", name, place)
    _place_pages(work)
    if work.on_machine:
        _take_into_use(work)
    if enable:
        _enable(work)
    if work.on_machine:
        _reload(work)
    if not work.lines:
        work.say("nothing to do")
    if work.on_machine:
        _warn(work)
    return work.lines


def uninstall(unit: UnitName, layout: Layout) -> list[str]:
    """Take back what ``install`` did for ``unit``, with its state and history; what was done, a line each.

    Raises BusyError while the unit runs, and what ``install`` raises.
    """
    work = _begin(unit, layout)
    if unit.name not in work.placed.units and not work.placed.left_over:
        return [f"nothing to do: {unit.name} is not among what was installed"]
    _refuse_running(work)
    if work.placed.ours(work.unit_place):
        _disable(work)
    _forget_runs(work)
    _take_back(work)
    _leave_drop_ins(work)
    _reload(work)
    if not work.placed.units:
        _leave(work)
    return work.lines


def _begin(unit: UnitName, layout: Layout) -> _Work:
    if os.path.realpath(layout.root) == "/" and os.geteuid() != 0:
        raise NotPermittedError("cannot change this machine: only root may", hint="run it through sudo")
    if not os.path.isdir(layout.root):
        raise UsageError(f"cannot change {layout.root}: there is no such folder", hint="name an image's root")
    return _Work(unit, layout, Placed(layout))


def _place_unit(work: _Work) -> None:
    place = work.unit_place
    outcome = work.placed.put(work.unit.name, place, unit_text(work.unit))
    _put(work, outcome, place)
    if outcome is Outcome.EDITED:
        work.say(
            f"kept {place}: it was edited, or is not ours (move it away and install again; what you changed"
            f" belongs into a drop-in: systemctl edit {work.unit.service})"
        )


def unit_text(unit: UnitName) -> str:
    """The unit file for ``unit``, with the command words of the running interpreter."""
    own = find_data("units", unit.service)
    with open(own or data_file("units", _TEMPLATE), encoding="utf-8") as file:
        text = file.read()
    words = f"{_word(os.path.abspath(sys.executable))} -IB -m gpu_lifecycle"
    text = text.replace(_COMMAND, words)
    return text if own or template_instance(unit) else text.replace("%i", unit.name.replace("%", "%%"))


def _word(path: str) -> str:
    """One word of a command line in a unit (systemd.service(5), "Command lines")."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if text.split() != [text] or "'" in text else text


def _place_config(work: _Work) -> None:
    example = find_data("config", f"{work.unit.name}.toml") or data_file("config", "custom.toml")
    place = "/etc/gpu-lifecycle/" + os.path.basename(work.layout.config(work.unit))
    with open(example, encoding="utf-8") as file:
        outcome = work.placed.put(work.unit.name, place, file.read(), renew=False)
    _put(work, outcome, place)


def _place_shm(work: _Work) -> None:
    """A drop-in where the config gives the unit's ``/dev/shm`` another size than the unit file."""
    from gpu_lifecycle.jobs.settings import load_config
    from gpu_lifecycle.rules.shared_memory import DEFAULT, drop_in

    size = DEFAULT
    with _skipping(work):
        size = str(load_config(work.layout, work.unit).server.shm_size)
    if size != DEFAULT:
        outcome = work.placed.put(work.unit.name, work.shm_place, drop_in(size))
        _put(work, outcome, work.shm_place)
        if outcome is Outcome.EDITED:
            work.say(f"kept {work.shm_place}: it was edited (move it away and install again)")
    elif work.placed.ours(work.shm_place):
        _took(work, work.placed.drop_place(work.unit.name, work.shm_place), work.shm_place)


def _place_pages(work: _Work) -> None:
    """Man pages and completion, told in one line: they are many, and nobody waits for them."""
    before = len(work.touched)
    for kind, name, place in pages():
        _place_shared(work, kind, name, place, quiet=True)
    if count := len(work.touched) - before:
        work.say(f"wrote {show_count(count, 'file')} for man and for completion by shells")


def _place_shared(work: _Work, kind: Kind, name: str, place: str, *, quiet: bool = False) -> None:
    source = find_data(kind, name)
    if source is None:
        return
    with open(source, encoding="utf-8") as file:
        outcome = work.placed.put(work.unit.name, place, file.read())
    _put(work, outcome, place, quiet=quiet)
    if outcome is Outcome.EDITED:
        work.say(f"kept {place}: it was edited, or is not ours (move it away and install again)")


def _put(work: _Work, outcome: Outcome, place: str, *, quiet: bool = False) -> None:
    if outcome not in (Outcome.WROTE, Outcome.RENEWED):
        return
    work.touched.add(place)
    if not quiet:
        work.say(f"{outcome} {work.layout.under(place)}")


def _take_into_use(work: _Work) -> None:
    if not setup.user_exists() or _SYSUSERS[1] in work.touched:
        there = setup.user_exists()
        with _skipping(work):
            setup.make_user(_SYSUSERS[1])
        if not there and setup.user_exists():
            work.placed.user_created = True
            work.placed.save()
            work.say(f"made the user {setup.USER}")
    if _TMPFILES[1] in work.touched or not os.path.isdir(work.layout.run_dir):
        with _skipping(work):
            setup.make_folders(_TMPFILES[1])
            work.say(f"made {work.layout.run_dir}")
    if _CATALOG[1] in work.touched:
        with _skipping(work):
            setup.update_catalog()
            work.say("updated the message catalog (journalctl -x)")


def _reload(work: _Work) -> None:
    """Have systemd read the unit where its file or its link changed, now or in an installation that was cut short.

    A link that is new counts: systemd 255 asks for a reload then, and what enables a unit holds only from there on.
    Only then: on a container host a daemon-reload can take the GPUs away from running containers.
    """
    changed = not work.touched.isdisjoint((work.unit_place, work.shm_place, work.link))
    if not work.booted:
        if changed and work.on_machine:
            work.say("skipped daemon-reload: systemd does not run here; it reads the unit when it starts")
        return
    service = work.unit.service
    with _skipping(work):
        if not changed and not bus.needs_reload(service):
            return
        bus.daemon_reload()
        work.say("reloaded systemd's units")
        if bus.unit_state(service).active not in _DOWN:
            work.say(f"{service} is running: restart it to apply the change: systemctl restart {service}")


def _enable(work: _Work) -> None:
    service = work.unit.service
    if work.booted:
        with _skipping(work):
            if bus.is_enabled(service) != "enabled":
                bus.enable(service)
                work.touched.add(work.link)
                work.say(f"enabled {service}: it starts at boot")
            return
    if os.path.lexists(work.link):
        return
    work.placed.make_folder(_WANTS)
    os.symlink(work.unit_place, work.link)
    work.say(f"linked {work.link}: {service} starts at boot")


def _disable(work: _Work) -> None:
    service = work.unit.service
    if work.booted:
        with _skipping(work):
            if bus.is_enabled(service) == "enabled":
                bus.disable(service)
                work.say(f"disabled {service}")
            return
    with contextlib.suppress(OSError):  # no such link
        if os.readlink(work.link) == work.unit_place:
            os.unlink(work.link)
            work.say(f"removed {work.link}")


def _refuse_running(work: _Work) -> None:
    if not work.booted:
        return
    service = work.unit.service
    active = _DOWN[0]
    with _skipping(work):
        active = bus.unit_state(service).active
        bus.reset_failed(service)
    if active not in _DOWN:
        raise BusyError(f"cannot uninstall {service}: it is {active}", hint=f"systemctl stop {service}")


def _take_back(work: _Work) -> None:
    count = 0
    for outcome, place in work.placed.drop(work.unit.name):
        page = outcome is Outcome.REMOVED and is_page(place)
        count += page
        _took(work, outcome, place, quiet=page)
    if count:
        work.say(f"removed {show_count(count, 'file')} for man and for completion by shells")


def _took(work: _Work, outcome: Outcome, place: str, *, quiet: bool = False) -> None:
    path = work.layout.under(place)
    if outcome is Outcome.REMOVED:
        work.touched.add(place)
        if not quiet:
            work.say(f"removed {path}")
    elif outcome is Outcome.EDITED:
        work.say(f"kept {path}: it was edited")


def _forget_runs(work: _Work) -> None:
    unit, layout = work.unit, work.layout
    for folder in (layout.unit_run_dir(unit), layout.var_dir(unit)):
        if os.path.lexists(folder):
            _remove_tree(folder)
            work.say(f"removed {folder}")
    for kept in (layout.kept_config(unit), layout.runs(unit)):
        with contextlib.suppress(OSError):  # not there; or, the folder, not empty
            os.unlink(kept)
            os.rmdir(os.path.dirname(kept))
    cache = layout.under("var/cache/gpu-lifecycle", unit.name)
    with contextlib.suppress(FileNotFoundError):
        if os.listdir(cache):
            work.say(f"kept {cache}: what engines stored there may be slow to get again (rm -r {cache})")
        else:
            os.rmdir(cache)


def _leave_drop_ins(work: _Work) -> None:
    place = os.path.dirname(work.shm_place)
    folder = work.layout.under(place)
    if place in work.placed.folders:
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(folder)
    if os.path.isdir(folder):
        work.say(f"kept {folder}: its drop-ins are a person's")


def _remove_tree(folder: str) -> None:
    """Remove a folder that belongs to the unit's user, who may have put a link there."""
    if os.path.islink(folder) or not os.path.isdir(folder):
        os.unlink(folder)
    else:
        shutil.rmtree(folder)


def _leave(work: _Work) -> None:
    """After the last unit: the user, the locks and every folder of ours that is empty."""
    layout, placed = work.layout, work.placed
    if work.on_machine:
        if _CATALOG[1] in work.touched:
            with _skipping(work):
                setup.update_catalog()
        if placed.user_created and setup.user_exists():
            with _skipping(work):
                setup.remove_user()
                work.say(f"removed the user {setup.USER}")
    for lock in glob.glob(layout.under("run/gpu-lifecycle", "gpu-*.lock")):
        os.unlink(lock)
    placed.close()
    for folder in ("run", "var/lib", "var/cache") if work.on_machine else ():
        with contextlib.suppress(OSError):  # not there, or not empty
            os.rmdir(layout.under(folder, "gpu-lifecycle"))


def _warn(work: _Work) -> None:
    python = os.path.abspath(sys.executable)
    for path in (python, os.path.realpath(python), package_dir()):
        if path.startswith(_UNREACHABLE):
            work.say(
                f"warning: {path} is where the unit's user cannot go, or is emptied"
                " (python3 -m venv /opt/gpu-lifecycle; pip install gpu-lifecycle there; install from there)"
            )
            return
    if not setup.importable(python):
        work.say(f"warning: {python} -I does not find gpu_lifecycle (pip install gpu-lifecycle with it)")


@contextlib.contextmanager
def _skipping(work: _Work) -> Iterator[None]:
    """A step that the rest can do without: its failure is said, with its cure, and the next step follows."""
    try:
        yield
    except LifecycleError as error:
        work.say(f"skipped: {error}")
