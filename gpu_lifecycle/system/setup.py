"""systemd's programs that take placed files into use: the user, the folder in /run, the message catalog."""

from __future__ import annotations

import contextlib
import pwd
import subprocess

from gpu_lifecycle.errors import LifecycleError

LIMIT = 60.0  # seconds for one program

USER = "gpu-lifecycle"


def user_exists() -> bool:
    """True where the user that the units run as is there (getpwnam(3))."""
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(USER))
    return False


def make_user(config: str) -> None:
    """Make the user and groups that a sysusers.d(5) file asks for."""
    _run("make the user", ["systemd-sysusers", config])


def remove_user() -> None:
    """Remove the user, and its group with it (userdel(8)); its files stay."""
    _run("remove the user", ["userdel", USER])


def make_folders(config: str) -> None:
    """Make the folders that a tmpfiles.d(5) file asks for, which otherwise happens at boot."""
    _run("make the folders", ["systemd-tmpfiles", "--create", config])


def update_catalog() -> None:
    """Have `journalctl -x` show the catalog files that are there now."""
    _run("update the message catalog", ["journalctl", "--update-catalog"])


def importable(python: str) -> bool:
    """True where that interpreter finds this package in isolated mode, as a unit starts it."""
    words = [python, "-IB", "-c", "import gpu_lifecycle.cli"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(words, capture_output=True, check=False, timeout=LIMIT, cwd="/").returncode == 0
    return False


def _run(what: str, words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT)
    except FileNotFoundError:
        hint = "apt-get install systemd passwd"
        raise LifecycleError(f"cannot {what}: {words[0]} is not there", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise LifecycleError(f"cannot {what}: {words[0]} took more than {LIMIT:.0f} s") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise LifecycleError(f"cannot {what}: {reason[0]}", hint=f"run it by hand: {' '.join(words)}")
