"""What a person sees at a terminal: ``status``, ``status --follow``, ``start`` and ``top``, with keys, sizes and signals."""

from __future__ import annotations

import re
import time

import pytest

from tests.systemd.site import GIB, UNIT, Site
from tests.terminal import Terminal, inside

pytestmark = pytest.mark.machine

START = ("gpu-lifecycle", "start", "sglang-kimi")
TOP = ("gpu-lifecycle", "top")
FOLLOW = ("gpu-lifecycle", "status", "sglang-kimi", "--follow")


def ended(terminal: Terminal, status: int, seconds: float = 30) -> str:
    """The screen after the command has ended with a status; the terminal is as it was."""
    shown = terminal.until("modes restored", seconds)
    assert f"exit status {status}\n" in shown
    assert terminal.about("cursor_flag") == "1"
    assert terminal.about("alternate_on") == "0"
    return terminal.history()


def test_start_shows_the_load_until_ready(site: Site) -> None:
    site.configure("--load-seconds", "5", "--memory-per-gpu", str(72 * GIB))
    with Terminal(inside(site.machine, *START), height=16) as terminal:  # what is left standing at the end is more than fits
        loading = terminal.until(r"phase +loading for .*\n(.*\n)*.*THIS UNIT'S\n +0  █+·+ +[0-9.]+ GiB")
        assert re.search(r"systemd +activating", loading)
        shown = ended(terminal, 0)
    assert len(re.findall(r"^sglang-kimi.service$", shown, re.MULTILINE)) == 1, f"drawn over what was shown before:\n{shown}"
    assert re.search(r"phase +ready", shown)
    assert re.search(r"^sglang-kimi.service is active after ", shown, re.MULTILINE)
    assert site.state() == "active"


def test_start_of_what_is_active_says_so(site: Site) -> None:
    site.start()
    run = site.show("InvocationID")
    done = site.machine.run(list(START))
    assert done.stdout == f"{UNIT} is already active (gpu-lifecycle status sglang-kimi)\n"
    assert site.show("InvocationID") == run


def test_ctrl_c_leaves_the_start_running(site: Site) -> None:
    site.configure("--load-seconds", "6")
    with Terminal(inside(site.machine, *START), width=120) as terminal:
        terminal.until("phase +loading")
        terminal.type("x", "y", "C-z", "C-c")  # what is typed meanwhile is not drawn, and nothing stops it half-way
        shown = ended(terminal, 130)
    assert len(re.findall(r"^sglang-kimi.service$", shown, re.MULTILINE)) == 1, shown
    assert "gpu-lifecycle status sglang-kimi --follow" in shown.replace("\n", "")
    assert "^C" not in shown
    site.wait_state("active")


@pytest.mark.parametrize("words", [START, FOLLOW], ids=["start", "follow"])
@pytest.mark.parametrize("number", ["TERM", "HUP"])
def test_the_terminal_is_given_back_where_a_signal_ends_it(site: Site, words: tuple[str, ...], number: str) -> None:
    site.configure("--load-seconds", "8")
    site.start(wait=False)
    site.machine.wait(lambda: site.cli("status", "sglang-kimi")["phase"] == "loading", 20, "a load")
    with Terminal(inside(site.machine, *words)) as terminal:
        terminal.until("phase +loading")
        assert terminal.about("cursor_flag") == "0"
        site.machine.run(["pkill", f"-{number}", "-f", f"^[^ ]*python.* {words[1]} sglang-kimi"])
        ended(terminal, {"TERM": 143, "HUP": 129}[number])
    assert site.state() == "activating"


def test_follow_draws_in_its_place_and_fits_any_size(site: Site) -> None:
    site.configure("--load-seconds", "6")
    site.start(wait=False)
    with Terminal(inside(site.machine, *FOLLOW), width=120, height=40) as terminal:
        terminal.until("phase +loading")
        terminal.resize(60, 30)
        terminal.until(r"phase +loading for 2s")
        terminal.resize(100, 12)  # less than it needs: the end is cut off, and nothing scrolls
        time.sleep(1.5)
        assert len(terminal.screen().rstrip("\n").split("\n")) <= 12
        terminal.resize(100, 40)
        shown = ended(terminal, 0)
    assert re.search(r"phase +ready", shown)


