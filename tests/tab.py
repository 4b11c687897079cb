"""A shell on a terminal of its own, and what its Tab key makes of a line.

Run as a program it needs nothing but Python: ``tab.py SHELL COMMANDS FOLDER`` has the shell read COMMANDS first, then completes
the lines of standard input. For each it prints what the shell offers, as a JSON list. FOLDER is its home.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Self

SECONDS = 20.0
PROMPT = "ready>"
BEGIN, END = "[[", "]]"

# Tab inserts all that fits, so that one line shows it; a key of ours then shows the line.
BASH = f"""
PS1='{PROMPT}' PS2= PROMPT_COMMAND=
bind 'set enable-bracketed-paste off'
bind 'set bell-style none'
bind '"\\t": insert-completions'
show() {{ printf '%s%s%s\\n' '{BEGIN}' "$READLINE_LINE" '{END}'; READLINE_LINE=; }}
bind -x '"\\C-x\\C-n": show'
"""
ZSH = f"""
autoload -Uz compinit && compinit -u -D
PROMPT='{PROMPT}' RPROMPT= PROMPT2=
unsetopt zle_bracketed_paste prompt_sp 2>/dev/null
setopt no_beep no_list_beep
zstyle ':completion:*' completer _all_matches _complete
zstyle ':completion:*' insert true
zstyle ':completion:*' old-matches false
bindkey -e
bindkey '\\t' complete-word
show() {{ print -r -- '{BEGIN}'"$BUFFER"'{END}'; BUFFER=; zle reset-prompt }}
zle -N show
bindkey '^X^N' show
"""


class Shell:
    """A shell, interactive; as a context it is ended and reaped."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.seen = ""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(words[0], words, environment)
        termios.tcsetwinsize(self.terminal, (50, 500))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def until(self, pattern: str) -> str:
        """What the shell shows up to and with ``pattern``; TimeoutError, with what it showed, where that does not come."""
        deadline = time.monotonic() + SECONDS
        while not (match := re.search(pattern, self.seen)):
            if not select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no {pattern!r} in {self.seen!r}")
            self.seen += os.read(self.terminal, 65536).decode(errors="replace")
        shown, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return shown


def completed(shell: Shell, line: str) -> list[str]:
    """What Tab offers at the end of ``line``, in order."""
    shell.type(f"{line}\t\x18\x0e")
    shown = shell.until(re.escape(BEGIN) + r"[^\r\n]*" + re.escape(END) + r"[\r\n]")
    text = shown.rpartition(BEGIN)[2].partition(END)[0]
    shell.until(re.escape(PROMPT))
    before = line.rpartition(" ")[0]
    return [] if text == line else text[len(before) :].split()


def ask(name: str, lines: list[str], setup: str, home: str) -> Iterator[list[str]]:
    """What the shell called ``name`` offers for each of ``lines``, after it has read the commands ``setup``."""
    environment = {"PATH": os.environ["PATH"], "HOME": home, "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    file = os.path.join(home, f"setup.{name}")
    with open(file, "w", encoding="utf-8") as script:
        script.write({"bash": f"{setup}\n{BASH}", "zsh": f"{ZSH}\n{setup}", "fish": setup}[name])
    yield from _ask_fish(lines, file, environment) if name == "fish" else _press_tab(name, lines, file, environment)


def _ask_fish(lines: list[str], file: str, environment: dict[str, str]) -> Iterator[list[str]]:
    """fish answers without a terminal: ``complete -C`` is what its Tab key asks."""
    for line in lines:
        words = ["fish", "-c", f"source {file}; complete -C $argv[1]", line]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True)
        yield [row.partition("\t")[0] for row in done.stdout.splitlines()]


def _press_tab(name: str, lines: list[str], file: str, environment: dict[str, str]) -> Iterator[list[str]]:
    words = {"bash": ["bash", "--noprofile", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"]}[name]
    with Shell(words, environment) as shell:
        shell.type(f" . {file}; echo done$((40+2))\r")
        shell.until("done42[\r\n]+")
        shell.until(re.escape(PROMPT))
        for line in lines:
            yield completed(shell, line)


def main() -> None:
    name, setup, home = sys.argv[1:]
    for found in ask(name, sys.stdin.read().splitlines(), setup, home):
        print(json.dumps(found))


if __name__ == "__main__":
    main()
