"""Where the metrics page may be served: the loopback, or a socket file. Other machines ask a proxy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_lifecycle.rules.quantity import WrongValueError
from gpu_lifecycle.rules.text import printable

LONGEST = 107  # bytes of a socket's path (unix(7), sun_path, with its NUL)
_CURE = 'write "127.0.0.1:9400", "[::1]:9400" or "unix:/run/gpu-lifecycle/NAME/metrics.sock"'
_LOOPBACK = re.compile(r"(?:(127(?:\.[0-9]{1,3}){3})|\[(::1)\]):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Listening:
    """A host and a port, or the path of a socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return printable(f"unix:{self.path}" if self.path else f"{host}:{self.port}", 120)


def parse_listening(value: object) -> Listening:
    """Reads ``metrics.listen``. Raises WrongValueError with reason and cure."""
    if not isinstance(value, str):
        raise WrongValueError("it is not text", _CURE)
    if value.startswith("unix:"):
        return Listening(path=_path(value.removeprefix("unix:")))
    match = _LOOPBACK.fullmatch(value)
    if match is None:
        reason = "it is no address of this machine alone with a port"
        raise WrongValueError(reason, f"{_CURE}; for other machines, put a proxy before it or use metrics.textfile")
    host, port = match[1] or match[2], int(match[3])
    if not 1 <= port <= 65535 or any(int(part) > 255 for part in host.split(".") if part.isdecimal()):
        raise WrongValueError("there is no such port or address", _CURE)
    return Listening(host, port)


def _path(path: str) -> str:
    if not path.startswith("/") or path.endswith("/"):
        raise WrongValueError("a socket is named by its absolute path", _CURE)
    if not path.isprintable() or len(path.encode()) > LONGEST:
        raise WrongValueError(f"a socket's path is printable text of at most {LONGEST} bytes", _CURE)
    return path


def parse_folder(value: object) -> str:
    """Reads ``metrics.textfile``. Raises WrongValueError."""
    cure = 'write "/var/lib/prometheus/node-exporter", the folder that node_exporter reads'
    if not isinstance(value, str) or not value.startswith("/"):
        raise WrongValueError("it is no absolute path", cure)
    if not value.isprintable() or len(value) > 4000:
        raise WrongValueError("a folder's path is printable text", cure)
    return value
