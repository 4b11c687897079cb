"""install and uninstall on trees: repeated, edited in between, shared by units, cut short, without a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.errors import LifecycleError, NotPermittedError, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs import install as job
from gpu_lifecycle.system import packaged, placed

KIMI = UnitName("sglang-kimi")
LLAMA = UnitName("llama")
FIRST = UnitName("gpu-lifecycle@first")
SECOND = UnitName("gpu-lifecycle@second")

UNIT = "etc/systemd/system/sglang-kimi.service"
CONFIG = "etc/gpu-lifecycle/sglang-kimi.toml"
LINK = "etc/systemd/system/multi-user.target.wants/sglang-kimi.service"


def snapshot(root: Path) -> dict[str, str]:
    """Every path below a root with what it is: contents, a link's target, or a folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = "folder" if path.is_dir() else path.read_text()
    return found


def install(root: Path, unit: UnitName = KIMI, *, enable: bool = False) -> list[str]:
    root.mkdir(exist_ok=True)
    return job.install(unit, Layout(str(root)), enable=enable)


def uninstall(root: Path, unit: UnitName = KIMI) -> list[str]:
    return job.uninstall(unit, Layout(str(root)))


def edit(path: Path) -> str:
    path.write_text(path.read_text() + "# mine\n")
    return path.read_text()


def test_a_second_install_has_nothing_to_do(tmp_path: Path) -> None:
    lines = install(tmp_path, enable=True)
    assert f"wrote {tmp_path / UNIT}" in lines
    before = snapshot(tmp_path)
    assert install(tmp_path, enable=True) == ["nothing to do"]
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("unit", [KIMI, LLAMA, FIRST])
@pytest.mark.parametrize("enable", [True, False])
def test_uninstall_leaves_the_tree_as_it_was(tmp_path: Path, unit: UnitName, enable: bool) -> None:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/other.service").write_text("[Service]\n")
    (tmp_path / "var/lib").mkdir(parents=True)
    before = snapshot(tmp_path)
    install(tmp_path, unit, enable=enable)
    assert len(snapshot(tmp_path)) > len(before) + 6
    uninstall(tmp_path, unit)
    assert snapshot(tmp_path) == before
    assert uninstall(tmp_path, unit)[0].startswith("nothing to do")


def test_the_unit_starts_this_interpreter_isolated(tmp_path: Path) -> None:
    install(tmp_path)
    text = (tmp_path / UNIT).read_text()
    command = f"{os.path.abspath(sys.executable)} -IB -m gpu_lifecycle"
    assert f"\nExecStart={command} serve %n\n" in text
    assert f"\nExecStartPre=+{command} hook pre-start %n\n" in text
    assert "@GPU_LIFECYCLE@" not in text


def test_a_unit_of_another_name_gets_a_file_of_its_own(tmp_path: Path) -> None:
    install(tmp_path, LLAMA, enable=True)
    text = (tmp_path / "etc/systemd/system/llama.service").read_text()
    assert "Description=Inference server llama," in text
    assert "%i" not in text
    assert (tmp_path / "etc/gpu-lifecycle/llama.toml").read_text() == _example("custom.toml")


def test_instances_share_the_template(tmp_path: Path) -> None:
    install(tmp_path, FIRST)
    lines = install(tmp_path, SECOND, enable=True)
    link = tmp_path / "etc/systemd/system/multi-user.target.wants/gpu-lifecycle@second.service"
    assert lines == [
        f"wrote {tmp_path}/etc/gpu-lifecycle/gpu-lifecycle@second.toml",
        f"linked {link}: gpu-lifecycle@second.service starts at boot",
    ]
    template = tmp_path / "etc/systemd/system/gpu-lifecycle@.service"
    uninstall(tmp_path, FIRST)
    assert template.exists()
    assert "%i" in template.read_text()
    uninstall(tmp_path, SECOND)
    assert snapshot(tmp_path) == {}


def test_shared_files_go_with_the_last_unit(tmp_path: Path) -> None:
    install(tmp_path)
    alone = snapshot(tmp_path)
    install(tmp_path, LLAMA)
    uninstall(tmp_path, LLAMA)
    assert snapshot(tmp_path) == alone
    uninstall(tmp_path)
    assert snapshot(tmp_path) == {}


def test_an_older_unit_of_ours_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    monkeypatch.setattr("sys.executable", "/opt/new/bin/python")
    lines = install(tmp_path)
    assert lines == [f"renewed {tmp_path / UNIT}"]
    assert "ExecStart=/opt/new/bin/python -IB" in (tmp_path / UNIT).read_text()
    uninstall(tmp_path)
    assert snapshot(tmp_path) == {}


