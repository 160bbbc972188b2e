"""Where the value of each setting comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from hearth.types import JsonDict

SettingPath: TypeAlias = tuple[str, ...]
"""Names of sections, entries and settings; a list is one value."""


class Origin(NamedTuple):
    """What says a value: a line of the file, which may name a variable of the environment or be
    that of a mode, or an option of the command. What nothing says is the default.
    """

    source: Literal["file", "environment", "mode", "command line"]
    line: int | None = None


def written_paths(document: object, path: SettingPath = ()) -> Iterator[SettingPath]:
    """The places of all values in a document that are no mapping."""
    if isinstance(document, dict):
        for key, each in document.items():
            yield from written_paths(each, (*path, key))
    elif path:
        yield path


def origins_shown(origins: Mapping[SettingPath, Origin]) -> list[JsonDict]:
    """As a page shows them."""
    return [
        {"path": list(path), "from": origin.source, "line": origin.line}
        for path, origin in origins.items()
    ]
