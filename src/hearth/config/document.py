"""YAML text as plain values that remember their lines: the strict subset of YAML in which a file means what it looks like.

Works on the event stream of PyYAML, never on its composer: libyaml's composer recurses on the C stack and ends the process on deep nesting,
and neither composer knows duplicate keys. Refused with advice: aliases, anchors, tags, merge keys, duplicate keys, several documents, and
whatever YAML 1.1 reads as something else than it looks like (`22:30` is 1350, `0644` is 420, `2026-01-02` is a date, `on:` is a key named
True; https://yaml.org/type/int.html, float.html, bool.html, timestamp.html). Reads no file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NoReturn, Protocol

import yaml

from hearth.config.errors import KeyPath, Problem, config_error, may_hold_a_secret, shown

MAX_DEPTH = 16
_MAX_NUMBER_CHARS = 30
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]+)?", re.ASCII)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", re.ASCII)
_TAG = "tag:yaml.org,2002:"


class EventSource(Protocol):
    """The part of a PyYAML loader that is used here."""

    def check_event(self, kind: type[yaml.Event], /) -> bool: ...
    def peek_event(self) -> yaml.Event: ...
    def get_event(self) -> yaml.Event: ...
    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool], /) -> str: ...
    def dispose(self) -> None: ...


Loader = Callable[[str], EventSource]
FASTEST_LOADER: Final[Loader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file that is well-formed YAML.

    Attributes:
        value: mappings, lists, strings, ints, floats, bools and None. A value with a problem of its own is left out, or None in a list.
        lines: the line, counted from 1, of every key and list item.
        problems: what is wrong with single values; the rest of the document is usable for finding more.
    """

    value: object
    lines: Mapping[KeyPath, int]
    problems: tuple[Problem, ...]


def read_document(text: str, *, source: str, loader: Loader = FASTEST_LOADER) -> Document:
    """The one document in `text`.

    Raises:
        ConfigError: the text holds control characters, is not YAML, is nested too deep, or is empty.
    """
    _check_text(text, source)
    try:
        return _Reader(loader(text), source).document()
    except yaml.MarkedYAMLError as error:
        raise config_error(source, [_syntax_problem(error)], {}) from None
    except yaml.YAMLError:
        raise config_error(source, [Problem(path=(), text="is not YAML that can be read; save it again as plain UTF-8 text")], {}) from None


def _check_text(text: str, source: str) -> None:
    at = next((at for at, each in enumerate(text) if _is_control(each)), None)
    if at is not None:
        what = f"control character U+{ord(text[at]):04X}; remove it (is this a text file?)"
        raise config_error(source, [Problem(path=(), line=text.count("\n", 0, at) + 1, text=what)], {})


def _is_control(character: str) -> bool:
    return character not in "\t\r\n" and unicodedata.category(character) in {"Cc", "Cs"}


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = 1 if mark is None else mark.line + 1
    return Problem(path=(), line=line, text=f"is not YAML: {error.problem}; {_syntax_advice(error)}")


def _syntax_advice(error: yaml.MarkedYAMLError) -> str:
    context, problem = error.context or "", error.problem or ""
    if "alias" in context or "anchor" in context:
        return "put quotes around text that begins with `*` or `&`"
    if "mapping values" in problem:
        return "put quotes around text that contains `: `, or check the indentation"
    if "any token" in problem:
        return "indent with spaces, not tabs, and put quotes around text that begins with @, %, ` or a tab"
    return "check the quotes, brackets and indentation above this line"


