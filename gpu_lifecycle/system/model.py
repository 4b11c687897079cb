"""The door to a model, a folder or one file: config.json, the index, the headers of the shards. All is bounded, nothing raises.

Format of a shard: 8 bytes little-endian length, a JSON header of that length, the tensors; each tensor's ``data_offsets`` count
from the end of the header (safetensors, README, "Format").
"""

from __future__ import annotations

import json
import os
import re
import stat as st
from collections import Counter
from collections.abc import Callable
from typing import Any

from gpu_lifecycle.rules.model_folder import ABSENT, DENIED, EMPTY, FILE, PARTIAL, ModelFolder, Shard, from_plain, plain
from gpu_lifecycle.rules.text import printable

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
ENTRIES_LIMIT = 10_000
CONFIG_LIMIT = 8 << 20
INDEX_LIMIT = 64 << 20  # an index of 100,000 tensors takes about 10 MiB
HEADER_LIMIT = 100_000_000  # safetensors' own limit
HEADER_READ = 16 << 20  # a longer one is not read: its shard's size is then not judged
DEPTH_LIMIT = 64
NAMES_KEPT = 2000
_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,18}\s*,\s*(\d{1,18})\s*\]')
INDEX = "model.safetensors.index.json"


class NotReadError(Exception):
    """Why a file was not read, in words."""


class Reading:
    """Reads folders in a child, as ``user`` ("": as we are), while we do something else.

    A network file system that hangs blocks the child alone, which ``close`` kills, or which dies once the kernel lets it.
    Raises BusyError where no child can be made.
    """

    def __init__(self, paths: list[str], user: str) -> None:
        from gpu_lifecycle.system.worker import Worker

        self._worker = Worker()
        self._worker.start(lambda: [plain(read_as(path, user)) for path in paths])
        self._worker.must_have_begun()

    def folders(self, seconds: float) -> dict[str, ModelFolder] | None:
        """By their paths. None: they did not come back within so many seconds from now."""
        found = self._worker.answer(seconds)
        return None if found is None else {item["path"]: from_plain(item) for item in found}

    def close(self) -> None:
        self._worker.abandon()


def read_folders(paths: list[str], user: str, seconds: float) -> dict[str, ModelFolder] | None:
    """Reads these folders, and waits for them."""
    reading = Reading(paths, user)
    try:
        return reading.folders(seconds)
    finally:
        reading.close()


def read_text(path: str, seconds: float) -> str | None:
    """A small text file, read in a child like a folder. None: it cannot be read, or not in time. Raises BusyError, too."""
    from gpu_lifecycle.system.worker import Worker

    worker = Worker()
    try:
        worker.start(lambda: _text_of(path))
        worker.must_have_begun()
        text = worker.answer(seconds)
        return text if isinstance(text, str) else None
    finally:
        worker.abandon()


def _text_of(path: str) -> str | None:
    try:
        read = _Reader(os.path.dirname(path), [], [])
        text: bytes = read.look(os.path.basename(path), lambda fd, size: _all(fd, size, CONFIG_LIMIT))
        return text.decode()
    except (NotReadError, ValueError):
        return None


def read_as(path: str, user: str) -> ModelFolder:
    """``read_folder`` as ``user``, where we are root; what that user may not read is named, and read as root."""
    from dataclasses import replace

    from gpu_lifecycle.system.as_user import being

    if os.geteuid() != 0 or user in ("", "root"):
        return read_folder(path)
    with being(user) as known:
        seen = read_folder(path)
    if not known or (seen.state != DENIED and not seen.denied):
        return seen
    whole = read_folder(path)
    return replace(whole, denied=seen.denied or (".",))


def read_folder(path: str) -> ModelFolder:
    """What is in a model's folder."""
    try:
        if not st.S_ISDIR(os.stat(path).st_mode):
            return _single(path)
        names = _names(path)
    except PermissionError:
        return ModelFolder(path, DENIED)
    except (OSError, ValueError):  # a loop of links, a name with a NUL
        return ModelFolder(path, ABSENT)
    if not names or len(names) > ENTRIES_LIMIT:
        return ModelFolder(path, PARTIAL if names else EMPTY)
    denied: list[str] = []
    not_files: list[str] = []
    read = _Reader(path, denied, not_files)
    config, problem, odd = read.document("config.json", CONFIG_LIMIT) if "config.json" in names else (None, "", "")
    index, index_problem = read.index() if INDEX in names else (None, "")
    shards = {name: read.shard(name, _shard) for name in names if name.endswith(".safetensors")}
    return ModelFolder(
        path=path,
        names=tuple(names[:NAMES_KEPT]),
        config=config if isinstance(config, dict) else None,
        config_problem=problem or ("" if config is None or isinstance(config, dict) else "it is no JSON object"),
        config_odd=odd,
        index=index,
        index_problem=index_problem,
        shards={name: shard for name, shard in shards.items() if shard is not None},
        not_files=tuple(not_files),
        denied=tuple(denied),
    )


