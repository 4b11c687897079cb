"""The engine's API key: where it comes from, and that nobody sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.secrets import Secrets, given
from gpu_lifecycle.system.files import must_answer, read_keys
from gpu_lifecycle.system.patience import Patience

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Server

SECONDS = 5.0  # for the disk of the key to answer
PATIENCE = 0.5  # ... while a run is watched; the loop stands still for twice that, once
SILENT = "its disk does not answer"
NO_CREDENTIAL = "it names a credential of systemd's, and none is loaded"


class EngineKey:
    """Reads the key anew each time, since keys are renewed. ``secrets``: those that it has seen, and others of the engine.

    Where the file's disk hangs, the loop does not: the last key that was read goes on to be the one.
    """

    def __init__(self, server: Server, own: Mapping[str, str]) -> None:
        """``own``: the daemon's environment, which the engine gets, too."""
        self.file = server.key_file(own)
        self.given = server.given_key(own)
        self.secrets = Secrets(given(server.command, {**own, **server.environment}))
        self._patience = Patience(PATIENCE)
        self._last: list[str] = []
        self._hangs = self._said = False
        self.now()

    def now(self) -> tuple[str, str]:
        """The key, and why there is none where there should be one."""
        if self.file is None:
            return self.given, ""
        keys, why = self._read(self.file) if self.file else ([], NO_CREDENTIAL)
        for key in keys:
            self.secrets.add(key)
        return (keys[0] if keys else ""), why

    def _read(self, file: str) -> tuple[list[str], str]:
        try:
            keys, why = self._patience.one(0, lambda _: read_keys(file))
        except TimeoutError:
            self._hangs = True
            return self._last, "" if self._last else SILENT
        self._last, self._hangs = keys, False
        return keys, why

    def news(self) -> Event | None:
        """That the key's disk hangs: once, until it has answered again."""
        said, self._said = self._said, self._hangs
        if not self._hangs or said:
            return None
        last = "the last one that was read goes on to be used" if self._last else "none was read before, and none is used"
        return Event("key-silent", f"the disk of the engine's API key does not answer: {last}")


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
