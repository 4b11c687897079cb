"""What is read of a machine, against real files, limits, sockets, users and folders."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.host import Around, check_host, start_host
from gpu_lifecycle.rules.config import Config, Server
from gpu_lifecycle.system.as_user import account, being, group_ids
from gpu_lifecycle.system.host import (
    Ask,
    driver_packages,
    held_packages,
    look_as,
    may_raise_limits,
    read_limits,
    read_memory,
    space_of,
    try_port,
)  # fmt: skip
from gpu_lifecycle.system.hub import snapshots
from gpu_lifecycle.system.unit_files import LIMIT, list_folder, read_text
from tests.model_folders import LLAMA, write_model
from tests.preflights import preflight

ROOT = os.geteuid() == 0
UNIT = UnitName("kimi")


def config(*words: str, engine: str = "sglang") -> Config:
    return Config(Server(("/usr/bin/env", *words), engine=engine))


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_memory_is_that_of_the_machine() -> None:
    memory = read_memory()
    assert memory
    assert memory.total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory.available <= memory.total


def test_memory_of_another_tree(tmp_path: Path) -> None:
    assert read_memory(str(tmp_path)) is None
    (tmp_path / "meminfo").write_text("MemTotal: x\n\0")
    assert read_memory(str(tmp_path)) is None
    lines = ("MemTotal: 8 kB", "MemAvailable: 4 kB", "SwapTotal: 2 kB", "SwapFree: 1 kB", "HugePages_Free: 3")
    (tmp_path / "meminfo").write_text("\n".join(lines))
    found = read_memory(str(tmp_path), str(tmp_path))
    assert found
    assert (found.total, found.available, found.swap, found.swap_free) == (8192, 4096, 2048, 1024)
    assert (found.huge_free, found.thp) == (3, "")


def test_limits_are_the_kernels() -> None:
    for name, number in (("LimitNOFILE", resource.RLIMIT_NOFILE), ("LimitMEMLOCK", resource.RLIMIT_MEMLOCK)):
        hard = resource.getrlimit(number)[1]
        assert read_limits("self")[name] == (None if hard == resource.RLIM_INFINITY else hard)
    assert read_limits(0) == {}


@pytest.mark.parametrize(
    ("capabilities", "span", "may"),
    [
        ("000001ffffffffff", "0 0 4294967295", True),
        ("000001fffeffffff", "0 0 4294967295", False),
        ("000001ffffffffff", "0 100000 65536", False),
    ],
)
def test_who_may_raise_limits(tmp_path: Path, capabilities: str, span: str, may: bool) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/status").write_text(f"Name:\tsystemd\nCapEff:\t{capabilities}\n")
    (tmp_path / "1/uid_map").write_text(span + "\n")
    assert may_raise_limits(str(tmp_path)) is may


def test_a_file_system_is_measured_where_the_folder_will_be(tmp_path: Path) -> None:
    found = look_as("", (), 5.0, Ask(((str(tmp_path / "not/yet"), "caches", 1),)))
    assert found
    ((path, what, total, free, _, device, writable, least),) = found["spaces"]
    about = os.statvfs(tmp_path)
    assert (path, what, least, writable) == (str(tmp_path / "not/yet"), "caches", 1, True)
    assert total == about.f_blocks * about.f_frsize
    assert 0 < free <= total
    assert device == os.stat(tmp_path).st_dev
    assert space_of(str(tmp_path / "none"), "", 0) is None


def test_a_look_that_takes_too_long_is_given_up() -> None:
    begun = time.monotonic()
    assert look_as("", (), 0.0, Ask((("/", "", 0),))) is None
    assert time.monotonic() - begun < 2


@pytest.mark.skipif(not ROOT, reason="only root can be another user")
def test_what_another_user_may_open_is_asked_as_that_user(open_path: Path) -> None:
    for name, mode, gid in (("open", 0o666, 0), ("closed", 0o600, 0), ("grouped", 0o660, 12345)):
        (open_path / name).touch()
        os.chown(open_path / name, 0, gid)
        os.chmod(open_path / name, mode)
    nodes = tuple(str(open_path / name) for name in ("open", "closed", "grouped", "absent"))

    def denied(*groups: int) -> list[str]:
        found = look_as("nobody", groups, 5.0, Ask(nodes=nodes))
        assert found
        assert found["tried"]
        return [item[0].rpartition("/")[2] for item in found["denied"]]

    assert denied() == ["closed", "grouped"]
    assert denied(12345) == ["closed"]
    assert os.geteuid() == 0


@pytest.mark.skipif(not ROOT, reason="only root can be another user")
def test_an_access_list_counts(open_path: Path) -> None:
    who = account("nobody")
    assert who
    node = open_path / "node"
    node.touch(0o600)
    # struct posix_acl_xattr (linux/posix_acl_xattr.h): version, then tag, permissions, id of each entry
    entries = [(1, 6, -1), (2, 6, who.uid), (4, 0, -1), (0x10, 6, -1), (0x20, 0, -1)]
    data = (2).to_bytes(4, "little") + b"".join(
        tag.to_bytes(2, "little") + rights.to_bytes(2, "little") + (number & 0xFFFFFFFF).to_bytes(4, "little")
        for tag, rights, number in entries
    )
    try:
        os.setxattr(node, "system.posix_acl_access", data)
    except OSError as error:
        pytest.skip(f"no access lists on this file system: {error.strerror}")
    script = f"import os; os.seteuid({who.uid}); print(os.access({str(node)!r}, os.R_OK | os.W_OK, effective_ids=True))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"
    found = look_as("nobody", (), 5.0, Ask(nodes=(str(node),)))
    assert found
    assert found["denied"] == []


def test_users_and_groups() -> None:
    assert account("no-such-user-here") is None
    assert account("99999999999999") is None
    assert group_ids(["0", "no-such-group-here"]) == [0]
    with being("no-such-user-here") as tried:
        assert not tried


@pytest.mark.parametrize("reuse_port", [True, False])
def test_a_port_is_tried_like_the_engine_does(reuse_port: bool) -> None:
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", 0))
        number = door.getsockname()[1]
        door.listen()
        assert try_port("127.0.0.1", number, reuse_port=reuse_port) == "taken"
        assert try_port("0.0.0.0", number, reuse_port=reuse_port) == "taken"
    assert try_port("127.0.0.1", number, reuse_port=reuse_port) == ""


def test_time_wait_is_no_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)) as client:
            one, _ = server.accept()
            one.close()  # who closes first keeps TIME_WAIT
            assert client.recv(1) == b""
    assert try_port("127.0.0.1", number, reuse_port=False) == ""


def test_an_address_that_is_not_here() -> None:
    assert "assign" in try_port("192.0.2.1", 30000, reuse_port=False)
    assert "resolved" in try_port("no-such-host.invalid", 30000, reuse_port=False)
    assert try_port("\ud800", 30000, reuse_port=False)


def test_a_foreign_listener_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        around = Around(UNIT, config("--port", port), Layout(str(tmp_path)), {})
        (item,) = (item for item in check_host(around) if item.code == "port-taken")
        assert f"port {port} is taken by process {os.getpid()} " in item.message
        around = Around(UNIT, config("--port", port, "--host", "0.0.0.0"), Layout(str(tmp_path)), {})
        assert [item.code for item in check_host(around)].count("port-taken") == 1
        busy = Around(UNIT, config("--port", port), Layout(str(tmp_path)), {}, {"ActiveState": "active"})
        assert "port-taken" not in [item.code for item in check_host(busy)]


def test_packages(tmp_path: Path) -> None:
    info = tmp_path / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    for name in ("libnvidia-compute-550:amd64", "nvidia-driver-550", "vim"):
        (info / f"{name}.list").touch()
    assert driver_packages(str(tmp_path)) == ["libnvidia-compute-550", "nvidia-driver-550"]
    entries = ("libnvidia-compute-550", "hold"), ("nvidia-driver-550", "install")
    text = "\n".join(f"Package: {name}\nStatus: {state} ok installed\nVersion: 1\n" for name, state in entries)
    (info.parent / "status").write_text(text)
    assert held_packages(["libnvidia-compute-550", "nvidia-driver-550"], str(tmp_path)) == {"libnvidia-compute-550"}


def tree(root: Path) -> Layout:
    """A machine that upgrades by itself."""
    for name, text in {
        "etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "1";\n',
        "var/lib/dpkg/info/libnvidia-compute-550.list": "",
        "var/lib/dpkg/status": "Package: libnvidia-compute-550\nStatus: install ok installed\n",
        "usr/sbin/needrestart": "",
        "etc/needrestart/needrestart.conf": "# defaults\n",
        "dev/shm/x": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Layout(str(root))


def checked(root: Path) -> set[str]:
    return {item.code for item in check_host(Around(UNIT, config("--port", "64999"), Layout(str(root)), {}))}


def test_a_machine_that_upgrades_by_itself(tmp_path: Path) -> None:
    tree(tmp_path)
    assert {"driver-upgrades", "needrestart"} <= checked(tmp_path)
    (tmp_path / "etc/apt/apt.conf.d/99").write_text('Unattended-Upgrade::Package-Blacklist { "libnvidia"; };')
    (tmp_path / "etc/needrestart/conf.d").mkdir()
    (tmp_path / "etc/needrestart/conf.d/x.conf").write_text("$nrconf{override_rc}{qr(^kimi)} = 0;\n")
    assert not {"driver-upgrades", "needrestart"} & checked(tmp_path)


def test_whatever_lies_in_etc_is_a_finding_at_most(tmp_path: Path) -> None:
    tree(tmp_path)
    folder = tmp_path / "etc/apt/apt.conf.d"
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "huge").write_bytes(b"{" * (LIMIT + 1))
    (folder / "noise").write_bytes(os.urandom(4096) + b'"' * 1000 + b"{" * 1000)
    begun = time.monotonic()
    found = check_host(Around(UNIT, config("--port", "64999"), Layout(str(tmp_path)), {}))
    assert time.monotonic() - begun < 5
    unread = sorted(item.file.rpartition("/")[2] for item in found if item.code == "host-unread")
    assert unread == ["fifo", "folder", "huge", "loop"]
    assert "driver-upgrades" in {item.code for item in found}


def test_small_texts(tmp_path: Path) -> None:
    assert read_text(str(tmp_path / "none")).problem
    assert read_text("/x\0y").problem
    (tmp_path / "b.conf").write_bytes(b"[A]\nx=\xff\n")
    assert read_text(str(tmp_path / "b.conf")).text == "[A]\nx=\ufffd\n"
    assert list_folder(str(tmp_path), ".conf") == [str(tmp_path / "b.conf")]
    assert list_folder(str(tmp_path / "none"), "") == []


def test_a_start_says_only_what_is_near(tmp_path: Path) -> None:
    tree(tmp_path)
    codes = {item.code for item in start_host(Around(UNIT, config(), Layout(str(tmp_path)), {}, {"User": "root"}))}
    assert not {"driver-upgrades", "needrestart", "journal-limit", "port-taken"} & codes


def test_keys_in_a_file_that_others_can_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    for mode, count in ((0o644, 1), (0o600, 0)):
        keys.touch()
        keys.chmod(mode)
        made = config("--api-key-file", str(keys), engine="llama.cpp")
        found = [item.code for item in check_host(Around(UNIT, made, Layout(str(tmp_path)), {}))]
        assert found.count("key-file") == count
    os.mkfifo(tmp_path / "fifo")
    made = config("--api-key-file", str(tmp_path / "fifo"), engine="llama.cpp")
    assert "key-file" in [item.code for item in check_host(Around(UNIT, made, Layout(str(tmp_path)), {}))]


def download(hub: Path, name: str, *, revision: str = "ab" * 20) -> Path:
    folder = hub / ("models--" + name.replace("/", "--"))
    write_model(folder / "snapshots" / revision, LLAMA)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(revision)
    return folder


def test_a_model_that_was_downloaded_is_looked_into(tmp_path: Path) -> None:
    download(tmp_path / "hub", "org/llama")
    env = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    def codes(name: str, tp: str) -> list[tuple[str, str]]:
        made = Config(Server(("/usr/bin/env", "--model-path", name, "--tp", tp)))
        return [(str(item.level), item.code) for item in preflight(made, "none.service", env, 10.0)]

    assert codes("org/llama", "8") == []
    assert codes("org/llama", "7") == [("error", "heads")]
    assert codes("org/other", "8") == [("error", "model-offline")]
    assert codes("./llama", "8") == [("info", "model-by-name")]


def test_a_cache_that_is_odd(tmp_path: Path) -> None:
    folder = download(tmp_path, "a/b")
    (folder / "refs/main").unlink()
    os.mkfifo(folder / "refs/main")
    (tmp_path / "models--c--d").touch()
    found = snapshots(["a/b", "c/d", "e/f"], str(tmp_path), "", 10.0)
    assert found == {"a/b": str(folder / "snapshots" / ("ab" * 20)), "c/d": "", "e/f": ""}
    assert snapshots(["a/b"], str(tmp_path), "", 0.0) is None