def _single(path: str) -> ModelFolder:
    """One file: with its other parts, where it is a GGUF file."""
    from gpu_lifecycle.system import gguf

    folder, name = os.path.split(path)
    if not name.endswith(".gguf"):
        return ModelFolder(path, FILE)
    denied: list[str] = []
    not_files: list[str] = []
    read, parts = _Reader(folder, denied, not_files), gguf.parts(name)
    found = {part: read.shard(part, gguf.measure) for part in parts if os.path.lexists(os.path.join(folder, part))}
    files = {part: shard for part, shard in found.items() if shard is not None}
    return ModelFolder(path, FILE, not_files=tuple(not_files), denied=tuple(denied), parts=parts, files=files)


def _names(path: str) -> list[str]:
    names: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > ENTRIES_LIMIT:
                break
    return sorted(names)


class _Reader:
    """Reads files of one folder, and keeps who could not be."""

    def __init__(self, folder: str, denied: list[str], not_files: list[str]) -> None:
        self.folder = folder
        self.denied = denied
        self.not_files = not_files

    def look(self, name: str, look: Callable[[int, int], Any]) -> Any:
        """``look`` gets a descriptor of a regular file and its size. Raises NotReadError."""
        try:
            fd = os.open(os.path.join(self.folder, name), _FLAGS)
        except PermissionError:
            self.denied.append(name)
            raise NotReadError("it may not be read") from None
        except OSError as error:
            if error.errno == 6:  # ENXIO: a socket, a node without a device (open(2))
                self.not_files.append(name)
            raise NotReadError(f"it cannot be opened: {error.strerror}") from None
        try:
            status = os.fstat(fd)
            if not st.S_ISREG(status.st_mode):
                self.not_files.append(name)
                raise NotReadError("it is no regular file")
            return look(fd, status.st_size)
        except OSError as error:
            raise NotReadError(f"it cannot be read: {error.strerror}") from None
        finally:
            os.close(fd)

    def document(self, name: str, limit: int) -> tuple[Any, str, str]:
        """A JSON document, why there is none, and what is odd about it."""
        odd: list[str] = []
        try:
            return _parse(self.look(name, lambda fd, size: _all(fd, size, limit)), odd), "", "; ".join(odd[:3])
        except NotReadError as error:
            return None, str(error), ""

    def index(self) -> tuple[tuple[str, ...] | None, str]:
        """The names of the shards that an index lists."""
        document, problem, _ = self.document(INDEX, INDEX_LIMIT)
        if problem:
            return None, problem
        table = document.get("weight_map") if isinstance(document, dict) else None
        if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
            return None, "it has no weight_map of names"
        return tuple(sorted(set(table.values()))), ""

    def shard(self, name: str, look: Callable[[int, int], Shard]) -> Shard | None:
        """None where its kind is already told."""
        try:
            found: Shard = self.look(name, look)
        except NotReadError as error:
            if name in self.not_files or name in self.denied:
                return None
            return Shard(0, None, str(error))
        return found


def _all(fd: int, size: int, limit: int) -> bytes:
    if size > limit:
        raise NotReadError(f"it has {size} bytes, more than {limit}")
    return _exactly(fd, size)


def _exactly(fd: int, size: int) -> bytes:
    """Up to so many bytes: fewer where the file ends early."""
    parts = []
    while size > 0 and (part := os.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _parse(text: bytes, odd: list[str]) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items) and len(odd) < 3:
            counted = Counter(name for name, _ in items)
            odd.append("it names a key twice: " + printable(counted.most_common(1)[0][0], 60))
        return found

    def constant(name: str) -> float:
        odd.append(f"it has the value {name}, which is no JSON")
        return float(name)

    try:
        document = json.loads(text.decode("utf-8-sig"), object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:  # a number of more than 4300 digits is a ValueError too
        raise NotReadError(f"it is no JSON: {printable(str(error), 120)}") from None
    if _deeper(document, DEPTH_LIMIT):
        raise NotReadError(f"it is nested deeper than {DEPTH_LIMIT} levels")
    return document


def _deeper(value: Any, limit: int) -> bool:
    """Nearly all of an index's 100,000 items are texts: they are passed over without a call."""
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return limit == 0 or any(_deeper(item, limit - 1) for item in items if type(item) is dict or type(item) is list)


def _shard(fd: int, size: int) -> Shard:
    head = _exactly(fd, 8)
    if len(head) < 8:
        return Shard(size, 8)
    length = int.from_bytes(head, "little")
    if length > HEADER_LIMIT:
        return Shard(size, None, "its first bytes are no length of a header")
    if size < 8 + length:
        return Shard(size, 8 + length)
    if length > HEADER_READ:
        return Shard(size)
    header = _exactly(fd, length)
    if not header.startswith(b"{"):
        return Shard(size, None, "its header is no JSON")
    return Shard(size, 8 + length + max(map(int, _OFFSETS.findall(header)), default=0))
