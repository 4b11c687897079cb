"""Our own small files, on a real file system, with the traps a unit's user can set."""

from __future__ import annotations

import json
import os
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_lifecycle.errors import ConfigError, Exit, LifecycleError, NotPermittedError
from gpu_lifecycle.rules.text import printable
from gpu_lifecycle.system.files import LIMIT, read_config_text, read_keys, read_state, write_state

ROOT = os.geteuid() == 0


def test_a_config_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("größe = 1\n", encoding="utf-8")
    (tmp_path / "kimi.toml").symlink_to("real.toml")
    assert read_config_text(str(tmp_path / "kimi.toml")) == "größe = 1\n"


@pytest.mark.parametrize(
    ("content", "keys", "why"),
    [
        (b"s3cret", ["s3cret"], ""),
        (b"s3cret\r\n", ["s3cret"], ""),
        (b"\n s3cret \nother\n\n", ["s3cret", "other"], ""),
        (b"x" * 4096, ["x" * 4096], ""),
        (b"", [], "it holds no key: a line of"),
        (b"\n \n", [], "it holds no key: a line of"),
        (b"two s3crets", [], "it holds no key: a line of"),
        (b"s3cret\0", [], "it holds no key: a line of"),
        (b"x" * 4097, [], "it holds no key: a line of"),
        (b"s3cr\xe9t", [], "it holds no key: it is not ASCII"),
        (b"x" * (LIMIT + 1), [], "it is larger than 1 MiB"),
    ],
)
def test_keys(tmp_path: Path, content: bytes, keys: list[str], why: str) -> None:
    (tmp_path / "key").write_bytes(content)
    found, said = read_keys(str(tmp_path / "key"))
    assert (found, said.startswith(why), bool(said)) == (keys, True, bool(why))
    assert "cr" not in said, "nothing of the content"


def test_a_key_file_that_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read_keys(str(tmp_path / "fifo")) == ([], "it is not a regular file")
    assert read_keys(str(tmp_path)) == ([], "it is a directory")
    assert read_keys(str(tmp_path / "none")) == ([], "No such file or directory")
    assert read_keys("/proc/self/mem")[0] == []


def test_a_config_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "kimi.toml").write_bytes(b"#" * LIMIT)
    assert len(read_config_text(str(tmp_path / "kimi.toml"))) == LIMIT


def _lay(path: Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        os.chdir(path.parent)  # sun_path is short
        socket.socket(socket.AF_UNIX).bind(path.name)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "large":
        path.write_bytes(b"#" * (LIMIT + 1))
    elif kind == "latin-1":
        path.write_bytes(b"a = 1\nb = 'gr\xf6\xdfe'\n")
    elif kind == "device":
        path.symlink_to("/dev/zero")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("kind", "line", "message", "hint"),
    [
        ("missing", None, "there is no such file", "gpu-lifecycle install kimi writes an example"),
        ("directory", None, "is a directory", "TOML file"),
        ("fifo", None, "is not a regular file", "TOML file"),
        ("device", None, "is not a regular file", "TOML file"),
        ("socket", None, "No such device or address", "regular file"),
        ("loop", None, "Too many levels", "regular file"),
        ("large", None, "larger than 1 MiB", "TOML file"),
        ("latin-1", 2, "byte 0xf6 is not UTF-8", "save the file as UTF-8"),
    ],
)
def test_what_is_no_config_is_said_with_place_and_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, line: int | None, message: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "kimi.toml"
    _lay(path, kind)
    with pytest.raises(ConfigError) as caught:
        read_config_text(str(path))
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert caught.value.message.startswith("cannot read the config: ")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_file_where_a_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        read_config_text(str(tmp_path / "etc" / "kimi.toml"))


def _as_nobody(code: str, path: Path) -> str:
    """What ``code`` prints, run as nobody, who can reach the package but not write."""
    become = "import os, sys; import gpu_lifecycle.system.files as files; os.setgid(65534); os.setuid(65534)"
    program = f"{become}\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.skipif(not ROOT, reason="needs root to become somebody else")
def test_what_this_user_may_not_do(tmp_path: Path) -> None:
    (tmp_path / "kimi.toml").write_text("")
    (tmp_path / "kimi.toml").chmod(0o600)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    code = "try: files.{}\nexcept Exception as e: print(type(e).__name__, int(e.status), e)"
    said = _as_nobody(code.format("read_config_text(sys.argv[1])"), tmp_path / "kimi.toml")
    assert said.startswith("NotPermittedError 77 cannot read ")
    assert "chmod 0644" in said
    said = _as_nobody(code.format("write_state(sys.argv[1], {})"), tmp_path / "state.json")
    assert said.startswith("NotPermittedError 77 cannot write ")
    assert issubclass(NotPermittedError, LifecycleError)


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "gpu-lifecycle" / "kimi" / "state.json")
    assert read_state(path) == (None, "")
    old = os.umask(0o077)
    try:
        write_state(path, {"schema": 1, "text": "warten… \ud800"})
        write_state(path, {"schema": 1, "n": None})
    finally:
        os.umask(old)
    assert read_state(path) == ({"schema": 1, "n": None}, "")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    for parent in (Path(path).parent, Path(path).parent.parent):
        assert stat.S_IMODE(parent.stat().st_mode) == 0o755
    assert os.listdir(Path(path).parent) == ["state.json"]


