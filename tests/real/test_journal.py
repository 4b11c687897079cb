"""Without a journal an event is a line on standard error; what a text from outside may not do, it may not do there."""

from __future__ import annotations

import os

import pytest

from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.system.journal import SOCKET, Journal

no_journal = pytest.mark.skipif(os.path.exists(SOCKET), reason="a journal runs here: nothing of a test belongs into it")


@no_journal
@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Event("ready", "ready: kimi"), "ready: kimi\n"),
        (Event("suspect", "check 1 of 3"), "warning: check 1 of 3\n"),
        (Event("engine-failed", "lost\nerror: forged \x1b[2J"), "error: lost\\x0aerror: forged \\x1b[2J\n"),
        (Event("ready", "Größe"), "Größe\n"),
    ],
)
@pytest.mark.parametrize("terminal", [None, True, False])
def test_a_line(event: Event, line: str, terminal: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal("a.service", "r1", terminal=terminal)
    assert not journal.native
    journal.tell(event)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", line)


def test_under_systemd_nothing_is_said_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    assert Journal("a.service").terminal is not os.path.exists(SOCKET)
    assert Journal("a.service", terminal=True).terminal
    monkeypatch.delenv("JOURNAL_STREAM")
    assert Journal("a.service").terminal
