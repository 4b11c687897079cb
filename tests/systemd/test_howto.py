"""Each how-to page, followed word for word by somebody new, on a machine of its own kind; what it shows is what comes.

``--co`` lists the pages. To see what a page prints now: ``python -m tests.systemd.test_howto docs/how-to/PAGE.md``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.howto import Command, File, Picture, fits, pages, steps
from tests.machine import Machine
from tests.systemd.conftest import STANDINS
from tests.systemd.pictures import PICTURES, clear, engine_and_models
from tests.systemd.site import ENGINE, Site

pytestmark = pytest.mark.machine
UNTOLD = "a page tells of a command that fails"


def new_machine(machine: Machine) -> Site:
    machine.copy(STANDINS / "sglang_standin", ENGINE)
    site = Site(machine)
    engine_and_models(site)
    return site


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Machine(tmp_path_factory.mktemp("machine"), gpus=8) as machine:
        yield new_machine(machine)


@pytest.fixture
def empty(booted: Site) -> Iterator[Site]:
    booted.begin()
    yield booted
    clear(booted)


def follow(site: Site, text: str) -> Iterator[tuple[Command, int, str]]:
    """Does what the page says; each command with its exit status and what it printed."""
    status = 0
    for step in steps(text):
        match step:
            case Picture(name):
                PICTURES[name](site)
            case File(path, content):
                site.machine.write(path, content)
            case Command(line, _):
                words = ["bash", "-c", f"(exit {status}); {{ {line}\n}} 2>&1"]
                done = site.machine.run(words, check=False, timeout=90)
                status = done.returncode
                yield step, status, str(done.stdout)


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.stem)
def test_a_page_keeps_its_word(empty: Site, page: Path) -> None:
    failed = ""
    for command, status, printed in follow(empty, page.read_text()):
        assert not failed or command.line == "echo $?", f"{UNTOLD}: {failed}"
        assert fits(command.shown, printed), f"# {command.line}\n{printed}"
        told = any(line.startswith("Job for ") and " failed " in line for line in command.shown)  # systemctl's own words
        failed = f"{command.line} exited with {status}:\n{printed}" if status and not told else ""
    assert not failed, failed


def test_every_picture_is_on_a_page() -> None:
    named = {step.name for page in pages() for step in steps(page.read_text()) if isinstance(step, Picture)}
    assert named == set(PICTURES)


if __name__ == "__main__":
    with Machine(Path(tempfile.mkdtemp()), gpus=8) as shown:
        for command, status, printed in follow(new_machine(shown), Path(sys.argv[1]).read_text()):
            mark = "   " if fits(command.shown, printed) else "***"
            print(f"{mark} # {command.line}\n{printed}{mark} ({status})", flush=True)
