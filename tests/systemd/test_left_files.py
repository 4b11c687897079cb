"""Field cases F50 and F51: what earlier, unmanaged runs left in the host's /dev/shm and /tmp. A managed one leaves none."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.facts import UnitName
from gpu_lifecycle.jobs.remains import clear
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.system import remains
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.remains import Folder, Processes
from tests.systemd.site import CONFIG, Site

pytestmark = pytest.mark.machine

USER = "gpu-lifecycle"
LOADS = "/dev/shm/sglang_loads_0123456789ab_{:08x}.shm"
DEAD = 4_000_000  # no process has this number: the kernel's own limit is just above it, and numbers begin low
QUEUE = "/dev/shm/sgl_shm_mq_{}_{:08x}"
PLACES = ("/dev/shm", "/tmp")


@pytest.fixture
def place(site: Site) -> Iterator[Site]:
    yield site
    site.ask("sh", "-c", "rm -rf /dev/shm/sgl* /dev/shm/psm_* /dev/shm/nccl-* /dev/shm/sem.mp-* /dev/shm/full /tmp/vllm_dist_* "
             "/tmp/tmpab* /dev/shm/target /run/keeper.py")  # fmt: skip


def leave(site: Site, path: str, *, user: str = USER, age: int = 3600) -> str:
    """A file as an engine of an earlier run left it."""
    script = 'head -c 8192 /dev/zero > "$0" && chown -h "$1" "$0" && touch -h -d "@$(($(date +%s) - $2))" "$0"'
    site.machine.run(["sh", "-c", script, path, user, str(age)])
    return path


def there(site: Site, path: str) -> bool:
    return bool(site.machine.run(["ls", "-d", path], check=False).returncode == 0)


def keeper(site: Site, code: str, user: str = "root") -> int:
    """A process that keeps something, after it has run this code."""
    lines = f"import os, socket, sys, time\n{code}\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"
    site.machine.write("/run/keeper.py", lines)
    site.ask("sh", "-c", f"rm -f /run/keeper.pid; install -m 666 -o {user} /dev/null /run/keeper.pid")
    line = "setsid --fork python3 -I /run/keeper.py /run/keeper.pid >/dev/null 2>&1 </dev/null"
    site.machine.run(["sh", "-c", line], user=None if user == "root" else user)
    return site.planted_pid("/run/keeper.pid")


def start(site: Site) -> dict[str, str]:
    """What was kept, message by rule. The unit runs on: RemoveIPC= takes all of its user from the host's /dev/shm at a stop."""
    site.start()
    assert site.state() == "active"
    return {event.get("GPU_LIFECYCLE_RULE", ""): str(event["MESSAGE"]) for event in site.events("remains-kept")}


def test_ours_and_dead_is_removed(place: Site) -> None:
    names = ("/dev/shm/psm_0a1b2c3d", "/dev/shm/nccl-aB3xYz", "/dev/shm/sem.mp-abcd_123", "/tmp/vllm_dist_" + "0a" * 16)
    left = [leave(place, name) for name in (LOADS.format(1), QUEUE.format(DEAD, 2), *names)]
    other = leave(place, "/dev/shm/sgl_of_somebody")
    assert start(place) == {}
    assert not [path for path in left if there(place, path)]
    assert there(place, other)
    (event,) = place.events("remains-removed")
    assert event["GPU_LIFECYCLE_RULE"] == "leftover"
    assert event["PRIORITY"] == "6"
    assert "removed 6 files of earlier runs, 48 KiB: /dev/shm/" in event["MESSAGE"]


def test_a_second_start_finds_nothing_to_say(place: Site) -> None:
    assert start(place) == {}
    assert not place.events("remains-removed")
    assert "/dev/shm" not in place.messages("start-allowed")


# Python's own mmap keeps a copy of the descriptor: here the mapping alone is to hold the file.
MAPPED = """
import ctypes
fd = os.open({path!r}, os.O_RDONLY)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0)) != ctypes.c_void_p(-1).value
os.close(fd)
"""
OPEN = "fd = os.open({path!r}, os.O_RDONLY)"
THREAD = """
import ctypes, threading
def alone():
    ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES: a table of its own
    os.open({path!r}, os.O_RDONLY)
    time.sleep(1000)
threading.Thread(target=alone).start()
time.sleep(0.3)
"""
IN_FLIGHT = """
one, two = socket.socketpair()
fd = os.open({path!r}, os.O_RDONLY)
socket.send_fds(one, [b"x"], [fd])
os.close(fd)
"""