def test_follow_in_a_pipe_is_a_line_for_each_change(site: Site) -> None:
    site.configure("--load-seconds", "2")
    site.start(wait=False)
    done = site.machine.run(["sh", "-c", "gpu-lifecycle status --follow | cat; gpu-lifecycle status sglang-kimi --follow"])
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{UNIT}: ")
    assert lines[-2].startswith(f"{UNIT}: ready: ")
    assert lines[-1].startswith("ready: ready: kimi on 8 GPUs")
    assert len(lines) == len(set(lines)) > 3
    assert "\x1b" not in done.stdout


def test_a_start_is_not_told_as_the_failure_before_it(site: Site) -> None:
    """Before the hook's first line the state file is still that of the run before."""
    site.configure(extra="[server.environment]\nNCCL_DEBUG = 1\n")
    site.start(wait=False)
    site.machine.wait(lambda: site.cli("status", "sglang-kimi")["phase"] == "failed", 20, "a start that is refused")
    site.configure()
    site.systemctl("reset-failed")
    with site.drop_in("[Service]\nExecCondition=/bin/sleep 2\n"):
        site.start(wait=False)
        told = site.cli("status", "sglang-kimi")
        assert (told["phase"], told["text"], told["since"]) == ("pre-start", "its pre-start hook begins", None)
        followed = site.machine.run([*FOLLOW]).stdout.splitlines()
    assert followed[0] == "pre-start: its pre-start hook begins"
    assert followed[-1].startswith("ready: ")


def test_a_start_is_not_told_as_the_hook_before_it_that_was_cut_off(site: Site) -> None:
    """Killed in the middle of a sweep: what it said last stands in the state file."""
    site.plant("stubborn", "--gpu", "0", "--uvm", "--memory", "0=1073741824", "--daemonize", "--ignore-term")
    site.start(wait=False)
    site.machine.wait(lambda: site.cli("status", "sglang-kimi")["phase"] == "pre-start", 20, "the hook")
    site.machine.wait(lambda: site.cli("status", "sglang-kimi")["text"] != "its pre-start hook begins", 20, "its words")
    site.machine.run(["systemctl", "kill", "--signal=KILL", UNIT])
    site.wait_state("failed", "activating", timeout=20)
    site.systemctl("stop", check=False)
    site.systemctl("reset-failed", check=False)
    with site.drop_in("[Service]\nExecCondition=/bin/sleep 2\n"):
        site.start(wait=False)
        told = site.cli("status", "sglang-kimi")
    assert (told["phase"], told["text"], told["since"]) == ("pre-start", "its pre-start hook begins", None)


def test_a_dumb_terminal_gets_lines(site: Site) -> None:
    site.configure("--load-seconds", "2")
    with Terminal(inside(site.machine, *START, term="dumb"), width=120) as terminal:
        shown = ended(terminal, 0)
    assert re.match(r"(queued\n)?(pre-start\n)?loading\n(warming\n)?ready\nsglang-kimi.service is active", shown)
    assert "\x1b[1m" not in shown


def test_start_in_a_pipe_is_a_line_for_each_phase(site: Site) -> None:
    site.configure("--load-seconds", "2")
    done = site.machine.run(list(START))
    assert re.fullmatch(r"(queued\n)?(pre-start\n)?loading\n(warming\n)?ready\nsglang-kimi.service is active .*\n", done.stdout)
    assert "(ready: kimi on 8 GPUs" in done.stdout


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("[server]\nengine = 'vlm'\n", 78, "server.command"),
        ("", 75, "the engine exited with status 3"),
    ],
)
def test_a_start_that_fails_ends_with_its_own_status(site: Site, text: str, status: int, words: str) -> None:
    site.configure("--misbehave", "exit-at-once=3")
    if text:
        site.machine.write("/etc/gpu-lifecycle/sglang-kimi.toml", text)
    done = site.machine.run(list(START), check=False)
    assert done.returncode == status
    last, hint = done.stdout.splitlines()[-2:]
    assert last.startswith(f"{UNIT}: not ready (status {status}): ")
    assert words in last
    assert hint == "  gpu-lifecycle why sglang-kimi"


