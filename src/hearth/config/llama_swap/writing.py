"""The imported configuration as YAML, with a comment for all that it does not have of the file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from hearth.config.document import shown
from hearth.config.llama_swap.importing import Imported
from hearth.config.llama_swap.source import Note
from hearth.config.rendering import plain_yaml

_WIDTH = 100
_STEP = "  "


def written(result: Imported, source: str) -> str:
    """The whole file; `source`: what it was made of."""
    of_models: dict[str, list[Note]] = {}
    others: list[Note] = []
    for note in result.notes:
        name = result.names.get(str(note.path[1])) if note.path[:1] == ("models",) else None
        (others if name is None else of_models.setdefault(name, [])).append(note)
    lines = [*_comment(f"Written by `hearth config import` from {shown(source)}.", "")]
    if others:
        lines += ["#", *_comment("Not carried over as it was:", ""), *_comments(others, "")]
    for section, entries in result.settings.items():
        lines += [""]
        if section != "models" or not isinstance(entries, dict):
            lines += plain_yaml({section: entries}, _WIDTH).splitlines()
            continue
        lines += ["models:"]
        for name, value in entries.items():
            lines += _comments(of_models.get(name, ()), _STEP)
            lines += textwrap.indent(plain_yaml({name: value}, _WIDTH - 2), _STEP).splitlines()
    return "\n".join(lines) + "\n"


def _comments(notes: Iterable[Note], indent: str) -> Iterator[str]:
    for note in notes:
        yield from _comment(f"line {note.line}: {note.place}: {note.text}", indent)


def _comment(text: str, indent: str) -> Iterator[str]:
    printable = "".join(each if each.isprintable() else "?" for each in text)
    yield from textwrap.wrap(
        printable,
        _WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
