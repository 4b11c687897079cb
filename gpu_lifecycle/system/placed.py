"""Files that an installation places on the machine, and the record of them.

The record (``/var/lib/gpu-lifecycle/installed.json``) says of each file which contents were ours, so that
nothing a person wrote or edited is ever overwritten or removed. It is saved before a file is touched:
whatever moment this is killed at, the next install or uninstall goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from gpu_lifecycle.errors import LifecycleError, NotPermittedError
from gpu_lifecycle.facts import Layout

RECORD = "/var/lib/gpu-lifecycle/installed.json"


class Outcome(StrEnum):
    """What became of one file."""

    WROTE = "wrote"
    RENEWED = "renewed"
    SAME = "same"
    EDITED = "edited"
    REMOVED = "removed"
    ABSENT = "absent"


@dataclass(slots=True)
class Entry:
    """One file that was placed: the contents that were ours, the units that need it."""

    sha256: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)


class Placed:
    """The record, and the only way to change what it describes. A place is a path as seen from the root.

    Raises NotPermittedError or LifecycleError where a file cannot be read or written.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.files: dict[str, Entry] = {}
        self.folders: list[str] = []
        self.user_created = False
        self._load()

    @property
    def units(self) -> set[str]:
        """The names of all units that something was placed for."""
        return {name for entry in self.files.values() for name in entry.units}

    @property
    def left_over(self) -> bool:
        """True where an uninstall was cut short after its last file: a record of nothing."""
        return not self.files and os.path.exists(self._path(RECORD))

    def put(self, unit: str, place: str, text: str, *, renew: bool = True) -> Outcome:
        """Place a file for ``unit``; where it was edited, or is not ours, it stays as it is.

        ``renew=False``: only where there is none yet.
        """
        current, wanted = self._digest(place), _sha256(text.encode())
        entry = self.files.get(place)
        if current is not None and current != wanted and (not renew or not self.ours(place)):
            return Outcome.EDITED if renew else Outcome.SAME
        if current == wanted:
            if entry and unit not in entry.units:
                entry.units.append(unit)
                self.save()
            return Outcome.SAME
        self._announce(unit, place, [wanted, *([current] if current else [])])
        _replace(self._path(place), text)
        return Outcome.RENEWED if current else Outcome.WROTE

    def ours(self, place: str) -> bool:
        """True where the file is there with contents that this record knows as ours."""
        entry, current = self.files.get(place), self._digest(place)
        return entry is not None and current in entry.sha256

    def drop(self, unit: str) -> list[tuple[Outcome, str]]:
        """Take back all that was placed for ``unit`` and is needed by no other; what was edited stays."""
        done = []
        for place, entry in sorted(self.files.items()):
            if unit not in entry.units:
                continue
            if entry.units == [unit]:
                done.append((self.drop_place(unit, place), place))
            else:
                entry.units.remove(unit)
                self.save()
        return done

    def drop_place(self, unit: str, place: str) -> Outcome:
        """Take back one file that was placed for ``unit`` alone; one that was edited stays."""
        outcome = self._take(place)
        entry = self.files[place]
        entry.units.remove(unit)
        if not entry.units:
            del self.files[place]
        self.save()
        return outcome

    def close(self) -> None:
        """Take away the record and every folder that was made and is empty; only after the last unit."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(RECORD))
        for folder in sorted(self.folders, key=len, reverse=True):
            with contextlib.suppress(OSError):  # not empty: it is somebody's now
                os.rmdir(self._path(folder))

    def save(self) -> None:
        """Write the record."""
        missing = self._missing(os.path.dirname(RECORD))
        self.folders = sorted({*self.folders, *missing})
        record = {
            "schema": 1,
            "user_created": self.user_created,
            "folders": self.folders,
            "files": {place: asdict(entry) for place, entry in sorted(self.files.items())},
        }
        self._make(missing)
        _replace(self._path(RECORD), json.dumps(record, indent=1) + "\n")

    def make_folder(self, folder: str) -> None:
        """Make a folder and what is missing above it; ``close`` takes away again what is empty then."""
        missing = self._missing(folder)
        if missing:
            self.folders = [*self.folders, *missing]
            self.save()
            self._make(missing)

    def _announce(self, unit: str, place: str, digests: list[str]) -> None:
        entry = self.files.setdefault(place, Entry())
        entry.sha256 = digests
        if unit not in entry.units:
            entry.units.append(unit)
        missing = self._missing(os.path.dirname(place))
        self.folders += missing
        self.save()
        self._make(missing)

    def _missing(self, folder: str) -> list[str]:
        """The folders that are not there yet, uppermost first."""
        missing: list[str] = []
        while folder != "/" and not os.path.isdir(self._path(folder)):
            missing.insert(0, folder)
            folder = os.path.dirname(folder)
        return missing

    def _make(self, folders: list[str]) -> None:
        for path in map(self._path, folders):
            with _told(path), contextlib.suppress(FileExistsError):
                os.mkdir(path)
                # Whatever the umask: the unit's user has to read below it.
                os.chmod(path, 0o755)  # noqa: S103

    def _take(self, place: str) -> Outcome:
        if self._digest(place) is None:
            return Outcome.ABSENT
        if not self.ours(place):
            return Outcome.EDITED
        with _told(place):
            os.unlink(self._path(place))
        return Outcome.REMOVED

    def _digest(self, place: str) -> str | None:
        try:
            with _told(place), open(self._path(place), "rb") as file:
                return _sha256(file.read())
        except FileNotFoundError:
            return None

    def _path(self, place: str) -> str:
        return self._layout.under(place)

    def _load(self) -> None:
        path = self._path(RECORD)
        try:
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            self.folders = list(record["folders"])
            self.user_created = bool(record["user_created"])
            self.files = {place: Entry(**entry) for place, entry in record["files"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LifecycleError(
                f"cannot read the record of what was installed, {path}: {error}",
                hint="move it away; files that are there already are then treated as a person's",
            ) from None


def _replace(path: str, text: str) -> None:
    """Write a file whole or not at all, world-readable, so that it is there after a power cut."""
    folder = os.path.dirname(path)
    with _told(path):
        fd, draft = tempfile.mkstemp(prefix=".", dir=folder)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(fd, 0o644)
                file.flush()
                os.fsync(fd)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Errors of the file system become ours; that a file is not there is left to the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise NotPermittedError(f"cannot change {path}: {error.strerror}", hint="run it as root") from None
    except OSError as error:
        raise LifecycleError(f"cannot change {path}: {error.strerror}", hint="see `df -h`, `mount`") from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
