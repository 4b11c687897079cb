"""The only door to D-Bus: what systemd and logind say about units and sessions, and what is asked of them.

Interfaces: org.freedesktop.systemd1(5), org.freedesktop.login1(5). pystemd's objects load a whole document of
introspection per unit; here single properties are read. Nothing here waits for a systemd job: a hook that
waited for a job of its own unit would wait for itself.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from gpu_lifecycle.errors import BlindError, LifecycleError, NotPermittedError

if TYPE_CHECKING:
    from pystemd.dbuslib import DBus

CALL_LIMIT = 5.0  # seconds for one call; a manager in good health answers in about a millisecond
RELOAD_LIMIT = 60.0  # seconds for a daemon-reload, which reads every unit file again

_SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
_ADDRESS = "DBUS_SYSTEM_BUS_ADDRESS"
_TIMEOUT = "SYSTEMD_BUS_TIMEOUT"

_BUS = (b"org.freedesktop.DBus", b"/org/freedesktop/DBus", b"org.freedesktop.DBus")
_SYSTEMD = b"org.freedesktop.systemd1"
_MANAGER = (_SYSTEMD, b"/org/freedesktop/systemd1", b"org.freedesktop.systemd1.Manager")
_UNITS = b"/org/freedesktop/systemd1/unit"
_UNIT = b"org.freedesktop.systemd1.Unit"
_SERVICE = b"org.freedesktop.systemd1.Service"
_PROPERTIES = b"org.freedesktop.DBus.Properties"
_LOGIND = b"org.freedesktop.login1"
_LOGIN_MANAGER = (_LOGIND, b"/org/freedesktop/login1", b"org.freedesktop.login1.Manager")
_SESSION = b"org.freedesktop.login1.Session"

# Errors by what they mean here. pystemd gives some a class and leaves others their name.
_NO_UNIT = ("DBusNoSuchUnitError", "DBusUnixProcessIdUnknownError", "org.freedesktop.systemd1.NoUnitForPID")
_NO_UNIT_FILE = ("DBusNoSuchUnitError", "DBusFileNotFoundError")
_NO_SESSION = ("org.freedesktop.login1.NoSuchSession",)
_DENIED = ("DBusAccessDeniedError", "DBusAuthFailedError", "DBusInteractiveAuthorizationRequiredError")
_NOBODY = (
    "DBusTimeoutError", "DBusTimedOutError", "DBusNoReplyError", "DBusDisconnectedError", "DBusNoServerError",
    "DBusServiceUnknownError", "DBusNameHasNoOwnerError", "DBusConnectionRefusedError",
)  # fmt: skip
_LOST = (errno.ENOTCONN, errno.ETIMEDOUT, errno.ECONNRESET, errno.EPIPE, errno.ENXIO)


@dataclass(frozen=True, slots=True)
class UnitState:
    """One unit as systemd sees it (the properties of the same names).

    ``invocation_id`` is hex, "" where it never ran; the last ones keep their defaults for what is no service.
    """

    load: str
    active: str
    sub: str
    invocation_id: str = ""
    main_pid: int = 0
    n_restarts: int = 0
    result: str = ""
    exec_main_status: int = 0
    restart: float = 0.0  # RestartSec=, in seconds
    control_group: str = ""  # as /proc/PID/cgroup shows it; "" where the unit has none now


class Bus:
    """One connection to the system bus, for use in ``with``, by one thread.

    Opening it and every method raise BlindError where no answer came within ``limit`` seconds,
    NotPermittedError where this user may not ask that, LifecycleError with the other side's own words for any
    other refusal.
    """

    def __init__(self, *, limit: float = CALL_LIMIT) -> None:
        self._limit = limit
        self._connection: DBus | None = None

    def __enter__(self) -> Self:
        self._connection = _connect(self._limit)
        return self

    def __exit__(self, *_: object) -> None:
        # Once only: a second close would free the connection a second time.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def unit_state(self, unit: str) -> UnitState:
        """What systemd knows about a unit (full name); an unknown one is ``not-found`` and ``inactive``."""
        path = _unit_path(unit)
        state = UnitState(
            load=_text(self._get(path, _UNIT, b"LoadState", b"s")),
            active=_text(self._get(path, _UNIT, b"ActiveState", b"s")),
            sub=_text(self._get(path, _UNIT, b"SubState", b"s")),
            invocation_id=bytes(self._get(path, _UNIT, b"InvocationID", b"ay")).hex(),
        )
        return self._of_service(state, path) if unit.endswith(".service") else state

    def settings(self, unit: str) -> dict[str, Any]:
        """All properties of a service (full name) by name: what systemd has loaded of it. Texts are text, never bytes."""
        path = _unit_path(unit)
        parts = (self._call(f"read {unit}", (_SYSTEMD, path, _PROPERTIES), b"GetAll", b"s", [i]) for i in (_UNIT, _SERVICE))
        return {_text(name): _plain(value) for part in parts for name, value in part.items()}

    def version(self) -> str:
        """systemd's version, as it says it: ``252.39-1~deb12u2``."""
        with _translated("read systemd's version"):
            return _text(self._opened.get_property(*_MANAGER, b"Version", b"s"))

    def removes_ipc(self) -> bool:
        """Whether logind removes a login user's shared memory (logind.conf(5), RemoveIPC=)."""
        with _translated("read RemoveIPC of logind"):
            return bool(self._opened.get_property(*_LOGIN_MANAGER, b"RemoveIPC", b"b"))

    def unit_user(self, unit: str) -> str:
        """``User=`` of a service (full name); "" where it names none: root."""
        return _text(self._get(_unit_path(unit), _SERVICE, b"User", b"s"))

    def own_shm(self, unit: str) -> str:
        """The mount options of a service's own ``/dev/shm`` (``TemporaryFileSystem=``); "" where it has none."""
        mounts = self._get(_unit_path(unit), _SERVICE, b"TemporaryFileSystem", b"a(ss)")
        return next((_text(options) for path, options in mounts if _text(path) == "/dev/shm"), "")  # noqa: S108 - a name

    def unit_of_pid(self, pid: int) -> str:
        """The unit that a process belongs to, by its cgroup; "" where systemd knows none."""
        from pystemd.dbuslib import path_decode

        if pid <= 0:  # 0 would be the caller itself
            return ""
        what = f"ask for the unit of process {pid}"
        path = self._call(what, _MANAGER, b"GetUnitByPID", b"u", [pid], absent=_NO_UNIT)
        return _text(path_decode(path, _UNITS)) if path else ""

    def enable(self, unit: str) -> None:
        """Have a unit started at boot; does not start it now."""
        self._call(f"enable {unit}", _MANAGER, b"EnableUnitFiles", b"asbb", [[unit], False, False])

    def disable(self, unit: str) -> None:
        """No longer have a unit started at boot; does not stop it now."""
        self._call(f"disable {unit}", _MANAGER, b"DisableUnitFiles", b"asb", [[unit], False])

    def is_enabled(self, unit: str) -> str:
        """``enabled``, ``disabled``, ``masked``, ... (systemctl(1), is-enabled); "" where it has no file."""
        what = f"ask whether {unit} is enabled"
        state = self._call(what, _MANAGER, b"GetUnitFileState", b"s", [unit], absent=_NO_UNIT_FILE)
        return _text(state or "")

    def start(self, unit: str) -> int:
        """Queue a start of a unit (full name) and return its job's number at once, as ``systemctl start --no-block`` does."""
        path = self._call(f"start {unit}", _MANAGER, b"StartUnit", b"ss", [unit, b"replace"])
        return int(_text(path).rpartition("/")[2])

    def job(self, unit: str) -> int:
        """The number of the job that is queued or runs for a unit (full name); 0: there is none."""
        return int(self._get(_unit_path(unit), _UNIT, b"Job", b"(uo)")[0])

    def reset_failed(self, unit: str) -> None:
        """Let systemd forget that a unit failed; one that is not loaded has nothing to forget."""
        self._call(f"reset {unit}", _MANAGER, b"ResetFailedUnit", b"s", [unit], absent=_NO_UNIT)

    def needs_reload(self, unit: str) -> bool:
        """True where a unit's files are newer than what systemd has read of them."""
        return bool(self._get(_unit_path(unit), _UNIT, b"NeedDaemonReload", b"b"))

    def daemon_reload(self) -> None:
        """Make systemd read all unit files again, and wait until it has."""
        self._call("reload systemd's units", _MANAGER, b"Reload", b"", [])

    def session_state(self, session: str) -> str | None:
        """``online``, ``active`` or ``closing`` (logged out, processes left); None: no such session.

        Raises BlindError where logind does not run.
        """
        what = f"ask for login session {session}"
        path = self._call(what, _LOGIN_MANAGER, b"GetSession", b"s", [session], absent=_NO_SESSION)
        if not path:
            return None
        with _translated(what):
            return _text(self._opened.get_property(_LOGIND, path, _SESSION, b"State", b"s"))

    @property
    def _opened(self) -> DBus:
        if self._connection is None:
            raise RuntimeError("a Bus is used outside its with block")
        return self._connection

    def _of_service(self, state: UnitState, path: bytes) -> UnitState:
        return replace(
            state,
            main_pid=self._get(path, _SERVICE, b"MainPID", b"u"),
            n_restarts=self._get(path, _SERVICE, b"NRestarts", b"u"),
            restart=self._get(path, _SERVICE, b"RestartUSec", b"t") / 1e6,
            result=_text(self._get(path, _SERVICE, b"Result", b"s")),
            exec_main_status=self._get(path, _SERVICE, b"ExecMainStatus", b"i"),
            control_group=_text(self._get(path, _SERVICE, b"ControlGroup", b"s")),
        )

    def _get(self, path: bytes, interface: bytes, name: bytes, kind: bytes) -> Any:
        with _translated(f"read {name.decode()} of a unit"):
            return self._opened.get_property(_SYSTEMD, path, interface, name, kind)

    def _call(
        self,
        what: str,
        where: tuple[bytes, bytes, bytes],
        method: bytes,
        signature: bytes,
        values: list[Any],
        *,
        absent: tuple[str, ...] = (),
    ) -> Any:
        """The body of the answer; None where the answer is one of the errors that mean "there is none"."""
        from pystemd.dbusexc import DBusBaseError
        from pystemd.dbuslib import apply_signature

        with _translated(what):
            try:
                return self._opened.call_method(*where, method, apply_signature(signature, values)).body
            except DBusBaseError as error:
                if _name(error) in absent:
                    return None
                raise


