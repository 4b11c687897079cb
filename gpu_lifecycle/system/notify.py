"""The door to the service manager: sd_notify(3), through the sdnotify package.

Only the unit's main process may notify (``NotifyAccess=main``; messages of short-lived processes are lost). Without
``NOTIFY_SOCKET`` there is nobody to tell, and every call does nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from gpu_lifecycle.rules.text import printable

STATUS_LIMIT = 300


class Notifier:
    """One connection to the service manager."""

    def __init__(self) -> None:
        self._notifier: Any = None
        self.watchdog = _seconds("WATCHDOG_USEC") if _meant_for_us() else None
        if os.environ.get("NOTIFY_SOCKET"):
            self._notifier = self._connect()

    @property
    def connected(self) -> bool:
        return self._notifier is not None

    def _connect(self) -> Any:
        from sdnotify import SystemdNotifier

        try:
            notifier = SystemdNotifier(debug=True)  # without it, every error is swallowed
        except (OSError, TypeError) as error:
            print(f"cannot reach the service manager at NOTIFY_SOCKET: {error}", file=sys.stderr)
            return None
        notifier.socket.settimeout(2.0)  # a service manager that hangs must not hang us
        return notifier

    def send(self, *lines: str) -> bool:
        """Sends assignments such as ``READY=1``. False where it could not be delivered."""
        if self._notifier is None:
            return False
        # sdnotify encodes as Latin-1 and systemd reads UTF-8: hand it the UTF-8 bytes as Latin-1 text.
        text = "\n".join(lines).encode("utf-8", "backslashreplace").decode("latin-1")
        try:
            self._notifier.notify(text)
        except OSError as error:
            print(f"cannot notify the service manager: {error}", file=sys.stderr)
            return False
        return True

    def store(self, name: str, fd: int) -> bool:
        """Gives a descriptor to the service manager, which passes it on to the main process (sd_notify(3), "FDSTORE=1").

        Without FDPOLL=0 it would be thrown away as soon as polling it shows an error, as a kernel log does that overruns.
        False where it could not be delivered.
        """
        import socket

        if self._notifier is None:
            return False
        try:
            socket.send_fds(self._notifier.socket, [f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0".encode()], [fd])
        except OSError as error:
            print(f"cannot hand {name} to the service manager: {error}", file=sys.stderr)
            return False
        return True

    def forget(self, name: str) -> bool:
        """Has the service manager close what it stores under this name."""
        return self.send(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def close(self) -> None:
        if self._notifier is not None:
            self._notifier.socket.close()
            self._notifier = None


def status_line(text: str) -> str:
    """A ``STATUS=`` assignment that no text from outside can break into two."""
    return f"STATUS={printable(text, STATUS_LIMIT)}"


def _seconds(name: str) -> float | None:
    text = os.environ.get(name, "")
    return int(text) / 1e6 if text.isdecimal() and int(text) > 0 else None


def _meant_for_us() -> bool:
    """WATCHDOG_PID of sd_watchdog_enabled(3): the watchdog is somebody else's where it names another process."""
    pid = os.environ.get("WATCHDOG_PID", "")
    return not pid or pid == str(os.getpid())
