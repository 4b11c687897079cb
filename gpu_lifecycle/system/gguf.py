"""The door to GGUF files: how long each says it is, by its own header. Everything is bounded.

Format (ggml, docs/gguf.md), little-endian: "GGUF", a version, the numbers of tensors and of keys, the keys with their values,
for each tensor its name, dimensions, type, offset; then the data, from the next multiple of general.alignment on.
"""

from __future__ import annotations

import os
import re
import struct

from gpu_lifecycle.rules.model_folder import Shard

HEAD_READ = 64 << 20  # bytes; a header that is longer is not judged. Most are a vocabulary: 5 to 15 MiB
VERSIONS = (2, 3)  # 1 had lengths of 32 bits, and no engine of today reads it
ALIGNMENT = 32  # where general.alignment does not say
DIMENSIONS = 4  # GGML_MAX_DIMS (ggml.h)
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by gguf_metadata_value_type
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98),
    19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip  # by ggml_type: the elements of a block, and its bytes (ggml.c, type_traits)
SPLIT = re.compile(r"(?s)(.*-)([0-9]{5})-of-([0-9]{5})\.gguf\Z")  # llama_split_path (llama.cpp)


class _BrokenError(Exception):
    """What is wrong with a header, in words."""


class _BeyondError(Exception):
    """The header goes on after what was read."""


class _UnknownError(Exception):
    """Of a version, a byte order or a type that is not known here: newer engines may read it."""


def parts(name: str) -> tuple[str, ...]:
    """The names of all files of a model that is split, else this one's own; as llama.cpp looks for them."""
    found = SPLIT.fullmatch(name)
    count = int(found[3]) if found else 0
    if found is None or not 0 < count <= 1000:
        return (name,)
    return tuple(f"{found[1]}{number:05d}-of-{found[3]}.gguf" for number in range(1, count + 1))


def measure(fd: int, size: int) -> Shard:
    """The file's own length and the one that its header speaks of. Raises OSError.

    Where a tensor is of a type that is not known here, its beginning counts: the file is at least so long.
    """
    data = _read(fd, min(size, HEAD_READ))
    try:
        return Shard(size, _need(_Header(data)))
    except _BrokenError as error:
        return Shard(size, None, str(error))
    except _UnknownError:
        return Shard(size)
    except _BeyondError:
        return Shard(size, None, "it ends within its header" if len(data) == size else "")


def _read(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := os.pread(fd, min(size - len(data), 1 << 20), len(data))):
        data += part
    return bytes(data)


class _Header:
    """Reads one value after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        self.skip(count)
        return self.data[self.at - count : self.at]

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise _BeyondError
        self.at += count

    def u32(self) -> int:
        self.skip(4)
        return int(struct.unpack_from("<I", self.data, self.at - 4)[0])

    def u64(self) -> int:
        self.skip(8)
        return int(struct.unpack_from("<Q", self.data, self.at - 8)[0])

    def string(self) -> bytes:
        return self.take(self.u64())

    def pass_value(self, kind: int) -> None:
        if kind == STRING:
            self.skip(self.u64())
        elif kind == ARRAY:
            self._pass_array()
        elif kind in SIZES:
            self.skip(SIZES[kind])
        else:
            raise _UnknownError

    def _pass_array(self) -> None:
        kind, count = self.u32(), self.u64()
        if kind in SIZES:
            self.skip(SIZES[kind] * count)
        elif kind == STRING:
            self._pass_strings(count)
        else:
            raise _UnknownError

    def _pass_strings(self, count: int) -> None:
        """Half a million in a large vocabulary: no call for each."""
        data, at, last = self.data, self.at, len(self.data) - 8
        length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > last:
                raise _BeyondError
            at += 8 + length(data, at)[0]
        self.at = at
        self.skip(0)


def _need(header: _Header) -> int:
    """Bytes of the whole file."""
    if header.take(4) != b"GGUF":
        raise _BrokenError("it does not begin as a GGUF file")
    if header.u32() not in VERSIONS:
        raise _UnknownError
    tensors, keys = header.u64(), header.u64()
    alignment = ALIGNMENT
    for _ in range(keys):
        name, kind = header.string(), header.u32()
        if name == b"general.alignment" and kind == 4:
            alignment = header.u32()
        else:
            header.pass_value(kind)
    if alignment <= 0 or alignment & (alignment - 1):
        raise _BrokenError(f"its general.alignment, {alignment}, is no power of two")
    end = max((_tensor_end(header) for _ in range(tensors)), default=0)
    return -(-header.at // alignment) * alignment + end if tensors else header.at


def _tensor_end(header: _Header) -> int:
    """Bytes from the beginning of the data."""
    header.string()
    count = header.u32()
    if count > DIMENSIONS:
        raise _BrokenError(f"it has a tensor of {count} dimensions")
    elements = 1
    for _ in range(count):
        elements *= header.u64()
    kind, offset = header.u32(), header.u64()
    block = BLOCKS.get(kind)
    return offset + (elements // block[0] * block[1] if block else 0)
