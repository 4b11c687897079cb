"""Two sweeps never meet, and no wait for the other is endless."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_lifecycle.errors import BusyError, LifecycleError
from gpu_lifecycle.facts import Layout
from gpu_lifecycle.system.locks import hold_gpus

HOLDER = """
import sys
from gpu_lifecycle.facts import Layout
from gpu_lifecycle.system.locks import hold_gpus
with hold_gpus(Layout(sys.argv[1]), sys.argv[2:], 10, lambda *_: None):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
sys.stdin.readline()
"""


def holder(root: Path, *uuids: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", HOLDER, str(root), *uuids]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def say(process: subprocess.Popen[str], line: str = "") -> None:
    assert process.stdin
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def test_one_at_a_time(tmp_path: Path) -> None:
    layout, shown = Layout(str(tmp_path)), list[tuple[str, float]]()
    with holder(tmp_path, "GPU-a", "GPU-b") as other:
        assert heard(other) == "held"
        began = time.monotonic()
        with (
            pytest.raises(BusyError, match=r"another sweep has held its lock for 0\.3 s") as caught,
            hold_gpus(layout, ["GPU-c", "GPU-b"], 0.3, lambda *said: shown.append(said)),
        ):
            pytest.fail("two hold one GPU")
        assert 0.3 <= time.monotonic() - began < 5
        assert (caught.value.status, "GPU-b" in caught.value.hint) == (75, True)
        assert shown
        assert {text for text, _ in shown} == {"another sweep of GPU GPU-b is running"}
        assert all(0 < left <= 0.3 for _, left in shown)
        with hold_gpus(layout, ["GPU-c", "GPU-c"], 0, lambda *_: pytest.fail("nobody is in the way")):
            pass

        def release(*_: object) -> None:
            if other.stdin and not said:
                said.append("go")
                say(other)

        said: list[str] = []
        with hold_gpus(layout, ["GPU-a"], 10, release):
            assert said
        say(other)


def test_a_killed_sweep_leaves_no_lock(tmp_path: Path) -> None:
    with holder(tmp_path, "GPU-a") as other:
        assert heard(other) == "held"
        other.kill()
        other.wait()
        with hold_gpus(Layout(str(tmp_path)), ["GPU-a"], 0, lambda *_: pytest.fail("held by the dead")):
            pass


def test_an_error_inside_releases(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    for _ in range(2):
        with pytest.raises(KeyError), hold_gpus(layout, ["GPU-b", "GPU-a"], 0, lambda *_: None):
            raise KeyError


def test_files_are_closed_to_others(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    with hold_gpus(layout, ["GPU-a"], 0, lambda *_: None):
        assert stat.S_IMODE(Path(layout.lock("GPU-a")).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(layout.run_dir).stat().st_mode) == 0o755


def test_a_planted_link_is_refused(tmp_path: Path) -> None:
    layout, target = Layout(str(tmp_path)), tmp_path / "target"
    Path(layout.run_dir).mkdir(parents=True)
    Path(layout.lock("GPU-a")).symlink_to(target)
    with pytest.raises(LifecycleError, match="cannot lock GPU GPU-a"), hold_gpus(layout, ["GPU-a"], 0, lambda *_: None):
        pytest.fail("followed")
    assert not target.exists()


def test_without_the_right_to_lock(tmp_path: Path) -> None:
    """As another user, which root becomes for this."""
    tmp_path.chmod(0o755)
    code = (
        "import os, sys\n"
        "from gpu_lifecycle.errors import NotPermittedError\n"
        "from gpu_lifecycle.facts import Layout\n"
        "from gpu_lifecycle.system.locks import hold_gpus\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "else: os.chmod(sys.argv[1], 0o500)\n"
        "try:\n"
        "    with hold_gpus(Layout(sys.argv[1]), ['GPU-a'], 0, print): pass\n"
        "except NotPermittedError as error: print(int(error.status), error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert done.stdout.startswith("77 cannot lock GPU GPU-a"), done
    assert done.stdout.strip().endswith("(run as root)")