def unit_state(unit: str) -> UnitState:
    """``Bus.unit_state`` over a connection of its own."""
    with Bus() as bus:
        return bus.unit_state(unit)


def unit_user(unit: str) -> str:
    """``Bus.unit_user`` over a connection of its own."""
    with Bus() as bus:
        return bus.unit_user(unit)


def unit_of_pid(pid: int) -> str:
    """``Bus.unit_of_pid`` over a connection of its own."""
    with Bus() as bus:
        return bus.unit_of_pid(pid)


def session_state(session: str) -> str | None:
    """``Bus.session_state`` over a connection of its own."""
    with Bus() as bus:
        return bus.session_state(session)


def needs_reload(unit: str) -> bool:
    """``Bus.needs_reload`` over a connection of its own."""
    with Bus() as bus:
        return bus.needs_reload(unit)


def enable(unit: str) -> None:
    """``Bus.enable`` over a connection of its own."""
    with Bus() as bus:
        bus.enable(unit)


def disable(unit: str) -> None:
    """``Bus.disable`` over a connection of its own."""
    with Bus() as bus:
        bus.disable(unit)


def is_enabled(unit: str) -> str:
    """``Bus.is_enabled`` over a connection of its own."""
    with Bus() as bus:
        return bus.is_enabled(unit)


