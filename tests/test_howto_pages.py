"""The how-to pages can be run: each block says what it is, and what is shown can differ from what comes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.howto import FOLDER, Command, File, Picture, fits, pages, steps

README = FOLDER.parent.parent / "README.md"


def test_blocks() -> None:
    text = """
<!-- picture: orphan -->
```console
# echo a \\
    b
a b
# false
# echo $?
1
```
`/etc/x` (`systemctl edit x`):

```ini
[Unit]
```
Not run by the tests, for there is no host:

```sh
pct set 100
```
"""
    assert list(steps(text)) == [
        Picture("orphan"),
        Command("echo a b", ("a b",)),
        Command("false", ()),
        Command("echo $?", ("1",)),
        File("/etc/x", "[Unit]\n"),
    ]


@pytest.mark.parametrize(
    "text", ["```sh\nrm x\n```\n", "```toml\na=1\n```\n", "```console\nno command\n```\n", "Run it:\n```\nx\n```\n"]
)
def test_a_block_that_says_nothing_of_itself_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="block"):
        list(steps(text))


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        ((), "", True),
        ((), "x\n", False),
        (("a ... c",), "a  b b   c\n", True),
        (("a ... c",), "a b\nc\n", False),
        (("...", "b"), "b\n", True),
        (("a", "...", "b"), "a\n1\n2\nb\n", True),
        (("a", "...", "b"), "a\n1\nb\nc\n", False),
        (("a.c",), "abc\n", False),
        (("a", "b"), "a\n", False),
    ],
)
def test_what_is_shown(shown: tuple[str, ...], real: str, same: bool) -> None:
    assert fits(shown, real) is same


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.stem)
def test_a_page_is_whole(page: Path) -> None:
    text = page.read_text()
    assert list(steps(text))
    assert f"(docs/how-to/{page.name})" in README.read_text()
    assert all((FOLDER / name).exists() for name in re.findall(r"\]\(([^)#:]+\.md)\)", text))
    shown = [line for step in steps(text) if isinstance(step, Command) for line in step.shown]
    assert sum(line.strip() == "..." for line in shown) * 2 <= len(shown), "most of what is shown says something"