def test_a_bare_name_is_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_state("state.json", {"a": 1})
    assert read_state("state.json") == ({"a": 1}, "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b'{"schema": 1, "ph', "torn"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a": NaN}', "torn"),
        (b"\xff\xfe", "torn"),
        (b"\x00" * 100, "torn"),
        (b"[" * 500_000, "torn"),
        (b'{"a": ' + b"9" * 5000 + b"}", "torn"),
        (b" " * (LIMIT + 1), "larger than 1 MiB"),
    ],
    ids=lambda value: printable(value, 30),
)
def test_a_spoilt_state_is_no_state(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(data)
    state, why = read_state(str(path))
    assert state is None
    assert reason in why


def test_a_trap_in_place_of_a_state_is_no_state(tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    good.write_text("{}")
    (tmp_path / "link").symlink_to(good)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dir").mkdir()
    assert read_state(str(tmp_path / "link")) == (None, "it is a link")
    assert read_state(str(tmp_path / "pipe")) == (None, "it is not a regular file")
    assert read_state(str(tmp_path / "dir")) == (None, "it is a directory")
    assert read_state(str(good / "below"))[1] == "Not a directory"


def test_a_planted_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.write_text("secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state.json").symlink_to(shadow)
    write_state(str(tmp_path / "run" / "state.json"), {"a": 1})
    assert shadow.read_text() == "secret"
    assert not (tmp_path / "run" / "state.json").is_symlink()


def test_a_planted_directory_link_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "run").symlink_to(elsewhere)
    with pytest.raises(LifecycleError) as caught:
        write_state(str(tmp_path / "run" / "state.json"), {"a": 1})
    assert str(tmp_path / "run") in str(caught.value)
    assert "link" in caught.value.hint
    assert os.listdir(elsewhere) == []


def test_a_directory_in_the_files_place_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    with pytest.raises(LifecycleError, match="Is a directory") as caught:
        write_state(str(tmp_path / "state.json"), {"a": 1})
    assert caught.value.status is Exit.TEMPFAIL
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_write_cut_short_keeps_the_old_state(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    write_state(path, {"old": True})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # Python ignores SIGXFSZ: the write fails with EFBIG
    try:
        with pytest.raises(LifecycleError, match="File too large"):
            write_state(path, {"new": "x" * 100_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_state(path) == ({"old": True}, "")
    assert os.listdir(tmp_path) == ["state.json"]


def test_what_is_no_json_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    for value in (float("nan"), object()):
        with pytest.raises(LifecycleError, match="no JSON"):
            write_state(str(tmp_path / "new" / "state.json"), {"a": value})
    assert os.listdir(tmp_path) == []


def _in_a_mount(directory: Path, options: str, code: str) -> subprocess.CompletedProcess[str]:
    script = f'mount -t tmpfs -o {options} t "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(directory), sys.executable, code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("options", "reason", "hint"),
    [("size=16k", "No space left on device", "df -h"), ("ro", "Read-only file system", "ReadWritePaths=")],
)
def test_a_full_or_read_only_disk(tmp_path: Path, options: str, reason: str, hint: str) -> None:
    if _in_a_mount(tmp_path, "size=16k", "pass").returncode:
        pytest.skip("this machine allows no mounts in a user namespace")
    code = (
        "import sys, os, json; from gpu_lifecycle.system.files import write_state\n"
        "try: write_state(sys.argv[1] + '/state.json', {'a': 'x' * 100000})\n"
        "except Exception as e: print(json.dumps([type(e).__name__, str(e), os.listdir(sys.argv[1])]))"
    )
    result = _in_a_mount(tmp_path, options, code)
    kind, text, left = json.loads(result.stdout)
    assert kind == "LifecycleError"
    assert f"cannot write {tmp_path}/state.json: {reason}" in text
    assert hint in text
    assert left == []


def test_readers_never_see_half_a_state(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    write_state(path, {"n": 0, "pad": ""})
    code = (
        "import sys; from gpu_lifecycle.system.files import write_state\n"
        "for n in range(300): write_state(sys.argv[1], {'n': n, 'pad': 'x' * (n * 97 % 60000)})"
    )
    with subprocess.Popen([sys.executable, "-c", code, path]) as writer:
        while writer.poll() is None:
            state, why = read_state(path)
            assert why == ""
            assert state is not None
    assert writer.returncode == 0
