"""The exception family. Raised anywhere, caught once per boundary (a command, a hook, the daemon's loop)."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses (sysexits.h names, which ``systemctl status`` prints)."""

    OK = 0
    DEFECT = 1
    USAGE = 2
    UNAVAILABLE = 69  # EX_UNAVAILABLE: a GPU or the driver needs a person or a host action
    TEMPFAIL = 75  # EX_TEMPFAIL: not now
    NOPERM = 77  # EX_NOPERM
    CONFIG = 78  # EX_CONFIG

    @property
    def permanent(self) -> bool:
        """True where a restart cannot help (the unit's RestartPreventExitStatus= lists the same ones)."""
        return self in (Exit.UNAVAILABLE, Exit.NOPERM, Exit.CONFIG)


class LifecycleError(Exception):
    """What went wrong, in one line, with what a person can do about it.

    ``message`` begins with "cannot ..." where something was attempted; ``hint`` is the cure or the next command.
    """

    status: Exit = Exit.TEMPFAIL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(LifecycleError):
    """A config file, a unit's set-up or a model on disk is wrong; a restart cannot help."""

    status = Exit.CONFIG

    def __init__(self, message: str, *, hint: str = "", file: str = "", line: int | None = None, key: str = "") -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.line = line
        self.key = key

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        parts = [part for part in (place, self.key) if part]
        return ": ".join([*parts, super().__str__()])


class UnavailableError(LifecycleError):
    """A GPU, the driver or this machine needs a person; a restart cannot help."""

    status = Exit.UNAVAILABLE


class NotPermittedError(LifecycleError):
    """This user may not do that."""

    status = Exit.NOPERM


class UsageError(LifecycleError):
    """The command line asks for something that does not exist."""

    status = Exit.USAGE


class BusyError(LifecycleError):
    """Not now: a lock, a tenant, memory not yet released."""

    status = Exit.TEMPFAIL


class BlindError(LifecycleError):
    """Something could not be looked at, so nothing may be concluded from it (NVML hung, an unreadable /proc)."""

    status = Exit.TEMPFAIL
