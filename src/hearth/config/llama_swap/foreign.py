"""YAML as the programs read it that it was written for.

Unlike Hearth's own files it may have anchors, aliases and merge keys, and a plain scalar that is
neither `true`, `false`, `null` nor a plain decimal number is the text that it looks like.
"""

from __future__ import annotations

import yaml

from hearth.config.document import Document, KeyPath, line_of, line_of_event, plain_number

MOST_NODES = 20_000
"""Values in a file, each counted as often as aliases repeat it."""
_MERGE = "<<"
_NO_MAPPING = "`<<` must be a mapping, or a list of mappings"
_TEXT_TAG = "tag:yaml.org,2002:str"


class ForeignDocument(Document):
    """A file of another program: its `value`, `problems` and `lines`, as `Document` has them.

    Raises ConfigError, also where aliases make it larger than `MOST_NODES`.
    """

    def __init__(self, text: str, *, source: str) -> None:
        self._anchored: dict[str, tuple[object, int]] = {}
        self._nodes = 0
        super().__init__(text, source=source)

    def _value(self, path: KeyPath) -> object:
        event = self._loader.peek_event()
        if isinstance(event, yaml.AliasEvent):
            return self._of_alias(self._loader.get_event(), path)
        before = self._nodes
        self._count(1, event, path)
        value = super()._value(path)
        if event.anchor is not None:
            self._anchored[event.anchor] = (value, self._nodes - before)
        return value

    def _of_alias(self, event: yaml.AliasEvent, path: KeyPath) -> object:
        if event.anchor not in self._anchored:
            self._stop(path, line_of_event(event), f"*{event.anchor} is no anchor above this line")
        value, nodes = self._anchored[event.anchor]
        self._count(nodes, event, path)
        return value

    def _count(self, nodes: int, event: yaml.Event, path: KeyPath) -> None:
        self._nodes += nodes
        if self._nodes > MOST_NODES:
            what = f"the file has more than {MOST_NODES} values (aliases count as what they repeat)"
            self._stop(path, line_of_event(event), what)

    def _check_node(self, event: yaml.Event, path: KeyPath) -> None:
        tag = getattr(event, "tag", None)
        if tag not in {None, _TEXT_TAG}:
            self._report(path, "tags (!) are not supported; remove it", line_of_event(event))

    def _key(self, path: KeyPath) -> tuple[str, int]:
        event = self._loader.get_event()
        line = line_of_event(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._stop(path, line, "has a list, mapping or alias as a key; keys must be text")
        return event.value, line

    def _mapping(self, path: KeyPath) -> dict[str, object]:
        entries = super()._mapping(path)
        if _MERGE not in entries:
            return entries
        given = entries.pop(_MERGE)
        found: dict[str, object] = {}
        for each in given if isinstance(given, list) else [given]:
            if not isinstance(each, dict):
                self._report(path, _NO_MAPPING, line_of(path, self.lines))
                continue
            found = each | found
        return found | entries

    def _scalar(self, event: yaml.ScalarEvent, path: KeyPath) -> object:
        del path
        text = event.value
        tag = self._tag(event)
        if tag == "null":
            return None
        if tag == "bool" and text.lower() in {"true", "false"}:
            return text.lower() == "true"
        number = plain_number(text) if tag in {"int", "float"} else None
        return text if number is None else number