class _Reader:
    """One pass over the events of one text."""

    def __init__(self, loader: EventSource, source: str) -> None:
        self._loader = loader
        self._source = source
        self._lines: dict[KeyPath, int] = {}
        self._problems: list[Problem] = []

    def document(self) -> Document:
        try:
            self._next()
            self._open_document()
            value = self._value(())
            self._next()
            self._close_stream()
        finally:
            self._loader.dispose()
        return Document(value=value, lines=self._lines, problems=tuple(self._problems))

    def _open_document(self) -> None:
        if self._loader.check_event(yaml.StreamEndEvent):
            self._stop((), 1, "is empty, which may be an accident; write `{}` if all defaults are meant")
        self._next()

    def _close_stream(self) -> None:
        if not self._loader.check_event(yaml.StreamEndEvent):
            self._stop((), _line(self._next()), "begins a second document; keep everything in one, without another `---`")

    def _next(self) -> yaml.Event:
        return self._loader.get_event()

    def _stop(self, path: KeyPath, line: int, text: str) -> NoReturn:
        """Report what makes the rest unreadable."""
        raise config_error(self._source, [*self._problems, Problem(path=path, line=line, text=text)], self._lines)

    def _refuse(self, path: KeyPath, line: int, text: str) -> None:
        self._problems.append(Problem(path=path, line=line, text=text))

    def _value(self, path: KeyPath) -> object:
        event = self._next()
        self._check_node(event, path)
        if len(path) > MAX_DEPTH:
            self._stop(path[:4], _line(event), f"is nested deeper than {MAX_DEPTH} levels; nothing in this file is")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path)
        return self._scalar(event, path) if isinstance(event, yaml.ScalarEvent) else None

    def _check_node(self, event: yaml.Event, path: KeyPath) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self._refuse(
                path, _line(event), "anchors and aliases (& and *) are not supported; write the value out, or put quotes around it"
            )
        elif getattr(event, "tag", None) is not None:
            self._refuse(path, _line(event), "tags (!) are not supported; remove it, or put quotes around the value")

    def _sequence(self, path: KeyPath) -> list[object]:
        items: list[object] = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            here = (*path, len(items))
            self._lines[here] = _line(self._loader.peek_event())
            items.append(self._value(here))
        self._next()
        return items

    def _mapping(self, path: KeyPath) -> dict[str, object]:
        entries: dict[str, object] = {}
        seen: dict[KeyPath, int] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            known = len(self._problems)
            line = _line(self._loader.peek_event())
            here = (*path, self._key(path))
            self._place_key(here, line, seen)
            value = self._value(here)
            if all(each.path != here for each in self._problems[known:]):
                entries[str(here[-1])] = value
        self._next()
        return entries

    def _place_key(self, path: KeyPath, line: int, seen: dict[KeyPath, int]) -> None:
        self._lines.setdefault(path, line)
        if path in seen:
            self._refuse(path, line, f"is already given in line {seen[path]}; remove one of them")
        seen.setdefault(path, line)

    def _key(self, path: KeyPath) -> str:
        event = self._next()
        if not isinstance(event, yaml.ScalarEvent):
            self._stop(path, _line(event), "has a list, mapping or alias as a key; keys must be text")
        here = (*path, event.value)
        self._check_node(event, here)
        tag = self._tag(event)
        if tag == "merge":
            self._refuse(here, _line(event), "merge keys are not supported; write the keys out")
        elif tag not in {"str", "value"}:
            self._refuse(here, _line(event), f"YAML does not read this key as text but as {_KINDS.get(tag, tag)}; put quotes around it")
        return str(event.value)

    def _tag(self, event: yaml.ScalarEvent) -> str:
        if not event.implicit[0] or event.tag is not None:
            return "str"
        return self._loader.resolve(yaml.ScalarNode, event.value, (True, False)).removeprefix(_TAG)

    def _scalar(self, event: yaml.ScalarEvent, path: KeyPath) -> object:
        tag, text = self._tag(event), str(event.value)
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() in {"true", "yes", "on"}
        if tag in {"int", "float"} and len(text) <= _MAX_NUMBER_CHARS:
            if _INTEGER.fullmatch(text):
                return int(text)
            if _DECIMAL.fullmatch(text):
                return float(text)
        if tag in {"int", "float", "timestamp"}:
            self._refuse(path, _line(event), _number_advice(tag, text, path))
            return None
        return text


_KINDS: Mapping[str, str] = MappingProxyType(
    {"bool": "true or false", "int": "a number", "float": "a number", "null": "nothing", "timestamp": "a date"}
)


def _number_advice(tag: str, text: str, path: KeyPath) -> str:
    spelled = "this" if may_hold_a_secret(path) else shown(text)
    if tag == "timestamp":
        return f"YAML reads {spelled} as a date; put quotes around it"
    if _SEXAGESIMAL.fullmatch(text):
        return f"YAML reads {spelled} as a number of minutes or seconds; put quotes around it"
    return f"{spelled} can be read in more than one way; write a plain decimal number, or put quotes around text"


def _line(event: yaml.Event) -> int:
    return 1 if event.start_mark is None else event.start_mark.line + 1
