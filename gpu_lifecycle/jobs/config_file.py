"""``config init`` and ``config show``: a commented config to begin with, and the one that holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from gpu_lifecycle.errors import Exit, LifecycleError, NotPermittedError, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.jobs.printed import print_json
from gpu_lifecycle.jobs.settings import load
from gpu_lifecycle.rules.origins import Origin, origins, said

COLUMN = 36  # where the comments begin, if the values leave room
LONGEST = 80  # what is longer has its comment on the line before


def init(unit: UnitName | None, engine: str, output: str | None) -> int:
    """Prints a commented config for ``engine``, or writes it to the file ``output``, which must not be there yet.

    Raises UsageError where it is, NotPermittedError and LifecycleError where it cannot be written.
    """
    from gpu_lifecycle.rules.examples import example_config

    text = example_config(engine, unit.name if unit else "")
    if output is None:
        print(text, end="")
        return Exit.OK
    _write_new(output, text)
    print(f"wrote {output}")
    return Exit.OK


def _write_new(path: str, text: str) -> None:
    """A file that is whole or not there: a link to the finished draft, which the kernel refuses where a name is taken."""
    draft = f"{path}.{os.getpid()}.new"
    try:
        with open(draft, "x", encoding="utf-8") as file:
            file.write(text)
        try:
            os.link(draft, path)
        finally:
            os.unlink(draft)
    except FileExistsError:
        raise UsageError(f"cannot write {path}: it is there already", hint="move it away, or name another file") from None
    except PermissionError as error:
        raise NotPermittedError(f"cannot write {path}: {error.strerror}", hint="run it through sudo") from None
    except OSError as error:
        hint = f"see `ls -ld {os.path.dirname(path) or '.'}`"
        raise LifecycleError(f"cannot write {path}: {error.strerror}", hint=hint) from None


def show(unit: UnitName, layout: Layout, *, as_json: bool) -> int:
    """Prints every value that holds for ``unit``, and where it comes from. Raises what ``load`` raises."""
    config, text = load(layout, unit)
    file = layout.config(unit)
    found = list(origins(config, text, file))
    if as_json:
        print_json({"schema": 1, "unit": unit.service, "file": file, "values": [_row(item, file) for item in found]})
    else:
        print("\n".join(_lines(found, file)))
    return Exit.OK


def _row(item: Origin, file: str) -> dict[str, Any]:
    return {
        "key": f"{item.section}.{item.key}",
        "value": item.value,
        "hidden": item.hidden,
        "source": str(item.source),
        "file": file if item.line else None,
        "line": item.line,
        "note": item.note or None,
    }


def _lines(found: Iterable[Origin], file: str) -> Iterator[str]:
    """As a config file would have it; what has no value is a comment."""
    for number, (section, items) in enumerate(groupby(found, lambda item: item.section)):
        yield f"\n[{section}]" if number else f"[{section}]"
        for item in items:
            value = f"{item.key} = {item.text}" if item.text else f"# {item.key}: {item.note}"
            place = f"# {said(item, file)}"
            yield f"{value:<{COLUMN}}  {place}" if len(value) <= LONGEST else f"{place}\n{value}"
