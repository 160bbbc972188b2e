"""Every setting as a table, from the JSON Schema that editors use, and so from the classes that
check the owner's file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from docs_build.markdown import code, linked, one_of, table
from hearth.config.rendering import schema

_INTRO = """# Every setting

What may stand in `config/llm_gateway.yaml`, made from the classes that read it. `NAME` stands for a
name of your choice, `[]` for the entries of a list. *hot*: a saved edit applies it within a second;
*restart*: the next start does. How an edit comes into force, and what is refused:
[Configuration](../configuration.md). """

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of the file; `path` is the whole way to it, `takes` and `default` are Markdown."""

    path: str
    takes: str
    default: str
    mode: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Keys that stand under one heading; `path` is empty for those at the top of the file."""

    path: str
    text: str
    settings: tuple[Setting, ...]


def sections() -> tuple[Section, ...]:
    """All of them, in the order of the file."""
    tree = schema()
    return tuple(each for each in _Walk(tree["$defs"]).sections("", tree, "") if each.settings)


def settings_page() -> str:
    """The page."""
    return "\n".join([_INTRO, *(_rendered(each) for each in sections())])


def _rendered(section: Section) -> str:
    rows = [
        (_name(each), each.default, f"{linked(each.text)} Takes {each.takes}; *{each.mode}*.")
        for each in section.settings
    ]
    title = section.path or "At the top"
    listed = table(("key", "default", "what it does"), rows)
    return f"## {title}\n\n{linked(section.text)}\n\n{listed}\n"


def _name(setting: Setting) -> str:
    """The key, with an anchor that is the whole way to it."""
    return f"{code(setting.path.rpartition('.')[2])}{{ #{setting.path.replace('[]', '')} }}"


class _Walk:
    """Through the schema, references followed."""

    def __init__(self, definitions: Mapping[str, Node]) -> None:
        self._definitions = definitions

    def sections(self, path: str, node: Node, text: str) -> Iterator[Section]:
        """The section that a node is, and those below it."""
        plain = self._plain(node)
        properties: Mapping[str, Node] = plain.get("properties", {})
        required = plain.get("required", ())
        places = {name: f"{path}.{name}".lstrip(".") for name in properties}
        leaves = (
            self._setting(places[name], each, required=name in required)
            for name, each in properties.items()
            if not self._inner(each)
        )
        yield Section(path=path, text=text, settings=tuple(leaves))
        if path == "modes.NAME":  # the sections in a mode are those of the file once more
            return
        for name, each in properties.items():
            if inner := self._inner(each):
                yield from self.sections(places[name], inner, inner.get("description", ""))
            elif entry := self._entry(each):
                place = (
                    f"{places[name]}[]"
                    if _kind(self._plain(each)) == "array"
                    else f"{places[name]}.NAME"
                )
                yield from self.sections(place, entry, entry.get("description", ""))

    def _setting(self, path: str, node: Node, *, required: bool) -> Setting:
        text, _, mode = node.get("description", "").rpartition(". ")
        default = "required" if required else _value(node.get("default"))
        return Setting(
            path=path, takes=self._takes(node), default=default, mode=mode, text=f"{text}."
        )

    def _plain(self, node: Node) -> Node:
        """What a value that is not null must look like."""
        if "$ref" in node:
            return self._plain(self._definitions[node["$ref"].rpartition("/")[2]])
        choices = [each for each in node.get("anyOf", ()) if each.get("type") != "null"]
        return self._plain(choices[0]) if choices else node

    def _inner(self, node: Node) -> Node | None:
        plain = self._plain(node)
        return plain if "properties" in plain else None

    def _entry(self, node: Node) -> Node | None:
        """The section that each entry of a list or mapping is."""
        plain = self._plain(node)
        inside = plain.get("items") or plain.get("additionalProperties")
        return self._inner(inside) if isinstance(inside, Mapping) else None

    def _takes(self, node: Node) -> str:
        plain = self._plain(node)
        if "enum" in plain:
            return one_of(plain["enum"])
        if _kind(plain) == "array":
            return f"a list: {self._takes(plain['items'])}"
        if _kind(plain) == "object":
            inside = plain.get("additionalProperties")
            return (
                f"names with {self._takes(inside)} each"
                if isinstance(inside, Mapping)
                else "a section"
            )
        return f"{_WORDS.get(_kind(plain), _kind(plain))}{_limits(plain)}"


_WORDS = {
    "string": "text",
    "boolean": "`true` or `false`",
    "integer": "a whole number",
    "number": "a number",
}


def _kind(node: Node) -> str:
    return str(node.get("type", ""))


def _limits(node: Node) -> str:
    low, above, high = node.get("minimum"), node.get("exclusiveMinimum"), node.get("maximum")
    words = [
        *([f"from {low:,.12g}"] if low is not None else []),
        *([f"above {above:,.12g}"] if above is not None else []),
        *([f"to {high:,.12g}"] if high is not None else []),
    ]
    return " ".join(["", *words])


def _value(default: object) -> str:
    if default is None:
        return "unset"
    return code(f"{default:g}" if isinstance(default, float) else json.dumps(default))
