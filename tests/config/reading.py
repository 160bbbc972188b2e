"""A text as the owner's file, and the settings as tests walk them: by the classes, and by what the
schema says of every value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from hearth.config.fields import Section, within
from hearth.config.loading import parse_config
from hearth.config.rendering import schema
from hearth.config.settings import Settings
from hearth.errors import ConfigError
from tests.support.fields import Fields

Node = Fields
_SCHEMA = schema()
NEEDED = {
    "name": "a",
    "sha256": "0" * 64,
    "task_type": "a",
    "cron": "0 6 * * *",
    "input_usd": 1,
    "output_usd": 1,
    "starts_with": "Write a title",
    "kind": "llama_server",
    "url": "http://gpu.lan",
    "command": ["serve"],
}
"""What must stand beside other values of a section."""


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
            if inner := section_in(kind):
                yield from settings_classes(inner)


def _beside(others: Node, name: str, around: Callable[[Any], Any], value: object) -> Any:
    return around(others | {name: value})


def values(
    node: Node = _SCHEMA, around: Callable[[Any], Any] = lambda value: value
) -> Iterator[tuple[Node, Callable[[Any], Any]]]:
    """What the schema says of each single value, with the document in which just that one is
    given.
    """
    while "$ref" in node or "anyOf" in node:
        node = (
            _SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]
            if "$ref" in node
            else node["anyOf"][0]
        )
    if "properties" in node:
        needed = {name: value for name, value in NEEDED.items() if name in node["properties"]}
        # of the sections in a mode, some settings are refused that are not in the schema's way
        for name in node["properties"].keys() - {"key", "modes"}:
            yield from values(node["properties"][name], partial(_beside, needed, name, around))
    elif inner := node.get("items"):
        yield from values(inner, lambda value: around([value]))
    elif inner := node.get("additionalProperties"):
        yield from values(inner, lambda value: around({"a": value}))
    else:
        yield node, around


def settings_of(text: str, **environ: str) -> Settings:
    return parse_config(text, source="f.yaml", environ=environ).settings


def problems_of(text: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="f.yaml", environ=environ)
    return caught.value.problems


def only_problem_of(text: str, **environ: str) -> str:
    (problem,) = problems_of(text, **environ)
    return problem
