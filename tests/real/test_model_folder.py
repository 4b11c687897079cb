"""A model's folder, read whatever is in it: bounded, never a hang, never an exception."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_lifecycle.rules.model_folder import ABSENT, EMPTY, FILE, from_plain, plain
from gpu_lifecycle.system.model import read_as, read_folder, read_folders
from tests.model_folders import FAMILIES, KIMI, write_model

FIRST = "model-00001-of-00003.safetensors"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sound_folder(tmp_path: Path, family: str) -> None:
    read = read_folder(str(write_model(tmp_path, FAMILIES[family])))
    assert read.config == FAMILIES[family]
    assert (read.state, read.config_problem, read.config_odd, read.index_problem, read.denied) == ("", "", "", "", ())
    assert read.index == tuple(read.shards)
    assert all(shard.size == shard.need and not shard.problem for shard in read.shards.values())
    assert from_plain(plain(read)) == read


def test_a_child_reads_the_same(tmp_path: Path) -> None:
    path = str(write_model(tmp_path, KIMI))
    assert read_folders([path], "", 10) == {path: read_folder(path)}


def test_a_truncated_shard_is_shorter_than_its_header_says(tmp_path: Path) -> None:
    whole = (write_model(tmp_path, KIMI) / FIRST).read_bytes()
    for size in (0, 7, 8, 20, len(whole) - 1):
        (tmp_path / FIRST).write_bytes(whole[:size])
        shard = read_folder(str(tmp_path)).shards[FIRST]
        assert shard.size == size
        assert (shard.need or 0) > size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "no JSON"),
        ('{"a":' * 100 + "1" + "}" * 100, "nested deeper"),
        ("9" * 5000, "no JSON"),
        ('"\\ud800', "no JSON"),
    ],
)
def test_a_broken_config(tmp_path: Path, text: str, words: str) -> None:
    (write_model(tmp_path, KIMI) / "config.json").write_text(text)
    read = read_folder(str(tmp_path))
    assert read.config is None
    assert words in read.config_problem


def test_a_huge_config_is_not_read(tmp_path: Path) -> None:
    os.truncate(write_model(tmp_path, KIMI) / "config.json", 1 << 40)
    assert "more than" in read_folder(str(tmp_path)).config_problem


@pytest.mark.parametrize(("text", "words"), [('{"a": 1, "a": 2}', "a key twice: a"), ('{"a": NaN}', "NaN")])
def test_an_odd_config_is_read_and_said(tmp_path: Path, text: str, words: str) -> None:
    (write_model(tmp_path, KIMI) / "config.json").write_text(text)
    read = read_folder(str(tmp_path))
    assert read.config is not None
    assert words in read.config_odd


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", FIRST])
@pytest.mark.parametrize("kind", ["fifo", "loop", "socket", "folder", "device"])
def test_what_is_no_file_neither_hangs_nor_raises(tmp_path: Path, name: str, kind: str) -> None:
    place = write_model(tmp_path, KIMI) / name
    place.unlink()
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "loop":
        place.symlink_to(place)
    elif kind == "socket":
        with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{short}/s")
            os.rename(f"{short}/s", place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    begun = time.monotonic()
    read = read_folder(str(tmp_path))
    assert time.monotonic() - begun < 1
    said = read.config_problem or read.index_problem or str(read.not_files) + str(read.shards.get(name))
    assert name in read.not_files or "cannot be opened" in said


def test_a_name_may_have_any_bytes(tmp_path: Path) -> None:
    (write_model(tmp_path, KIMI) / "a\nb.safetensors").write_bytes(b"")
    (tmp_path / os.fsdecode(b"\xff.safetensors")).write_bytes(b"")
    found = read_folders([str(tmp_path)], "", 10)
    assert found is not None
    assert found[str(tmp_path)].shards["a\nb.safetensors"].size == 0


def test_a_large_index_takes_no_time(tmp_path: Path) -> None:
    table = {f"layers.{n}.weight": FIRST for n in range(100_000)}
    (write_model(tmp_path, KIMI) / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    begun = time.monotonic()
    assert read_folder(str(tmp_path)).index == (FIRST,)
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("path", ["/nowhere/at/all", "a\0b", "x" * 5000])
def test_no_folder(path: str) -> None:
    assert read_folder(path).state == ABSENT


def test_an_empty_folder_and_a_file(tmp_path: Path) -> None:
    assert read_folder(str(tmp_path)).state == EMPTY
    (tmp_path / "m.bin").write_bytes(b"GGUF")
    read = read_folder(str(tmp_path / "m.bin"))
    assert (read.state, read.files) == (FILE, {})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_what_the_user_may_not_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), KIMI)
        path.chmod(0o755)
        (path / FIRST).chmod(0o600)
        read = read_as(folder, "nobody")
        assert read.denied == (FIRST,)
        assert FIRST in read.shards
        path.chmod(0o700)
        assert read_as(folder, "nobody").denied == (".",)
    assert os.geteuid() == 0


@settings(max_examples=60, deadline=2000)
@given(st.binary(max_size=300), st.sampled_from(["config.json", "model.safetensors.index.json", FIRST]))
def test_any_bytes(text: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (write_model(Path(folder), KIMI) / name).write_bytes(text)
        read_folder(folder)
