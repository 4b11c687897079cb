"""The engine's API key: where it comes from, and that nobody sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.secrets import Secrets, given
from gpu_lifecycle.system.files import must_answer, read_keys

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Server

SECONDS = 5.0  # for the disk of the key to answer
NO_CREDENTIAL = "it names a credential of systemd's, and none is loaded"


class EngineKey:
    """Reads the key anew each time, since keys are renewed. ``secrets``: those that it has seen, and others of the engine."""

    def __init__(self, server: Server, own: Mapping[str, str]) -> None:
        """``own``: the daemon's environment, which the engine gets, too."""
        self.file = server.key_file(own)
        self.given = server.given_key(own)
        self.secrets = Secrets(given(server.command, {**own, **server.environment}))
        self.now()

    def now(self) -> tuple[str, str]:
        """The key, and why there is none where there should be one."""
        if self.file is None:
            return self.given, ""
        keys, why = read_keys(self.file) if self.file else ([], NO_CREDENTIAL)
        for key in keys:
            self.secrets.add(key)
        return (keys[0] if keys else ""), why


def must_have_key(server: Server, own: Mapping[str, str], file: str) -> None:
    """Raises ConfigError where there is no key in server.api_key_file: the engine would never be ready.

    And BusyError where the disk of a file with the key hangs. The name is not shown: somebody may have written the key there.
    """
    if path := server.key_file(own):
        must_answer(path, "the engine's API key", SECONDS)
    if server.api_key_file is None:
        return
    why = EngineKey(server, own).now()[1]
    if why:
        raise ConfigError(
            f"cannot read the engine's API key: {why}",
            hint="name a file that the unit's user may read, or load a credential: LoadCredential=NAME:/PATH in the unit",
            file=file,
            key="server.api_key_file",
        )
