"""The one door to our own small files: configs are read, the state under ``/run`` is read and replaced.

Root's hooks write into a directory that belongs to the unit's user, who may plant links and pipes there. So
nothing is opened through a link, nothing waits on a pipe, and a file is replaced by a rename inside the
directory that was opened, never written in place (open(2), rename(2)).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress

from gpu_lifecycle.errors import BusyError, ConfigError, LifecycleError, NotPermittedError

LIMIT = 1 << 20  # bytes; a config or a state that is larger is neither

# NONBLOCK: opening a pipe that nobody writes to would hang for ever. NOCTTY: a terminal must not become ours.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class _UnfitError(Exception):
    """What lies there is not a small regular file."""


def read_config_text(path: str) -> str:
    """The text of the config file at ``path``; a link is followed: ``/etc`` is root's.

    Raises ConfigError where it is missing, no regular file, larger than 1 MiB or not UTF-8, NotPermittedError
    where this user may not read it, LifecycleError where the disk cannot deliver it.
    """
    try:
        data = _read(path, 0)
    except _UnfitError as error:
        raise ConfigError(f"cannot read the config: it {error}", hint="put a TOML file there", file=path) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"cannot read the config: byte {data[error.start]:#04x} is not UTF-8",
            hint="save the file as UTF-8",
            file=path,
            line=line,
        ) from None


def _unreadable(path: str, error: OSError) -> LifecycleError:
    name = os.path.basename(path).removesuffix(".toml")
    reason = os.strerror(error.errno or errno.EIO)
    if error.errno == errno.ENOENT:
        hint = f"gpu-lifecycle install {name} writes an example"
        return ConfigError("cannot read the config: there is no such file", hint=hint, file=path)
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotPermittedError(
            f"cannot read {path}: {reason}",
            hint=f"run this as root, or let its user read it: chmod 0644 {path}",
        )
    if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO):
        hint = "put a regular file at this path"
        return ConfigError(f"cannot read the config: {reason}", hint=hint, file=path)
    return LifecycleError(f"cannot read {path}: {reason}", hint="see the kernel's log: journalctl -k")


def must_answer(path: str, what: str, seconds: float) -> None:
    """Reads the file in a child first, whatever comes of it: a disk that hangs then holds up nothing but that.

    Raises BusyError where it does not come back within so many seconds; ``what`` is the name that the file has in it.
    """
    _looked_at(path, what, seconds)


def is_no_file(path: str, what: str, seconds: float) -> bool:
    """False where it cannot be looked at: then it may be one. Raises what ``must_answer`` raises."""
    return _looked_at(path, what, seconds)


def _looked_at(path: str, what: str, seconds: float) -> bool:
    """True: there is no file of that name. Only an answer is one: a look that does not come back has found nothing."""
    from gpu_lifecycle.system.worker import in_child

    found = in_child(lambda: {"no": _try(path)}, seconds)
    if found is None:
        hint = "is its file system mounted, and does its server answer?"
        raise BusyError(f"cannot read {what}: its disk has not answered within {seconds:g} s", hint=hint)
    return bool(found["no"])


def _try(path: str) -> bool:
    with suppress(OSError, ValueError, _UnfitError):  # the read itself will say so
        _read(path, 0)
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def read_keys(path: str) -> tuple[list[str], str]:
    """The API keys in a file, one a line, and why there is none. Nothing of the file's content is ever in the words."""
    try:
        keys = [line.strip() for line in _read(path, 0).decode("ascii").splitlines() if line.strip()]
    except _UnfitError as error:
        return [], f"it {error}"
    except OSError as error:
        return [], os.strerror(error.errno or errno.EIO)
    except UnicodeDecodeError:
        return [], "it holds no key: it is not ASCII"
    if not keys or not all(re.fullmatch(r"[!-~]{1,4096}", key) for key in keys):
        return [], "it holds no key: a line of 1 to 4096 characters without a space is one"
    return keys, ""


