"""The engine's API key: where it comes from, and that nobody sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import BusyError, ConfigError
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

    Where the file's disk hangs, the loop does not: the last key that was read goes on to be the one, and that is told once.
    """

    def __init__(self, server: Server, own: Mapping[str, str], tell: Callable[[Event], None] | None = None) -> None:
        """``own``: the daemon's environment, which the engine gets, too. ``tell`` hears of a silent disk, and its end."""
        self._tell = tell or (lambda _: None)
        self._silent = False
        self.file = server.key_file(own)
        self.given = server.given_key(own)
        self.secrets = Secrets(given(server.command, {**own, **server.environment}))
        self._patience = Patience(PATIENCE)
        self._last: list[str] = []
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
            self._hangs()
            return self._last, "" if self._last else SILENT
        if self._silent:
            self._silent = False
            self._tell(Event("key-read-again", f"the engine's API key is read again{f', but not found: {why}' if why else ''}"))
        self._last = keys
        return keys, why

    def _hangs(self) -> None:
        """Once for each time that it does."""
        if not self._silent:
            self._silent = True
            how = "with the key that was read last" if self._last else "without a key: none was read before"
            self._tell(Event("key-silent", f"the file of the engine's API key: {SILENT}; the run goes on {how}"))

    def must_be_back(self) -> None:
        """Raises BusyError where a read of the key still hangs: then this program cannot be replaced.

        execve(2) first ends all other threads, and waits for them. One that hangs in the kernel and cannot be killed, such as
        in a read that a FUSE server has taken (wait_event of fs/fuse/dev.c), would hold us there, deaf, with the engine
        unwatched and nobody able to end us. So the reload is refused, and all stays as it was, the last key too. That is why
        no key is handed over: none ever leaves this program but in a request to the engine. Where the disk dies in the very
        moment after this, the next program tells that it goes on without one.
        """
        if self._patience.blocked(0):
            hint = "try again once the disk answers: is the file system mounted, and does its server answer?"
            raise BusyError(f"a read of the engine's API key hangs, for {SILENT}", hint=hint)


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