def reset_failed(unit: str) -> None:
    """``Bus.reset_failed`` over a connection of its own."""
    with Bus() as bus:
        bus.reset_failed(unit)


def daemon_reload() -> None:
    """``Bus.daemon_reload``, with the time that reading all units may take."""
    with Bus(limit=RELOAD_LIMIT) as bus:
        bus.daemon_reload()


def _connect(limit: float) -> DBus:
    """An open connection whose calls end after ``limit`` seconds.

    sd-bus reads the limit of a connection from the environment when it is opened (systemd's ENVIRONMENT.md),
    and pystemd has no call for it.
    """
    try:
        from pystemd.dbuslib import DBus
    except ImportError as error:
        raise BlindError(f"cannot talk to systemd: {error}", hint="pip install pystemd") from None
    _greet(limit)
    before = os.environ.get(_TIMEOUT)
    os.environ[_TIMEOUT] = f"{limit:.3f}s"
    try:
        with _translated("reach the system bus"):
            connection = DBus()
            connection.open()
            # Opening only begins; with this call the bus has let us in, and from here on the limit holds.
            connection.call_method(*_BUS, b"GetId", [])
            return connection
    finally:
        if before is None:
            del os.environ[_TIMEOUT]
        else:
            os.environ[_TIMEOUT] = before


def _greet(limit: float) -> None:
    """Raise BlindError unless the bus answers a greeting.

    sd-bus gives the authentication 90 seconds whatever its limit is, inside one call that no signal and no
    other thread of this process gets past. A socket of our own can be bounded.
    """
    address = os.environ.get(_ADDRESS, _SYSTEM_BUS)
    path = address.removeprefix("unix:path=").partition(",")[0]
    if path == address:  # some other transport: sd-bus may know it
        return
    uid = str(os.geteuid()).encode().hex().encode()
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(limit)
            door.connect(path)
            door.sendall(b"\0AUTH EXTERNAL " + uid + b"\r\n")
            answer = door.recv(64)
    except OSError as error:
        raise _blind("reach the system bus", error.strerror or str(error)) from None
    if not answer.startswith(b"OK"):
        raise _blind("reach the system bus", "it does not let this user in")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """pystemd's errors become ours; ``what`` completes "cannot ..."."""
    from pystemd.dbusexc import DBusBaseError

    try:
        yield
    except DBusBaseError as error:
        name, text = _name(error), _text(error.err_message) or os.strerror(abs(error.errno))
        if name in _DENIED:
            raise NotPermittedError(f"cannot {what}: {text}", hint="run it as root") from None
        if name in _NOBODY or abs(error.errno) in _LOST:
            raise _blind(what, text) from None
        raise LifecycleError(f"cannot {what}: {text}", hint="see `journalctl -b -p warning`") from None


def _blind(what: str, why: str) -> BlindError:
    return BlindError(f"cannot {what}: {why}", hint="see `systemctl status dbus systemd-logind`")


def _name(error: Any) -> str:
    """What kind of error it is: pystemd's class, or the D-Bus name where it has no class for it."""
    return _text(error.err_name) or type(error).__name__


def _unit_path(unit: str) -> bytes:
    from pystemd.dbuslib import path_encode

    return bytes(path_encode(_UNITS, unit.encode()))


def _plain(value: Any) -> Any:
    """A value of any form with text in place of bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