def read_state(path: str) -> tuple[dict[str, object] | None, str]:
    """The state at ``path``, and why there is none: ``(state, "")``; ``(None, "")`` where no file is yet.

    A link, a pipe, something too large, torn or not a JSON object gives ``(None, reason)``: a state that
    cannot be used is never a reason to fail, only to say so and to look at the machine itself.
    """
    try:
        data = _read(path, os.O_NOFOLLOW)
    except FileNotFoundError:
        return None, ""
    except _UnfitError as error:
        return None, f"it {error}"
    except OSError as error:
        link = error.errno == errno.ELOOP
        return None, "it is a link" if link else os.strerror(error.errno or errno.EIO)
    import json

    try:
        state = json.loads(data.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        return None, "it is torn: not JSON" if data else "it is empty"
    return (state, "") if isinstance(state, dict) else (None, "it is not a JSON object")


def read_roots(path: str) -> dict[str, object] | None:
    """The JSON object at ``path``, if root alone could write it there; None else, for whatever reason.

    Read where a wrong content would be believed. A user's own counts for that user.
    """
    try:
        owner = os.stat(path, follow_symlinks=False).st_uid
    except OSError:
        return None
    return read_state(path)[0] if owner in (0, os.geteuid()) else None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    """``1e999`` is a number to JSON and infinity to us, which nothing of ours could write again."""
    number = float(text)
    if abs(number) == float("inf"):
        raise ValueError(f"{text} is too large")
    return number


def _read(path: str, flags: int) -> bytes:
    fd = os.open(path, _READ | flags)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise _UnfitError("is a directory" if stat.S_ISDIR(mode) else "is not a regular file")
        data = b""
        while len(data) <= LIMIT and (piece := os.read(fd, LIMIT + 1 - len(data))):
            data += piece
    finally:
        os.close(fd)
    if len(data) > LIMIT:
        raise _UnfitError("is larger than 1 MiB")
    return data


def write_state(path: str, value: dict[str, object], like: str = "") -> None:
    """Replace the file at ``path`` by ``value`` as JSON in one step: a reader sees the old or the new one.

    It is world-readable (0644), or has the owner and the mode of ``like``, another file; missing directories are made
    (0755). The directory is opened through no link and all else happens inside it, so a link planted at either name cannot
    steer the write elsewhere. Nothing is synced: ``/run`` does not outlive the machine's power. Raises NotPermittedError,
    or LifecycleError with the place; no temporary file stays.
    """
    import json

    try:
        data = json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise LifecycleError(f"cannot write {path}: its content is no JSON: {error}") from error
    directory, name = os.path.split(path)
    try:
        fd = _open_directory(directory or ".", os.O_NOFOLLOW)
        try:
            _replace(fd, name, data, os.stat(like) if like else None)
        finally:
            os.close(fd)
    except OSError as error:
        raise _unwritable(path, error) from None


def write_page(path: str, data: bytes) -> None:
    """Replace the file at ``path`` in one step, world-readable. Its folder has to be there, and is opened through no link.

    The name of the file that is renamed ends otherwise, so that a collector of ``*.prom`` never reads half of it. Raises
    NotPermittedError, or LifecycleError with the place.
    """
    directory, name = os.path.split(path)
    try:
        fd = os.open(directory, _DIRECTORY | os.O_NOFOLLOW)
        try:
            _replace(fd, name, data)
        finally:
            os.close(fd)
    except OSError as error:
        raise _unwritable(path, error) from None


def _open_directory(path: str, flags: int) -> int:
    """Open ``path``, after making it and what is missing above it.

    Only ``path`` itself must be no link: what is above it belongs to root (``/var/run`` is a link).
    """
    try:
        return os.open(path, _DIRECTORY | flags)
    except FileNotFoundError:
        parent, name = os.path.split(path.rstrip("/"))
        if not name:
            raise
    above = _open_directory(parent or ".", 0)
    try:
        return _make_directory(name, above)
    finally:
        os.close(above)


def _make_directory(name: str, above: int) -> int:
    made = False
    with suppress(FileExistsError):  # another hook was faster
        os.mkdir(name, 0o755, dir_fd=above)
        made = True
    fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    if made:  # the umask of a hardened unit (UMask=0077) would shut out everyone who asks for the status
        os.fchmod(fd, 0o755)
    return fd


def _replace(directory: int, name: str, data: bytes, like: os.stat_result | None = None) -> None:
    temporary = f".{name}.{os.getpid()}.{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o644, dir_fd=directory)
    try:
        try:
            os.fchmod(fd, 0o600 if like else 0o644)  # whatever the umask
            if like:
                os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


_WRITE_HINTS = {
    errno.ENOSPC: "free some space there: df -h {0}; df -i {0}",
    errno.EDQUOT: "raise the quota of this user, or free some space: df -h {0}",
    errno.EROFS: "it is mounted read-only, or the unit's ProtectSystem= or ReadWritePaths= makes it so",
    errno.ELOOP: "its directory is a link; remove it: ls -ld {0}",
    errno.ENOTDIR: "its directory is a link or a file; remove it: ls -ld {0}",
    errno.EISDIR: "a directory has taken its name; remove it: ls -ld {0}/*",
}


def _unwritable(path: str, error: OSError) -> LifecycleError:
    reason = os.strerror(error.errno or errno.EIO)
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotPermittedError(f"cannot write {path}: {reason}", hint="run this as root or as the unit's user")
    hint = _WRITE_HINTS.get(error.errno or 0, "look at its directory: ls -ld {0}").format(os.path.dirname(path))
    return LifecycleError(f"cannot write {path}: {reason}", hint=hint)


def write_evidence(folder: str, name: str, files: dict[str, bytes], kept: int) -> None:
    """Writes ``files`` into a new folder ``name`` in ``folder``, and removes the oldest beyond ``kept``. Raises OSError.

    Only where ``folder`` is this user's own: root, who may run a unit by hand, is not to write where another may plant links.
    """
    fd = _open_directory(folder, os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", folder)
        os.mkdir(name, 0o750, dir_fd=fd)
        inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        try:
            for file, data in files.items():
                _replace(inner, file, data)
        finally:
            os.close(inner)
        for old in sorted(os.listdir(fd))[:-kept]:
            _remove_folder(fd, old)
    finally:
        os.close(fd)


def _remove_folder(above: int, name: str) -> None:
    """One folder with its plain files. What is of another shape there is left."""
    with suppress(OSError):
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        try:
            for file in os.listdir(fd):
                os.unlink(file, dir_fd=fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=above)