@pytest.mark.parametrize("code", [MAPPED, OPEN, THREAD, IN_FLIGHT], ids=["mapped", "open", "thread", "in-flight"])
def test_ours_and_held_is_kept(place: Site, code: str) -> None:
    """By another user's process, so that nothing but the file itself tells."""
    path = leave(place, LOADS.format(3))
    pid = keeper(place, code.format(path=path))
    gone = leave(place, QUEUE.format(DEAD, 4))
    kept = start(place)
    assert there(place, path)
    assert not there(place, gone)
    assert list(kept) == ["held"]
    assert path in kept["held"]
    assert place.alive(pid)


def test_other_owners_young_ones_and_the_living_are_kept(place: Site) -> None:
    others = leave(place, LOADS.format(5), user="alice")
    roots = leave(place, QUEUE.format(DEAD, 6), user="root")
    young = leave(place, LOADS.format(7), age=0)
    alive = leave(place, QUEUE.format(1, 8))
    kept = start(place)
    assert sorted(kept) == ["other-user", "pid-alive", "young"]
    assert all(there(place, path) for path in (others, roots, young, alive))
    assert others in kept["other-user"]
    assert roots in kept["other-user"]
    assert "process 1 of its name is alive" in kept["pid-alive"]
    assert not place.events("remains-removed")


def test_while_the_user_has_a_living_process_only_a_dead_number_in_the_name_is_proof(place: Site) -> None:
    unnamed, numbered = leave(place, LOADS.format(9)), leave(place, QUEUE.format(DEAD, 10))
    keeper(place, "", user=USER)
    assert list(start(place)) == ["user-alive"]
    assert there(place, unnamed)
    assert not there(place, numbered)


def test_nothing_but_plain_files_goes(place: Site) -> None:
    """A link, a directory, a pipe and a second name: left where they are, and what a link points to is untouched."""
    target = leave(place, "/dev/shm/target")
    odd = [LOADS.format(number) for number in range(20, 25)]
    link, folder, pipe, name, again = odd
    place.machine.run(["sh", "-c", 'ln -s "$0" "$1" && mkdir "$2" && mkfifo "$3"', target, link, folder, pipe])
    leave(place, name)
    place.machine.run(["ln", name, again])
    inside = leave(place, f"{folder}/sglang_loads_0123456789ab_00000001.shm")
    place.machine.run(["sh", "-c", f"chown -h {USER} {shlex.join(odd)}; touch -h -d '-2 hours' {shlex.join(odd)}"])
    kept = start(place)
    assert all(there(place, path) for path in (*odd, target, inside))
    assert sorted(kept) == ["linked", "no-plain-file"]
    assert "left alone 3 files" in kept["no-plain-file"]
    assert not place.events("remains-removed")


def test_sockets_go_when_nobody_is_bound_to_them(place: Site) -> None:
    dead, bound = "/tmp/tmpabcdefgh", "/tmp/tmpabzzzzzz"
    code = f"for path in ({dead!r}, {bound!r}):\n    s = socket.socket(socket.AF_UNIX); s.bind(path)\n"
    code += f"os.chown({dead!r}, USER, -1); os.chown({bound!r}, USER, -1); [os.utime(p, (1, 1)) for p in ({dead!r}, {bound!r})]"
    uid = place.ask("id", "-u", USER).strip()
    keeper(place, code.replace("USER", uid))  # `s` is the second one: the first was closed
    file = leave(place, "/tmp/tmpabcdefg0")
    kept = start(place)
    assert not there(place, dead)
    assert there(place, bound)
    assert there(place, file), "a plain file of a common name is anybody's"
    assert list(kept) == ["held"]


def test_a_full_shm_is_told_and_no_reason_to_refuse(place: Site) -> None:
    place.machine.run(["sh", "-c", "mount -o remount,size=8m /dev/shm && head -c 7900000 /dev/zero > /dev/shm/full"])
    try:
        assert start(place) == {}
        assert "the host's /dev/shm is 9" in place.messages("start-allowed")
    finally:
        place.machine.run(["sh", "-c", "rm /dev/shm/full; mount -o remount,size=50% /dev/shm"])


def leftover(folder: Path) -> Path:
    path = folder / "psm_0a1b2c3d"
    path.write_bytes(b"x")
    return path


def test_a_place_that_is_a_link_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match="directory"), Folder("/dev/shm", str(tmp_path / "link")):
        pass


def test_what_changed_after_it_was_judged_is_kept(tmp_path: Path) -> None:
    path = leftover(tmp_path)
    with Folder("/dev/shm", str(tmp_path)) as folder:
        for change in (lambda: path.write_bytes(b"y"), lambda: os.chown(path, 65534, -1), lambda: replace_by_another(path)):
            (remain,) = folder.find()
            change()
            assert folder.remove(remain) == "it has changed meanwhile"
            assert path.exists()
        (remain,) = folder.find()
        target = path.rename(tmp_path / "target")
        path.symlink_to("target")
        assert "it cannot be looked at" in folder.remove(remain)
        assert target.exists()
        path.unlink()
        assert folder.remove(remain) == ""


