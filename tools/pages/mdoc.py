"""Text in the mdoc language of man pages (mdoc(7)), such that ``mandoc -Tlint`` has nothing to say."""

from __future__ import annotations

import re
import textwrap

WIDTH = 78
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"(-])|(?<=[.!?])\s+")


def escape(text: str) -> str:
    """Text without meaning for roff; what is not ASCII by its code point."""
    text = text.replace("\\", "\\e")
    return "".join(character if character.isascii() else f"\\[u{ord(character):04X}]" for character in text)


def word(text: str) -> str:
    """One argument of a macro."""
    text = escape(text).replace('"', '""')
    if len(text) <= 3 or text[:1] in ".'":  # else it could be a macro's name, or punctuation
        text = f"\\&{text}"
    return f'"{text}"' if " " in text or '"' in text else text


def prose(text: str) -> str:
    """A paragraph: each sentence on a line of its own, long ones folded; an empty line begins another one."""
    lines: list[str] = []
    for number, part in enumerate(text.split("\n")):
        lines += [".Pp"] if number else []
        for sentence in _SENTENCE.split(" ".join(part.split())):
            folded = textwrap.wrap(escape(sentence), WIDTH, break_long_words=False, break_on_hyphens=False)
            lines += [f"\\&{line}" if line[0] in ".'" else line for line in folded]
    return "\n".join(lines)


def page(name: str, section: int, date: str, about: str, body: list[str]) -> str:
    """A whole page, from its title on."""
    head = [
        '.\\" Made from the code by `make docs`: do not edit.',
        f".Dd {date}",
        f".Dt {name.upper()} {section}",
        ".Os",
        ".Sh NAME",
        f".Nm {name}",
        f".Nd {escape(about.rstrip('.'))}",
    ]
    return "\n".join([*head, *body]) + "\n"


def see_also(pages: list[tuple[str, int]]) -> list[str]:
    """The section that ends a page, in the order that mdoc(7) wants."""
    ordered = sorted(pages, key=lambda item: (item[1], item[0].lower()))
    marks = [","] * (len(ordered) - 1) + [""]
    rows = (f".Xr {name} {number} {mark}".rstrip() for (name, number), mark in zip(ordered, marks, strict=True))
    return [".Sh SEE ALSO", *rows]
