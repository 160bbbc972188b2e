"""One section of the settings over another: what the upper one states goes before the lower one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from hearth.config.fields import Section

S = TypeVar("S", bound=Section)


def overlaid(base: S, over: Section, *, names: tuple[str, ...] | None = None) -> S:
    """`base` with what is written in `over`; entries of mappings are joined, lists are replaced.
    `names`: the fields that count, else all.
    """
    stated = over.model_fields_set if names is None else over.model_fields_set.intersection(names)
    changes = {name: _joined(getattr(base, name), getattr(over, name)) for name in stated}
    return base.model_copy(update=changes)


def _joined(below: object, above: object) -> object:
    if isinstance(below, Section) and isinstance(above, Section):
        return overlaid(below, above)
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        joined = {name: _joined(below.get(name), each) for name, each in above.items()}
        return MappingProxyType({**below, **joined})
    return above


def stated_paths(
    section: Section, path: tuple[str, ...] = (), *, names: tuple[str, ...] | None = None
) -> Iterator[tuple[str, ...]]:
    """The places of all single values, lists and entries of mappings that are written in it."""
    stated = (
        section.model_fields_set if names is None else section.model_fields_set.intersection(names)
    )
    for name in stated:
        yield from _paths_in(getattr(section, name), (*path, name))


def _paths_in(value: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(value, Section):
        yield from stated_paths(value, path)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _paths_in(each, (*path, str(name)))
    else:
        yield path
