"""Where a server answers, and how an address is written."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.text import printable


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server answers. ``host`` is where to knock, ``bind`` what it was told to listen on.

    With ``uds`` (a Unix socket's path) the port is 0 and the host only a name for the Host header.
    """

    host: str
    port: int
    uds: str = ""
    bind: str = ""
    scheme: str = "http"

    @property
    def authority(self) -> str:
        """What a Host header says; an IPv6 address is put in brackets (RFC 3986, 3.2.2)."""
        if self.uds:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def url(self, path: str = "/") -> str:
        return f"{self.scheme}://{self.authority}{path}"


_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]?#]+)(?::([0-9]+))?/?")


def endpoint_of_url(url: str) -> Endpoint:
    """Read ``http://HOST[:PORT]``, ``https://HOST[:PORT]`` or ``unix:///PATH``; ConfigError for all else.

    A path, a user or a query is refused: the paths are the engine's, and a password does not belong in a
    config file that everybody may read.
    """
    if url.startswith("unix:/") and len(path := "/" + url.removeprefix("unix:").lstrip("/")) > 1:
        return Endpoint("localhost", 0, uds=path, bind=path)
    match = _URL.fullmatch(url)
    if not match:
        raise ConfigError(
            "cannot use this address: it is not http://HOST:PORT, https://HOST:PORT or unix:///PATH",
            hint='write it like url = "http://127.0.0.1:30000", without a path, a user or a query',
            key="server.url",
        )
    scheme, host, port = match.groups()
    number = port_number(port, "server.url") if port else {"http": 80, "https": 443}[scheme]
    return replace(knock(host, number), scheme=scheme)


def knock(bind: str, port: int) -> Endpoint:
    """A wildcard is an address to listen on, not one to ask: it is asked on the loopback of its family."""
    host = bind.removeprefix("[").removesuffix("]")
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - what is asked instead
    return Endpoint(loopback.get(host, host), port, bind=host)


def port_number(text: str, key: str) -> int:
    """The TCP port that ``text`` names (1 to 65535); ConfigError naming ``key`` where it is none."""
    if re.fullmatch(r"[0-9]{1,5}", text) and 1 <= int(text) <= 65535:
        return int(text)
    raise ConfigError(
        f'cannot use "{printable(text, 40)}" as the port: it is not a number from 1 to 65535',
        hint="name a free port, or leave it out for the engine's default",
        key=key,
    )
