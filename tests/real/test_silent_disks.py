"""Each file that a person names, on a disk that hangs: it is said, with a deadline, and what is left is looked at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOK = """
import os, sys, time
from gpu_lifecycle.errors import LifecycleError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs import check, environment, keys
from gpu_lifecycle.rules.config import Server
from gpu_lifecycle.system import unit_files
server, far, root = int(sys.argv[1]), sys.argv[2], sys.argv[3]
keys.SECONDS = environment.SECONDS = unit_files.SECONDS = check.KEY_SECONDS = check.CONFIG_SECONDS = 0.5
began = time.monotonic()
given = environment.given({"EnvironmentFiles": [(f"{far}/x.env", True), (f"{root}/near.env", False)]}, "255")
print("environment", given.values.get("NEAR"), given.certain, [(item.code, str(item.level)) for item in given.findings])
print("unit", [item.problem for item in unit_files.read_unit_files([f"{far}/a.service"])])
for server_of in (Server(("/bin/true",), api_key_file=f"{far}/key"),
                  Server(("llama-server", "--api-key-file", f"{far}/key"), engine="llama.cpp")):
    try:
        keys.must_have_key(server_of, {}, "x.toml")
    except LifecycleError as error:
        print("key", error.status.value, error)
moved = f"{root}/moved"
with open(moved, "w") as file:
    file.write("one\\n")
told = []
key = keys.EngineKey(Server(("/bin/true",), api_key_file=moved), {}, told.append)
key.must_be_back()
os.symlink(f"{far}/key", f"{moved}.new")
os.rename(f"{moved}.new", moved)
asked = time.monotonic()
print("watched", *(key.now() for _ in range(20)), time.monotonic() - asked < 10)
print("watched", keys.EngineKey(Server(("/bin/true",), api_key_file=moved), {}, told.append).now())
for event in told:
    print("told", event.word, event.message)
try:
    key.must_be_back()
except LifecycleError as error:
    print("reload", error.status.value, error)
for unit in ("key", "config"):
    print("check", unit, check.check(UnitName(unit), Layout(root), as_json=False))
print("in time", time.monotonic() - began < 30, flush=True)
del told[:]
os.kill(server, 9)
for _ in range(50):
    time.sleep(0.1)
    key.now()
    if told:
        break
print("back", [(event.word, event.message) for event in told], key.now())
key.must_be_back()
os.unlink(moved)
with open(moved, "w") as file:
    file.write("two\\n")
print("renewed", key.now(), len(told))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("root")
    configs, far = root / "etc/gpu-lifecycle", root / "far"
    configs.mkdir(parents=True)
    far.mkdir()
    (configs / "key.toml").write_text(
        f'[server]\ncommand = ["/bin/true"]\nengine = "custom"\nurl = "http://127.0.0.1:1"\napi_key_file = "{far}/key"\n'
        '[ready]\nmin_used = "1GiB"\ngenerate = false\n'
    )
    (configs / "config.toml").symlink_to(far / "config.toml")
    (root / "near.env").write_text("NEAR=1\n")
    start = '"$1" "$2" serve "$3" & server=$!; sleep 1; exec timeout -s KILL 90 "$1" -c "$4" $server "$3" "$5"'
    words = [sys.executable, str(Path(__file__).parents[1] / "standins/stuck_fuse.py"), str(far), LOOK, str(root)]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", start, "sh", *words], capture_output=True, text=True, check=False, timeout=120
    )
    if "PermissionError" in done.stderr or "No such file" in done.stderr or "unshare" in done.stderr:
        pytest.skip("this machine allows no FUSE mounts in a user namespace")
    assert done.stdout, done.stderr
    return done.stdout.splitlines()


def test_files_of_the_environment(said: list[str]) -> None:
    """The others are read all the same."""
    assert said[0] == "environment 1 False [('environment-silent', 'error')]"


def test_unit_files(said: list[str]) -> None:
    assert said[1] == "unit ['its disk, or that of one read with it, has not answered within 0.5 s']"


def test_a_key_refuses_a_start_for_now(said: list[str]) -> None:
    text = "key 75 cannot read the engine's API key: its disk has not answered within 0.5 s"
    hint = "(is its file system mounted, and does its server answer?)"
    assert said[2:4] == [f"{text} {hint}"] * 2


def test_a_run_goes_on_with_the_last_key(said: list[str]) -> None:
    """It waits for the disk once, not at each look."""
    assert said[4] == " ".join(["watched", *["('one', '')"] * 20, "True"])
    assert said[5] == "watched ('', 'its disk does not answer')"


def test_that_it_does_is_told_once_and_without_the_key(said: list[str]) -> None:
    silent = "told key-silent the file of the engine's API key: its disk does not answer; the run goes on"
    assert said[6:8] == [f"{silent} with the key that was read last", f"{silent} without a key: none was read before"]


def test_a_reload_is_refused_meanwhile(said: list[str]) -> None:
    assert said[8].startswith("reload 75 a read of the engine's API key hangs, for its disk does not answer")


def test_that_it_is_read_again_is_told_once(said: list[str]) -> None:
    words = "the engine's API key is read again, but not found: "
    assert said[-2].startswith(f'back [(\'key-read-again\', "{words}')
    assert said[-1] == "renewed ('two', '') 1"


def test_check_says_it_and_goes_on(said: list[str]) -> None:
    at = next(number for number, line in enumerate(said) if line.startswith("check key "))
    silent = next(number for number, line in enumerate(said) if "server.api_key_file: cannot read " in line)
    assert said[silent].startswith("error: ")
    assert any("cannot look at the GPUs" in line or "found, driver" in line for line in said[silent + 1 : at])
    assert next(line for line in said[at:] if line.startswith("error: ")).startswith("error: cannot read ")
    assert "config.toml: its disk has not answered within 0.5 s" in "\n".join(said[at:])
    assert said[-4:-2] == ["check config 75", "in time True"]
