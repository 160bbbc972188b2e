"""The settings classes as tests walk them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hearth.config.fields import Section, within
from hearth.config.rendering import schema
from hearth.config.settings import Settings


def kind_of(section: type[Section], name: str) -> object:
    """What a field holds, where it is not None."""
    return within(section, name)


def entry_of(section: type[Section], name: str) -> object:
    """What a list or mapping in a field holds; None for any other field."""
    return within(within(section, name), "")


def section_in(kind: object) -> type[Section] | None:
    """The kind as a section; None for any other."""
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def settings_classes(section: type[Section] = Settings) -> Iterator[type[Section]]:
    """Every class of which the whole tree may hold an instance."""
    yield section
    for name in section.model_fields:
        for kind in (kind_of(section, name), entry_of(section, name)):
            inner = section_in(kind)
            if inner is not None:
                yield from settings_classes(inner)


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers that a field takes; `above`: more than `low`."""

    low: float
    high: float
    above: bool


def limits_of(section: type[Section], name: str) -> Limits:
    """What the schema says of a field that holds a number, or numbers by name."""
    node: dict[str, Any] = schema()["$defs"][section.__name__]["properties"][name]
    while "maximum" not in node:
        node = node["anyOf"][0] if "anyOf" in node else node["additionalProperties"]
    above = "exclusiveMinimum" in node
    return Limits(low=node["exclusiveMinimum" if above else "minimum"], high=node["maximum"], above=above)


NUMBERS = [
    (section, name)
    for section in dict.fromkeys(settings_classes())
    for name in section.model_fields
    if {kind_of(section, name), entry_of(section, name)} & {int, float}
]
"""Every field that holds a number."""