def replace_by_another(path: Path) -> None:
    """Another file with the same owner and the same time."""
    old = path.stat()
    other = path.with_name("other")
    other.write_bytes(b"z")
    os.chown(other, old.st_uid, -1)
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.rename(path)


def test_a_crowded_place_is_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remains, "ENTRIES", 3)
    for number in range(5):
        (tmp_path / f"psm_0000000{number}").touch()
    with Folder("/dev/shm", str(tmp_path)) as folder:
        assert len(folder.find()) == 3
        assert folder.cut


def test_a_process_that_cannot_be_read_makes_sight_partial(tmp_path: Path) -> None:
    """A tree whose only process shows no more than that it exists."""
    (tmp_path / "7").mkdir()
    seen = Processes(Proc(str(tmp_path)), []).look()
    assert seen.limits == ("1 process cannot be read, such as 7",)


def test_a_clean_machine_asks_nobody(tmp_path: Path) -> None:
    """Nothing matches: who the unit runs as is not asked."""
    for number in range(500):
        (tmp_path / f"pulse-shm-{number}").touch()
    asked: list[str] = []

    def ask(unit: str) -> str:
        asked.append(unit)
        return ""

    clear(UnitName("x"), ask, Journal("x.service"), asked.append, {"/dev/shm": str(tmp_path)})
    assert not asked


@pytest.mark.parametrize("error", [KeyError("x"), BlindError("cannot reach the system bus"), OSError(5, "Input/output error")])
def test_no_error_ends_a_start(tmp_path: Path, error: Exception) -> None:
    def fail(_: str) -> str:
        raise error

    path, told = leftover(tmp_path), Told("x.service")
    assert clear(UnitName("x"), fail, told, lambda _: None, {"/dev/shm": str(tmp_path)}) == ""
    assert path.exists()
    assert [event.word for event in told.events] == ["remains-kept"]
    assert str(error) in told.events[0].message


class Told(Journal):
    """Keeps what it is told."""

    def __init__(self, unit: str) -> None:
        super().__init__(unit)
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)


@pytest.mark.parametrize("code", [MAPPED, OPEN, THREAD, IN_FLIGHT], ids=["mapped", "open", "thread", "in-flight"])
def test_both_looks_find_a_holder(tmp_path: Path, code: str) -> None:
    """``/proc`` and the kernel's lease, each by itself; what is in flight between two sockets only the kernel knows."""
    path = leftover(tmp_path)
    path.write_bytes(bytes(8192))
    lines = f"import os, socket, time\n{code.format(path=str(path))}\nprint(flush=True)\ntime.sleep(1000)"
    with Folder("/dev/shm", str(tmp_path)) as folder:
        (remain,) = folder.find()
        with subprocess.Popen([sys.executable, "-I", "-c", lines], stdout=subprocess.PIPE) as child:
            assert child.stdout
            child.stdout.readline()
            try:
                seen = Processes(Proc(), [remain]).look()
                assert seen.held == (frozenset() if code == IN_FLIGHT else {remain.key})
                assert {child.pid, 1} <= seen.pids
                assert folder.remove(remain) == "somebody has it open"
            finally:
                child.kill()
        assert Processes(Proc(), [remain]).look().held == frozenset()
        assert folder.remove(remain) == ""
    assert not path.exists()


def test_a_managed_run_leaves_nothing(place: Site) -> None:
    """Its own /dev/shm and /tmp go with it."""
    script = "#!/bin/sh\ntouch /dev/shm/sglang_loads_0123456789ab_0badcafe.shm /tmp/tmpabcafe00 || exit 3\n"
    place.machine.write("/opt/gpu-lifecycle/wrapped", script + 'exec "$@"\n', mode=0o755)
    text = place.machine.read(CONFIG)
    place.machine.write(CONFIG, text.replace("command = [", 'command = ["/opt/gpu-lifecycle/wrapped", '))
    before = place.ask("ls", "-A", *PLACES)
    place.start()
    assert place.state() == "active"
    pid = place.engine_main()
    inside = place.ask("ls", f"/proc/{pid}/root/dev/shm", f"/proc/{pid}/root/tmp")
    assert "0badcafe" in inside
    assert "tmpabcafe00" in inside
    outside = place.ask("ls", "-A", *PLACES)
    assert "0badcafe" not in outside
    assert "tmpabcafe00" not in outside
    place.stop()
    assert place.ask("ls", "-A", *PLACES) == before
    assert "tmpabcafe00" not in place.ask("find", "/tmp", "/var/tmp", "/dev/shm")
    assert not place.events("remains-kept")
