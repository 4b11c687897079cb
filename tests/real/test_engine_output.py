"""Real pipes and a real datagram socket in the journal's place: floods, half lines, a journal that does not listen."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_lifecycle.jobs.output import EngineOutput, pack_output, unpack_output
from gpu_lifecycle.rules.output import Levels, Line
from gpu_lifecycle.rules.phases import Load, Step
from gpu_lifecycle.rules.secrets import Secrets
from gpu_lifecycle.rules.signatures import Sign
from gpu_lifecycle.system.output import JournalSink, Left, Output

FIELDS = {"SYSLOG_IDENTIFIER": "kimi", "GPU_LIFECYCLE_UNIT": "kimi.service"}


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taker:
        taker.bind(str(tmp_path / "socket"))
        taker.setblocking(False)
        yield taker


def entries(taker: socket.socket) -> list[dict[str, bytes]]:
    found = []
    while True:
        try:
            found.append(parsed(taker.recv(1 << 20)))
        except BlockingIOError:
            return found


def parsed(data: bytes) -> dict[str, bytes]:
    fields = {}
    while data:
        name, separator, rest = data.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
            data = rest
        else:
            assert separator
            key, size = name, int.from_bytes(rest[:8], "little")
            value, data = rest[8 : 8 + size], rest[9 + size :]
        fields[key.decode()] = value
    return fields


def run(output: Output, code: str, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> float:
    """An engine that is this Python code; returns how long it took to end."""

    async def main() -> float:
        ends = output.open()
        began = time.monotonic()
        with subprocess.Popen([sys.executable, "-c", code], stdout=ends[0], stderr=ends[1]) as engine:  # noqa: ASYNC220
            for end in ends:
                os.close(end)
            output.begin(asyncio.get_running_loop())
            while engine.poll() is None and time.monotonic() - began < seconds:
                await asyncio.sleep(0.01)
                meanwhile()
            took = time.monotonic() - began
            engine.kill()
        output.drain()
        return took

    return asyncio.run(main())


def test_lines_of_both_streams_with_their_fields(journald: socket.socket) -> None:
    output = Output(JournalSink(FIELDS, journald.getsockname()))
    run(output, "import os; os.write(1, b'a\\n\\xff=\\n'); os.write(2, b'ERROR: b\\nhalf')", 10)
    output.close()
    found = entries(journald)
    assert sorted(entry["MESSAGE"] for entry in found) == [b"ERROR: b", b"a", b"half", b"\xff="]
    assert {entry["MESSAGE"]: entry["PRIORITY"] for entry in found}[b"ERROR: b"] == b"3"
    assert all((entry["SYSLOG_IDENTIFIER"], entry["GPU_LIFECYCLE_UNIT"]) == (b"kimi", b"kimi.service") for entry in found)
    assert all(entry["PRIORITY"] == b"6" for entry in found if entry["MESSAGE"] != b"ERROR: b")


def test_a_field_that_changes_changes_for_the_lines_after_it(journald: socket.socket) -> None:
    sink, levels = JournalSink(FIELDS, journald.getsockname()), Levels()
    for phase in ("loading", "loading", "r\ne", "", "loading"):
        sink.fields["GPU_LIFECYCLE_PHASE"] = phase
        sink.put(b"line", levels)
    del sink.fields["GPU_LIFECYCLE_PHASE"]
    sink.put(b"line", levels)
    sink.close()
    found = entries(journald)
    assert [entry.get("GPU_LIFECYCLE_PHASE") for entry in found] == [b"loading", b"loading", b"r\ne", b"", b"loading", None]
    assert all(entry["GPU_LIFECYCLE_UNIT"] == b"kimi.service" for entry in found)


def test_a_traceback_is_an_error_as_a_whole_and_of_one_stream(journald: socket.socket) -> None:
    output = Output(JournalSink(FIELDS, journald.getsockname()))
    code = "import os, traceback as t\ntry: open('/none')\nexcept OSError: t.print_exc()\nos.write(1, b'  fine')"
    run(output, code, 10)
    output.close()
    found = entries(journald)
    assert {entry["PRIORITY"] for entry in found if entry["MESSAGE"] != b"  fine"} == {b"3"}
    assert next(entry["PRIORITY"] for entry in found if entry["MESSAGE"] == b"  fine") == b"6"


def test_a_bar_is_heard_at_once_and_is_one_entry(journald: socket.socket) -> None:
    heard: list[Line] = []
    output = Output(JournalSink({}, journald.getsockname()), heard.append)
    run(output, "import os, time\nfor n in range(5): os.write(2, b'\\r%d/4' % n); time.sleep(0.05)\nos.write(2, b'\\n')", 10)
    output.close()
    assert [entry["MESSAGE"] for entry in entries(journald)] == [b"4/4"]
    assert Line(b"2/4", whole=False) in heard


def test_a_flood_comes_through_whole(journald: socket.socket) -> None:
    output = Output(JournalSink({}, journald.getsockname()))
    got: list[dict[str, bytes]] = []
    took = run(output, "for n in range(30000): print('line', n)", 30, lambda: got.extend(entries(journald)))
    assert output.journal
    while not output.journal.flush():
        got += entries(journald)
    got += entries(journald)
    assert [entry["MESSAGE"] for entry in got] == [b"line %d" % n for n in range(30000)]
    assert took < 25
    assert output.lost() == 0
    assert len(output.tail()) == 400
    assert output.tail()[-1] == "line 29999"
    output.close()


def test_a_journal_that_takes_nothing_holds_nobody_up(journald: socket.socket) -> None:
    """The engine ends as if all were well; what did not fit is counted, and what waits is bounded."""
    output = Output(JournalSink({}, journald.getsockname()))
    took = run(output, "for n in range(2000): print('x' * 10000)", 30)
    assert took < 25
    assert output.journal
    assert output.journal.size <= 4 << 20
    waiting, taken = len(output.journal.waiting), len(entries(journald))
    lost = output.lost()
    assert lost > 0
    assert taken + waiting + lost == 2000
    output.close()


def test_no_journal_at_all(tmp_path: Path) -> None:
    output = Output(JournalSink({}, str(tmp_path / "nobody")))
    assert run(output, "print('a')", 10) < 9
    output.close()
    assert output.lost() == 1


def test_another_reader_goes_on_in_the_middle(journald: socket.socket) -> None:
    """As in a reload: neither a half line, nor what lies in the pipe, nor an entry that waits is lost."""
    path = journald.getsockname()
    first = Output(JournalSink({}, path))
    ends = first.open()
    os.write(ends[0], b"one\nha")
    first.drain()
    first.rest()
    os.write(ends[0], b"lf\n")
    assert first.journal
    first.journal.waiting.append(b"MESSAGE=waits\n")
    left = first.leave()
    assert isinstance(left, Left)
    first.keep_open()
    assert all(os.get_inheritable(fd) for fd in left.fds)
    first.journal.socket.close()
    second = Output(JournalSink({}, path, left.waiting))
    second.adopt(left)
    assert not any(os.get_inheritable(fd) for fd in left.fds)
    second.drain()
    os.write(ends[1], b"end\n")
    for end in ends:
        os.close(end)
    second.close()
    assert [entry["MESSAGE"] for entry in entries(journald)] == [b"one", b"waits", b"half", b"end"]
    assert second.tail() == ["one", "half", "end"]


def test_a_traceback_that_a_reload_cuts_is_an_error_as_a_whole(journald: socket.socket) -> None:
    """And the cause is found in it, wherever the cut is; the other stream is in no traceback."""
    said = [b"Traceback (most recent call last):\n", b"  frame\n", b"torch.OutOfMemoryError: CUDA out of memory.\n"]
    for cut in range(len(said) + 1):
        first = output_to(journald)
        ends = first.open()
        os.write(ends[1], b"".join(said[:cut]))
        first.drain()
        first.rest()
        packed = json.loads(json.dumps(pack_output(first)))
        assert first.journal
        first.journal.socket.close()
        second = output_to(journald)
        second.adopt(unpack_output(packed))
        second.signs = tuple(Sign(*sign) for sign in packed["signs"])
        os.write(ends[1], b"".join(said[cut:]))
        os.write(ends[0], b"  no frame\n")
        for end in ends:
            os.close(end)
        second.close()
        found = [(entry["MESSAGE"] + b"\n", entry["PRIORITY"]) for entry in entries(journald)]
        assert sorted(found) == sorted([*((line, b"3") for line in said), (b"  no frame\n", b"6")]), cut
        assert [sign.code for sign in second.current()] == ["cuda-oom"]
        assert second.telling() == "torch.OutOfMemoryError: CUDA out of memory."


def output_to(journald: socket.socket) -> EngineOutput:
    return EngineOutput(JournalSink({}, journald.getsockname()), "sglang", Load(), Secrets())


def test_a_line_that_says_it_serves_ends_the_pause_and_no_other_does(journald: socket.socket) -> None:
    async def pauses(output: EngineOutput) -> list[float]:
        taken = []
        for _ in range(2):
            began = time.monotonic()
            await output.pause(2)
            taken.append(time.monotonic() - began)
        return taken

    steps: list[Step] = []
    for line, ends in (("Load weight begin. avail mem=1 GB", False), ("The server is fired up and ready to roll!", True)):
        output = output_to(journald)
        output.moved = lambda load: steps.append(load.step)
        run(output, f"import os; os.write(2, {line.encode() + bytes([10])!r})", 10)
        assert (output.serving() is not None) == ends
        first, second = asyncio.run(pauses(output))
        assert (first < 1.5) == ends
        assert second >= 2, "it is said once"
        output.close()
    assert steps == [Step.WEIGHTS, Step.SERVING]


def test_what_an_older_version_hands_over_says_nothing_of_tracebacks() -> None:
    assert unpack_output({"fds": [7, 8]}).inside == ()
    with pytest.raises(ValueError, match="not as this version"):
        unpack_output({"inside": [["TP0", "many", True]]})


def test_the_first_telling_line_and_not_its_echo(journald: socket.socket) -> None:
    output = Output(JournalSink({}, journald.getsockname()))
    said = (
        "Traceback\\ntorch.OutOfMemoryError: CUDA out of memory.\\nReceived sigquit from a child process\\nValueError: later\\n"
    )
    run(output, f"import os; os.write(2, b'{said}')", 10)
    assert output.telling() == "torch.OutOfMemoryError: CUDA out of memory."
    output.close()


def test_keys_are_not_passed_on_however_a_line_is_cut(journald: socket.socket) -> None:
    """Neither to the journal, nor into what is kept, nor as the reason of a failure."""
    output = Output(JournalSink({}, journald.getsockname()), secrets=Secrets(["s3cret"]))
    parts = [b"a s3c", b"ret b\n", b"api_key='unknown'\n", b"ValueError: bad s3cret\n", b"s3cr"]
    run(output, f"import os, time\nfor part in {parts}: os.write(1, part); time.sleep(0.05)", 10)
    output.close()
    shown = [b"a *** b", b"api_key=***", b"ValueError: bad ***", b"s3cr"]
    assert [entry["MESSAGE"] for entry in entries(journald)] == shown
    assert output.tail() == [line.decode() for line in shown]
    assert output.telling() == "ValueError: bad ***"


def test_a_key_that_a_reload_cuts_in_two(journald: socket.socket) -> None:
    first = Output(JournalSink({}, journald.getsockname()), secrets=Secrets(["s3cret"]))
    ends = first.open()
    os.write(ends[0], b"key: s3c")
    first.drain()
    first.rest()
    left = first.leave()
    assert first.journal
    first.journal.socket.close()
    second = Output(JournalSink({}, journald.getsockname()), secrets=Secrets(["s3cret"]))
    second.adopt(left)
    os.write(ends[0], b"ret.\n")
    for end in ends:
        os.close(end)
    second.close()
    assert [entry["MESSAGE"] for entry in entries(journald)] == [b"key: ***."]


def test_in_the_foreground_keys_are_not_passed_on_either(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output(None, secrets=Secrets(["s3cret"]))
    run(output, "import os, time; os.write(1, b'\\r1% s3'); time.sleep(0.1); os.write(1, b'cret\\r2%\\nhalf s3c')", 10)
    output.close()
    assert capfd.readouterr().out == "\r1% ***\r2%\nhalf s3c"


def test_in_the_foreground_the_bytes_go_on_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output(None)
    run(output, "import os; os.write(1, b'\\r1%\\r2%\\n\\0half'); os.write(2, b'\\x1b[31mred')", 10)
    output.close()
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("\r1%\r2%\n\0half", "\x1b[31mred")