def test_an_edited_unit_is_never_overwritten_and_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, enable=True)
    text = edit(tmp_path / UNIT)
    monkeypatch.setattr("sys.executable", "/opt/new/bin/python")
    lines = install(tmp_path)
    assert lines[0].startswith(f"kept /{UNIT}: it was edited")
    assert "systemctl edit sglang-kimi.service" in lines[0]
    assert f"kept {tmp_path / UNIT}: it was edited" in uninstall(tmp_path)
    assert (tmp_path / UNIT).read_text() == text
    assert (tmp_path / LINK).is_symlink(), "a unit that stays stays enabled"
    assert not (tmp_path / CONFIG).exists()


def test_a_unit_that_we_did_not_write_is_kept_even_where_it_is_the_same(tmp_path: Path) -> None:
    install(tmp_path)
    text = (tmp_path / UNIT).read_text()
    uninstall(tmp_path)
    (tmp_path / UNIT).parent.mkdir(parents=True)
    (tmp_path / UNIT).write_text(text)
    install(tmp_path)
    uninstall(tmp_path)
    assert (tmp_path / UNIT).read_text() == text


def test_a_config_is_only_ever_written_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / CONFIG).parent.mkdir(parents=True)
    (tmp_path / CONFIG).write_text("[server]\n")
    install(tmp_path)
    uninstall(tmp_path)
    assert (tmp_path / CONFIG).read_text() == "[server]\n"


def test_an_edited_config_survives_both(tmp_path: Path) -> None:
    install(tmp_path)
    text = edit(tmp_path / CONFIG)
    assert install(tmp_path) == ["nothing to do"]
    assert f"kept {tmp_path / CONFIG}: it was edited" in uninstall(tmp_path)
    assert (tmp_path / CONFIG).read_text() == text
    assert set(snapshot(tmp_path)) == {"etc", "etc/gpu-lifecycle", CONFIG}


def test_uninstall_removes_state_and_history_of_that_unit_only(tmp_path: Path) -> None:
    install(tmp_path)
    install(tmp_path, LLAMA)
    for name in ("sglang-kimi", "llama"):
        for folder in ("run/gpu-lifecycle", "var/lib/gpu-lifecycle", "var/cache/gpu-lifecycle"):
            (tmp_path / folder / name).mkdir(parents=True)
            (tmp_path / folder / name / "file").write_text("x")
    lines = uninstall(tmp_path)
    assert not (tmp_path / "run/gpu-lifecycle/sglang-kimi").exists()
    assert not (tmp_path / "var/lib/gpu-lifecycle/sglang-kimi").exists()
    assert any(line.startswith(f"kept {tmp_path}/var/cache/gpu-lifecycle/sglang-kimi") for line in lines)
    assert (tmp_path / "run/gpu-lifecycle/llama/file").exists()
    assert (tmp_path / "var/lib/gpu-lifecycle/llama/file").exists()


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    root, precious = tmp_path / "root", tmp_path / "precious"
    install(root)
    precious.mkdir()
    (precious / "file").write_text("x")
    (root / "var/lib/gpu-lifecycle/sglang-kimi").symlink_to(precious)
    uninstall(root)
    assert (precious / "file").exists()
    assert not (root / "var").exists()


def test_an_install_that_was_cut_short_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole"
    install(whole)
    for cut in range(1, 8):
        root = tmp_path / str(cut)
        with monkeypatch.context() as patch:
            left = iter(range(cut))
            patch.setattr(placed, "_replace", _dying(left))
            with pytest.raises(KeyboardInterrupt):
                install(root)
        install(root)
        assert _names(root) == _names(whole)
        uninstall(root)
        assert snapshot(root) == {}


def test_an_uninstall_that_was_cut_short_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cut in range(1, 4):
        root = tmp_path / str(cut)
        install(root)
        with monkeypatch.context() as patch:
            left = iter(range(cut))
            patch.setattr(placed, "_replace", _dying(left))
            with pytest.raises(KeyboardInterrupt):
                uninstall(root)
        uninstall(root)
        assert snapshot(root) == {}


def test_a_record_that_cannot_be_read_stops_everything(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / placed.RECORD.lstrip("/")).write_text("{")
    before = snapshot(tmp_path)
    for act in (install, uninstall):
        with pytest.raises(LifecycleError, match="cannot read the record"):
            act(tmp_path)
    assert snapshot(tmp_path) == before


