"""What upgrades packages, and restarts services, without being asked: apt.conf(5), unattended-upgrades, needrestart. Pure.

Their patterns are regular expressions of Perl and Python. None is run here, for a file may hold one that takes for ever: only
those that begin with plain letters are understood, the others count as not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)|[{};]|[^\s{};"#]+', re.DOTALL)
_RULE = re.compile(r"^\s*\$nrconf\{(\w+)\}\s*(.*)$")
_QR = re.compile(r"qr\s*[(/{]([^\n)/}]{1,200})[)/}]")
DRIVER = (
    "libnvidia-", "libcuda1", "nvidia-driver", "nvidia-kernel", "nvidia-dkms", "nvidia-open", "nvidia-fabricmanager",
    "nvidia-compute-utils", "nvidia-headless", "cuda-drivers", "linux-modules-nvidia", "xserver-xorg-video-nvidia",
)  # fmt: skip
NOT_DRIVER = ("libnvidia-container", "libnvidia-ml-dev")


def apt_settings(text: str) -> Iterator[tuple[str, str]]:
    """``(key, value)`` of an apt.conf(5), in order; keys in small letters, "A::B::C". Never raises.

    An entry of a list (``Package-Blacklist { "nvidia"; };``) has the list's key.
    """
    scopes: list[str] = []
    words: list[str] = []
    for token in _TOKEN.findall(text):
        if token[:1] == "#" or token[:2] in ("//", "/*"):
            continue
        if token == "{":  # noqa: S105 - a word of a config
            scopes.append("::".join(words))
            words = []
        elif token in ("}", ";"):
            if words:
                yield _entry(scopes, words)
            words = []
            if token == "}" and scopes:  # noqa: S105 - a word of a config
                scopes.pop()
        else:
            words.append(token)


def _entry(scopes: Sequence[str], words: Sequence[str]) -> tuple[str, str]:
    *names, value = words
    key = "::".join([*(scope for scope in scopes if scope), *names])
    if not value.startswith('"'):  # a name without a value
        return f"{key}::{value}".strip(":").lower(), ""
    return key.rstrip(":").lower(), value.strip('"')


def upgrades_itself(texts: Iterable[str]) -> tuple[bool, tuple[str, ...]]:
    """Whether unattended-upgrades is switched on by these files of apt's, and which packages it is told to leave alone."""
    on, left = False, []
    for text in texts:
        for key, value in apt_settings(text):
            if key == "apt::periodic::unattended-upgrade":
                on = value.lower() not in ("", "0", "false", "no")
            elif key == "unattended-upgrade::package-blacklist":
                left.append(value)
    return on, tuple(left)


def upgraded(packages: Iterable[str], left: Sequence[str]) -> tuple[str, ...]:
    """Those of the packages that belong to NVIDIA's driver and are not left alone."""
    mine = sorted(name for name in packages if name.startswith(DRIVER) and not name.startswith(NOT_DRIVER))
    return tuple(name for name in mine if not any(_begins(pattern, name) for pattern in left))


def _begins(pattern: str, name: str) -> bool:
    """Whether a pattern that is plain text, apart from its ends, fits the beginning of a name (Python's ``re.match``)."""
    plain = plain_text(pattern)
    return plain is not None and (name == plain if pattern.endswith("$") else name.startswith(plain))


def plain_text(pattern: str) -> str | None:
    """What a pattern says where it is plain text; None: it is more than that."""
    text = re.sub(r"(\.\*|\.\+|\.\*\$)?\$?$", "", pattern.removeprefix("^"))
    text = re.sub(r"\\([.+@_-])", r"\1", text)
    return text if text and re.fullmatch(r"[A-Za-z0-9@_.+:-]+", text) else None


def restarts(texts: Iterable[str], service: str) -> str:
    """Why needrestart would restart a service, by its config files in order; "" where it leaves it alone.

    Without ``$nrconf{restart}`` a person is asked, or nobody is (Ubuntu 24.04).
    """
    mode = ""
    for text in texts:
        for line in text.splitlines():
            found = _RULE.match(line)
            if re.match(r"^\s*qr\b.*=>\s*0\s*,?\s*$", line) and _leaves_alone("listed", line, service):
                return ""
            if found is None:
                continue
            name, rest = found.groups()
            if name == "restart":
                said = re.match(r"=\s*['\"](\w)['\"]", rest)
                mode = said[1] if said else mode
            elif name in ("override_rc", "blacklist_rc") and _leaves_alone(name, rest, service):
                return ""
    return {"a": "restart = 'a'", "l": "", "i": "restart = 'i': after asking"}.get(mode, "by default")


def _leaves_alone(name: str, rest: str, service: str) -> bool:
    if name == "override_rc" and not re.search(r"=\s*0\s*;", rest):
        return False
    return any(_fits(pattern, service) for pattern in _QR.findall(rest))


def _fits(pattern: str, service: str) -> bool:
    plain = plain_text(pattern)
    if plain is None:
        return False
    if not pattern.startswith("^"):
        return plain in service
    return service == plain if pattern.endswith("$") else service.startswith(plain)