def test_a_tenant_in_the_way_is_named_with_75(site: Site) -> None:
    site.service_holder("tenant", "--gpu", "5", "--uvm", "--memory", f"5={30 * GIB}")
    done = site.machine.run(list(START), check=False)
    assert done.returncode == 75
    assert "systemctl stop tenant.service" in done.stdout
    assert "systemd tries again in 1s" in done.stdout


def test_a_gpu_that_is_missing_gives_69(site: Site) -> None:
    site.machine.write("/etc/gpu-lifecycle/sglang-kimi.toml",
                       site.machine.read("/etc/gpu-lifecycle/sglang-kimi.toml").replace("count = 8", "count = 9"))  # fmt: skip
    done = site.machine.run(list(START), check=False)
    assert done.returncode == 69
    assert "not ready (status 69): refused: " in done.stdout
    assert site.show("ExecMainStatus") == "69"


def test_a_start_that_is_stopped_says_so(site: Site) -> None:
    site.configure("--load-seconds", "20")
    with Terminal(inside(site.machine, *START)) as terminal:
        terminal.until("phase +loading")
        site.stop()
        shown = ended(terminal, 75)
    assert "the start was stopped" in shown


def test_what_cannot_be_started_says_what_to_do(site: Site) -> None:
    machine = site.machine
    done = machine.run(["gpu-lifecycle", "start", "no-such"], check=False)
    assert (done.returncode, "gpu-lifecycle install no-such" in done.stderr) == (2, True)
    done = machine.run(["gpu-lifecycle", "start", "dbus"], check=False)
    assert (done.returncode, "no managed unit" in done.stderr) == (78, True)
    done = machine.run(list(START), check=False, user="alice")
    assert (done.returncode, "run it as root" in done.stderr) == (77, True)
    machine.run(["systemctl", "mask", "masked.service"])
    done = machine.run(["gpu-lifecycle", "start", "masked"], check=False)
    assert (done.returncode, "systemctl unmask masked" in done.stderr) == (78, True)
    assert site.state() == "inactive"


def test_a_dependency_that_fails_is_not_called_a_run(site: Site) -> None:
    with site.drop_in("[Unit]\nRequires=no-such-thing.service\nAfter=no-such-thing.service\n"):
        done = site.machine.run(list(START), check=False)
    assert done.returncode != 0
    assert "no-such-thing" in done.stderr or "a unit that it needs has failed" in done.stdout


def test_status_is_a_table_on_a_terminal_and_quick(site: Site) -> None:
    site.start()
    with Terminal(inside(site.machine, "gpu-lifecycle", "status", user="alice")) as terminal:
        shown = ended(terminal, 0)
    assert re.search(r"phase +ready for ", shown)
    assert re.search(r"THIS UNIT'S\n +0 +█+", shown)
    assert min(_cost(site) for _ in range(5)) < 0.25


def _cost(site: Site) -> float:
    """Seconds of processor time of one plain ``status``: on a machine with other work, the clock says more of that work."""
    script = "gpu-lifecycle status sglang-kimi >/dev/null; times"
    spent = site.machine.run(["sh", "-c", script]).stdout.splitlines()[1]  # of the children (dash(1))
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", spent))


