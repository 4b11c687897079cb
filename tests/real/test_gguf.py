"""GGUF files: how long their own headers say they are, whole, torn, hostile; and which files a split model consists of."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_lifecycle.rules.model_folder import FILE, Shard
from gpu_lifecycle.system.gguf import parts
from gpu_lifecycle.system.model import read_folder, read_folders

Q4_K, F32, UNKNOWN = 12, 0, 99


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, kind: int, offset: int, *dims: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


KEYS = (
    key("general.architecture", 8, text("llama")),
    key("llama.rope.freq_base", 6, struct.pack("<f", 1e6)),
    key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc")),
    key("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 2) + bytes(8)),
    key("general.alignment", 4, struct.pack("<I", 64)),
)
TENSORS = (tensor("a", F32, 0, 3), tensor("b", Q4_K, 64, 256, 2))
DATA = 64 + 2 * 144  # bytes: a padded to the alignment, then two blocks of b


def head(keys: tuple[bytes, ...] = KEYS, tensors: tuple[bytes, ...] = TENSORS, version: int = 3) -> bytes:
    found = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join((*keys, *tensors))
    return found + bytes(-len(found) % 64)


def measured(folder: Path, data: bytes) -> Shard:
    (folder / "m.gguf").write_bytes(data)
    return read_folder(str(folder / "m.gguf")).files["m.gguf"]


def test_a_whole_one(tmp_path: Path) -> None:
    data = head() + bytes(DATA)
    assert measured(tmp_path, data) == Shard(len(data), len(data))
    assert measured(tmp_path, data + bytes(32)) == Shard(len(data) + 32, len(data))
    assert read_folder(str(tmp_path / "m.gguf")).state == FILE


def test_one_that_is_cut_off(tmp_path: Path) -> None:
    data = head() + bytes(DATA)
    assert measured(tmp_path, data[:-1]) == Shard(len(data) - 1, len(data))
    for length in (0, 3, 4, 20, 40, len(head()) - 80):
        assert measured(tmp_path, data[:length]).problem == "it ends within its header"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"PK\3\4" + bytes(100), "it does not begin as a GGUF file"),
        (head(tensors=(tensor("a", F32, 0, 1, 1, 1, 1, 1),)), "it has a tensor of 5 dimensions"),
        (head(keys=(key("general.alignment", 4, struct.pack("<I", 48)),)), "its general.alignment, 48, is no power of two"),
        (head(keys=(key("x", 8, struct.pack("<Q", 1 << 63)),)), "it ends within its header"),
        (head(keys=(key("x", 9, struct.pack("<IQ", 8, 1 << 63)),)), "it ends within its header"),
    ],
    ids=["other file", "dimensions", "alignment", "long text", "long array"],
)
def test_one_that_no_engine_reads(tmp_path: Path, data: bytes, problem: str) -> None:
    assert measured(tmp_path, data) == Shard(len(data), None, problem)


@pytest.mark.parametrize(
    "data",
    [
        head(version=4),
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        head(keys=(key("x", 13, b""),)),
        head(keys=(key("x", 9, struct.pack("<IQ", 9, 1)),)),
    ],
    ids=["version", "byte order", "value", "array"],
)
def test_what_is_not_known_here_is_not_judged(tmp_path: Path, data: bytes) -> None:
    assert measured(tmp_path, data) == Shard(len(data))


def test_of_an_unknown_kind_of_tensor_the_beginning_counts(tmp_path: Path) -> None:
    data = head(tensors=(*TENSORS, tensor("c", UNKNOWN, 4096, 1)))
    assert measured(tmp_path, data).need == len(data) + 4096


def test_a_split_model_is_all_its_parts(tmp_path: Path) -> None:
    names = [f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    for name in names[:2]:
        (tmp_path / name).write_bytes(head() + bytes(DATA))
    path = str(tmp_path / names[0])
    read = read_folders([path], "", 10)
    assert read == {path: read_folder(path)}
    assert (read[path].parts, sorted(read[path].files)) == (tuple(names), names[:2])
    assert parts("m-00001-of-99999.gguf") == ("m-00001-of-99999.gguf",)
    assert parts("m-1-of-2.gguf") == ("m-1-of-2.gguf",)


@settings(max_examples=60, deadline=2000)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_after_a_good_beginning(data: bytes, length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        measured(Path(folder), head()[:length] + data)
