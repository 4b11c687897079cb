"""What a managed unit may be called (systemd.unit(5), and what the name becomes in paths)."""

from __future__ import annotations

import re

from gpu_lifecycle.errors import UsageError
from gpu_lifecycle.facts import UnitName

SUFFIX = ".service"
TEMPLATE = "gpu-lifecycle@"

# UNIT_NAME_MAX of systemd, its terminating NUL and our suffix taken off.
LONGEST = 255 - len(SUFFIX)

_ALLOWED = re.compile(r"[A-Za-z0-9:_.@\\-]+")
_OTHER_TYPES = (
    ".automount", ".device", ".mount", ".path", ".scope", ".slice", ".socket", ".swap", ".target", ".timer",
)  # fmt: skip

# A unit's folders lie beside these: the locks in /run, the record of what was installed in /var/lib.
_RESERVED = re.compile(r"gpu-.*\.lock|installed\.json")


def parse_unit(text: str) -> UnitName:
    """The managed unit that a person named, with or without ``.service``.

    Raises UsageError, with the cure, for what systemd would not take as a service's name, and for what must
    not become part of a path.
    """
    name = text.removesuffix(SUFFIX)
    fault, cure = _fault(name)
    if fault:
        raise UsageError(f"cannot use {text!r} as a unit's name: {fault}", hint=cure)
    return UnitName(name)


def template_instance(unit: UnitName) -> str:
    """The NAME of ``gpu-lifecycle@NAME``, or "" for a unit with a file of its own."""
    return unit.name.removeprefix(TEMPLATE) if unit.name.startswith(TEMPLATE) else ""


def _fault(name: str) -> tuple[str, str]:
    """What is wrong with a name and what to do about it; two empty strings for a good one."""
    if not name:
        return "it is empty", "for example sglang-kimi"
    if not _ALLOWED.fullmatch(name):
        return "it holds other characters than letters, digits and : _ . @ - \\", "see `systemd-escape NAME`"
    if name[0] in ".-":
        return f"it begins with {name[0]!r}", "begin with a letter or a digit"
    if name.endswith(_OTHER_TYPES):
        return "it is not a service", "name the service, for example sglang-kimi.service"
    if name.startswith("@") or name.endswith("@"):
        return "a template alone is no unit", "name an instance, for example gpu-lifecycle@NAME"
    if len(name) > LONGEST:
        return f"it is longer than {LONGEST} characters", "choose a shorter name"
    if _RESERVED.fullmatch(name):
        return "gpu-lifecycle has a file of that name", "choose another name"
    return "", ""