def test_the_record_says_which_contents_were_ours(tmp_path: Path) -> None:
    install(tmp_path)
    record = json.loads((tmp_path / placed.RECORD.lstrip("/")).read_text())
    assert record["schema"] == 1
    assert record["files"][f"/{UNIT}"]["units"] == ["sglang-kimi"]
    assert record["user_created"] is False


def test_a_root_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        job.install(KIMI, Layout(str(tmp_path / "typo")), enable=False)
    assert snapshot(tmp_path) == {}


def test_only_root_may_change_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for root in ("/", "//", "/../"):
        with pytest.raises(NotPermittedError, match="only root may"):
            job.install(KIMI, Layout(root), enable=False)


def test_an_awkward_interpreter_is_quoted_for_systemd() -> None:
    assert job._word("/opt/x/bin/python") == "/opt/x/bin/python"
    assert job._word("/opt/a b/100%/$x/python") == '"/opt/a b/100%%/$$x/python"'
    assert job._word("/opt/it's/python") == '"/opt/it\'s/python"'


def test_both_units_hold_the_same_settings() -> None:
    own, template = (_settings(name) for name in ("sglang-kimi.service", "gpu-lifecycle@.service"))
    assert own == [line.replace("%i", "sglang-kimi") for line in template]


@pytest.mark.parametrize("unit", [KIMI, LLAMA, FIRST])
def test_systemd_takes_the_unit_without_a_warning(tmp_path: Path, unit: UnitName) -> None:
    install(tmp_path, unit)
    folder = tmp_path / "etc/systemd/system"
    file = folder / unit.service
    if unit is FIRST:
        (folder / "gpu-lifecycle@.service").rename(file)
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def _settings(name: str) -> list[str]:
    lines = Path(packaged.data_file("units", name)).read_text().splitlines()
    return lines[lines.index("[Unit]") :]


def _example(name: str) -> str:
    return Path(packaged.data_file("config", name)).read_text()


def _names(root: Path) -> list[str]:
    return list(snapshot(root))


def _dying(left: Iterator[int]) -> Callable[[str, str], None]:
    """A file write that goes well so many times, and then is where the process ends."""
    real = placed._replace

    def write(path: str, text: str) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(path, text)

    return write


SHM = "etc/systemd/system/sglang-kimi.service.d/gpu-lifecycle-shm.conf"


def set_shm(root: Path, size: str) -> None:
    config = root / CONFIG
    config.write_text(config.read_text().replace('shm_size = "50%"', f'shm_size = "{size}"'))


def test_the_size_of_the_units_shared_memory_comes_and_goes_with_the_config(tmp_path: Path) -> None:
    install(tmp_path)
    before = snapshot(tmp_path)
    assert SHM not in before
    set_shm(tmp_path, "64GiB")
    assert install(tmp_path) == [f"wrote {tmp_path / SHM}"]
    assert f"size={64 << 30}\n" in (tmp_path / SHM).read_text()
    assert install(tmp_path) == ["nothing to do"]
    config = tmp_path / CONFIG
    config.write_text(config.read_text().replace("64GiB", "50%"))
    assert install(tmp_path) == [f"removed {tmp_path / SHM}"]
    assert not (tmp_path / SHM).exists()


def test_uninstall_takes_the_drop_in_and_keeps_a_persons(tmp_path: Path) -> None:
    install(tmp_path)
    set_shm(tmp_path, "64GiB")
    install(tmp_path)
    mine = (tmp_path / SHM).with_name("mine.conf")
    mine.write_text("[Service]\n")
    lines = uninstall(tmp_path)
    assert not (tmp_path / SHM).exists()
    assert f"kept {mine.parent}: its drop-ins are a person's" in lines
    mine.unlink()


def test_uninstall_leaves_no_empty_folder_of_drop_ins(tmp_path: Path) -> None:
    install(tmp_path)
    install(tmp_path, FIRST)  # something that stays
    set_shm(tmp_path, "64GiB")
    install(tmp_path)
    uninstall(tmp_path)
    assert not (tmp_path / SHM).parent.exists()


def test_an_edited_drop_in_is_kept(tmp_path: Path) -> None:
    install(tmp_path)
    set_shm(tmp_path, "64GiB")
    install(tmp_path)
    text = edit(tmp_path / SHM)
    config = tmp_path / CONFIG
    config.write_text(config.read_text().replace("64GiB", "32GiB"))
    assert any("it was edited" in line for line in install(tmp_path))
    assert (tmp_path / SHM).read_text() == text


def test_a_config_that_cannot_be_read_is_said_and_the_rest_installed(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / CONFIG).write_text("[server\n")
    assert any(line.startswith("skipped: ") for line in install(tmp_path))