def test_top_shows_gpus_holders_and_units_at_any_size(site: Site) -> None:
    site.configure("--memory-per-gpu", str(72 * GIB))
    site.start()
    with Terminal(inside(site.machine, *TOP)) as terminal:
        shown = terminal.until(r"HOLDERS \(9\)")
        assert terminal.about("alternate_on") == "1"
        assert terminal.about("cursor_flag") == "0"
        assert len(re.findall(r"^[0-7] █+·+ 72/140 GiB$", shown, re.MULTILINE)) == 8
        assert re.search(r"^sglang-kimi.service +ready for ", shown, re.MULTILINE)
        assert len(re.findall("72 GiB spare ", shown)) == 8
        assert "q: quit" in shown
        terminal.resize(120, 40)
        terminal.until(r"unit sglang-kimi.service +sglang::sche")
        terminal.resize(60, 14)
        terminal.until(r"\nq: quit[^\n]*\n*$")
        assert re.search(r"HOLDERS \(9\)", terminal.screen())
        terminal.type("Down", "Down")
        terminal.until(r"\n> \d+")
        terminal.type("q")
        ended(terminal, 0)


def test_top_reaps_by_the_sweep_after_r_and_y_only(site: Site) -> None:
    orphan = site.orphan()
    site.service_holder("tenant", "--gpu", "5", "--uvm", "--memory", f"5={30 * GIB}")
    with Terminal(inside(site.machine, *TOP), width=100) as terminal:
        terminal.until(rf"{orphan} .* reap +orphan")
        terminal.type("Down", "Down", "r")
        terminal.until("is not reaped: conflict")
        terminal.type("Up", "r", "y")  # typed ahead: nobody has read the question yet
        terminal.until("y: sweep for sglang-kimi, which ends 1 process")
        time.sleep(1)
        assert site.alive(orphan)
        terminal.type("n")
        terminal.until("nothing was done")
        assert site.alive(orphan)
        assert not site.events("sweep-started")
        terminal.type("r")
        terminal.until("y: sweep for sglang-kimi")
        terminal.type("y")
        terminal.until("Enter: back to top")
        assert terminal.about("alternate_on") == "0"
        assert terminal.about("cursor_flag") == "1"
        assert not site.alive(orphan)
        terminal.type("Enter")
        terminal.until(r"HOLDERS \(1\)[^$]*ended with status 75")
        terminal.type("q")
        ended(terminal, 0)
    assert [event["OBJECT_PID"] for event in site.events("holder-reaped")] == [str(orphan)]


def test_top_is_read_only_for_whoever_is_not_root(site: Site) -> None:
    orphan = site.orphan()
    with Terminal(inside(site.machine, *TOP, user="alice"), width=100) as terminal:
        terminal.until(r"q: quit")
        terminal.type("Down", "r")
        terminal.until("only root may reap")
        terminal.type("y")
        time.sleep(1)
        terminal.type("q")
        ended(terminal, 0)
    assert site.alive(orphan)


@pytest.mark.parametrize(("key", "number", "status"), [("C-c", "", 130), ("", "TERM", 143), ("", "HUP", 129)])
def test_top_gives_the_terminal_back(site: Site, key: str, number: str, status: int) -> None:
    with Terminal(inside(site.machine, *TOP)) as terminal:
        terminal.until(r"sglang-kimi.service +down")
        terminal.type("C-z")  # would leave a terminal in foreign modes
        if key:
            terminal.type(key)
        else:
            site.machine.run(["pkill", f"-{number}", "-f", r"^[^ ]*python.*gpu-lifecycle top"])
        ended(terminal, status)


def test_top_does_not_wait_for_a_driver_that_hangs(site: Site) -> None:
    site.machine.nvml.set("delay nvmlDeviceGetMemoryInfo_v2 600000")
    with Terminal(inside(site.machine, *TOP)) as terminal:
        terminal.until("looking at the GPUs")
        began = time.monotonic()
        terminal.type("q")
        ended(terminal, 0)
        assert time.monotonic() - began < 8


def test_top_says_what_to_use_where_it_cannot_draw(site: Site) -> None:
    done = site.machine.run(list(TOP), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "gpu-lifecycle holders" in done.stderr
    with Terminal(inside(site.machine, *TOP, term="dumb"), width=200) as terminal:
        assert "gpu-lifecycle holders" in ended(terminal, 2)
    with Terminal(inside(site.machine, *TOP, "no-such")) as terminal:
        assert "it has no config file" in ended(terminal, 2)
