"""YAML text as plain values that remember their lines: the strict subset of YAML in which a file
means what it looks like.

Works on the event stream of PyYAML, never on its composer: libyaml's composer recurses on the C
stack and ends the process on deep nesting, and neither composer knows duplicate keys. Refused with
advice: aliases, anchors, tags, merge keys, duplicate keys, several documents, and whatever YAML 1.1
reads as something else than it looks like (`22:30` is 1350, `0644` is 420, `2026-01-02` is a date,
`on:` is a key named True; https://yaml.org/type/int.html, float.html, bool.html, timestamp.html).
Reads no file.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import yaml

from hearth.config.fields import Section, within
from hearth.config.settings import SECRET_PLACES, KeySettings, Settings
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

KeyPath = tuple[str | int, ...]
"""Where a value stands in the file: keys of mappings, indices of lists."""

SHOWN_PROBLEMS = 100
_SHOWN_CHARS = 60
_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_WANTED = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text in quotes",
    "bool_type": "must be true or false",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}

MAX_DEPTH = 16
FASTEST_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_NUMBER_CHARS = 30
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]+)?", re.ASCII)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", re.ASCII)
_TAG = "tag:yaml.org,2002:"
_KINDS = {
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "null": "nothing",
    "timestamp": "a date",
}


class Problem(NamedTuple):
    """One thing that is wrong: what and what to do; without a `line` it is that of `path`, or of
    the nearest thing around it.
    """

    path: KeyPath
    text: str
    line: int | None = None


class Document:
    """A file that is YAML: its `value` without those that have `problems` of their own (None in a
    list), and the `lines` of keys and list items. Raises ConfigError where the text holds control
    characters or is not YAML, too deep, or empty.
    """

    def __init__(self, text: str, *, source: str, loader: type[Any] = FASTEST_LOADER) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._source = source
        for at, each in enumerate(text):
            if each not in "\t\r\n" and unicodedata.category(each) in {"Cc", "Cs"}:
                what = f"control character U+{ord(each):04X}; remove it (is this a text file?)"
                self._stop((), text.count("\n", 0, at) + 1, what)
        try:
            self._loader = loader(text)
            try:
                self.value = self._document()
            finally:
                self._loader.dispose()
        except yaml.YAMLError as error:
            self.problems = []
            what = "cannot be read as YAML; save it as plain UTF-8 text"
            mark = None
            if isinstance(error, yaml.MarkedYAMLError):
                what = f"is not YAML: {error.problem}; {_syntax_advice(error)}"
                mark = error.problem_mark or error.context_mark
            self._stop((), 1 if mark is None else mark.line + 1, what)

    def _document(self) -> object:
        self._loader.get_event()
        if self._loader.check_event(yaml.StreamEndEvent):
            self._stop((), 1, "is empty; write `{}` to use all defaults")
        self._loader.get_event()
        value = self._value(())
        self._loader.get_event()
        if not self._loader.check_event(yaml.StreamEndEvent):
            self._stop(
                (),
                line_of_event(self._loader.get_event()),
                "begins a second document; keep everything in one, without another `---`",
            )
        return value

    def _stop(self, path: KeyPath, line: int, text: str) -> NoReturn:
        """Report what makes the rest unreadable."""
        self._report(path, text, line)
        raise config_error(self._source, self.problems, self.lines) from None

    def _report(self, path: KeyPath, text: str, line: int) -> None:
        self.problems.append(Problem(path, text, line))

    def _value(self, path: KeyPath) -> object:
        event = self._loader.get_event()
        self._check_node(event, path)
        if len(path) > MAX_DEPTH:
            self._stop(
                path[:4],
                line_of_event(event),
                f"is nested deeper than {MAX_DEPTH} levels; no setting is",
            )
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        return None

    def _check_node(self, event: yaml.Event, path: KeyPath) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            text = (
                "anchors and aliases (& and *) are not supported; write the value out, or put"
                " quotes around it"
            )
            self._report(path, text, line_of_event(event))
        elif getattr(event, "tag", None) is not None:
            text = "tags (!) are not supported; remove it, or put quotes around the value"
            self._report(path, text, line_of_event(event))

    def _sequence(self, path: KeyPath) -> list[object]:
        items: list[object] = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            here = (*path, len(items))
            self.lines[here] = line_of_event(self._loader.peek_event())
            items.append(self._value(here))
        self._loader.get_event()
        return items

    def _mapping(self, path: KeyPath) -> dict[str, object]:
        entries: dict[str, object] = {}
        seen: dict[str, int] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            known = len(self.problems)
            key, line = self._key(path)
            here = (*path, key)
            if key in seen:
                text = f"is already given in line {seen[key]}; remove one of them"
                self._report(here, text, line)
            seen.setdefault(key, line)
            self.lines.setdefault(here, line)
            value = self._value(here)
            if all(each.path != here for each in self.problems[known:]):
                entries[key] = value
        self._loader.get_event()
        return entries

    def _key(self, path: KeyPath) -> tuple[str, int]:
        event = self._loader.get_event()
        line = line_of_event(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._stop(path, line, "has a list, mapping or alias as a key; keys must be text")
        here = (*path, event.value)
        self._check_node(event, here)
        tag = self._tag(event)
        if tag == "merge":
            self._report(here, "merge keys are not supported; write the keys out", line)
        elif tag not in {"str", "value"}:
            text = (
                f"YAML does not read this key as text but as {_KINDS.get(tag, tag)}; put quotes"
                " around it"
            )
            self._report(here, text, line)
        return event.value, line

    def _tag(self, event: yaml.ScalarEvent) -> str:
        if not event.implicit[0] or event.tag is not None:
            return "str"
        tag: str = self._loader.resolve(yaml.ScalarNode, event.value, (True, False))
        return tag.removeprefix(_TAG)

    def _scalar(self, event: yaml.ScalarEvent, path: KeyPath) -> object:
        tag = self._tag(event)
        text = event.value
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() in {"true", "yes", "on"}
        number = plain_number(text) if tag in {"int", "float"} else None
        if number is not None:
            return number
        if tag in {"int", "float", "timestamp"}:
            self._report(path, _number_advice(tag, text, path), line_of_event(event))
            return None
        return text


def plain_number(text: str) -> int | float | None:
    """What a plain decimal number says, None for any other text."""
    if len(text) > _MAX_NUMBER_CHARS:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else None


def _syntax_advice(error: yaml.MarkedYAMLError) -> str:
    context = error.context or ""
    problem = error.problem or ""
    if "alias" in context or "anchor" in context:
        return "put quotes around text that begins with `*` or `&`"
    if "mapping values" in problem:
        return "put quotes around text that contains `: `, or check the indentation"
    if "any token" in problem:
        return (
            "indent with spaces, not tabs, and put quotes around text that begins with @, %, ` or"
            " a tab"
        )
    return "check the quotes, brackets and indentation above this line"


def _number_advice(tag: str, text: str, path: KeyPath) -> str:
    spelled = "this" if may_hold_a_secret(path) else shown(text)
    if tag == "timestamp":
        return f"YAML reads {spelled} as a date; put quotes around it"
    if _SEXAGESIMAL.fullmatch(text):
        return f"YAML reads {spelled} as a number of minutes or seconds; put quotes around it"
    return (
        f"{spelled} can be read in more than one way; write a plain decimal number, or put quotes"
        " around text"
    )


def line_of_event(event: yaml.Event) -> int:
    """The line in which it begins."""
    return 1 if event.start_mark is None else event.start_mark.line + 1


def dotted(path: KeyPath) -> str:
    """A path as people write it: `auth.keys[0].name`, `models["llama3.1:8b"].num_ctx`."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _BARE_KEY.fullmatch(step) and len(step) <= _SHOWN_CHARS:
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{shown(step)}]")
    return "".join(parts)


def shown(text: str) -> str:
    """Foreign text in quotes, safe for a terminal and a log: control characters escaped, length
    bounded.
    """
    short = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return '"' + "".join(each if each.isprintable() else ascii(each)[1:-1] for each in short) + '"'


def line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int:
    """The line of a value, or of the nearest thing around it."""
    around = (path[:length] for length in range(len(path), 0, -1))
    return next((lines[each] for each in around if each in lines), 1)


def may_hold_a_secret(path: KeyPath) -> bool:
    """Whether a value there must not be quoted: a key, or a URL with credentials in it."""
    if path[:1] == ("modes",):
        path = path[2:]
    return any(path[: len(place)] == place for place in SECRET_PLACES)


def config_error(
    source: str, problems: Iterable[Problem], lines: Mapping[KeyPath, int]
) -> ConfigError:
    """Every problem in the order of the file; beyond `SHOWN_PROBLEMS` only their number."""

    found = (
        (each.line or line_of(each.path, lines), dotted(each.path), each.text) for each in problems
    )
    placed = sorted(found, key=lambda each: each[:2])
    texts = [
        f"{source}:{line}: {place}{': ' if place else ''}{text}"
        for line, place, text in placed[:SHOWN_PROBLEMS]
    ]
    if len(placed) > SHOWN_PROBLEMS:
        texts.append(f"{source}: and {len(placed) - SHOWN_PROBLEMS} more problems")
    return ConfigError(texts)


def complaints(errors: Sequence[ErrorDetails]) -> list[Problem]:
    """pydantic's errors as problems of the file, in the same order."""
    # Likely meanings of unknown keys take a while to find: not for thousands of keys of a file that
    # is something else.
    advise = len(errors) <= SHOWN_PROBLEMS
    # pydantic marks a bad key of a mapping with a step of its own.
    located = [
        (each["loc"][:-1] if each["loc"][-1:] == ("[key]",) else each["loc"], each)
        for each in errors
    ]
    return [Problem(path, _text(error, path, advise=advise)) for path, error in located]


def _text(error: ErrorDetails, path: KeyPath, *, advise: bool) -> str:
    kind: str = error["type"]
    context: dict[str, Any] = error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path) if advise else "unknown key"
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    if error["input"] is None:
        return "has no value; give one, or remove the line for the default"
    wanted = _WANTED.get(kind)
    return error["msg"] if wanted is None else wanted.format(**context) + _got(error["input"], path)


def _got(value: object, path: KeyPath) -> str:
    if isinstance(value, dict):
        return ", not a mapping"
    if isinstance(value, list):
        return ", not a list"
    if may_hold_a_secret(path):
        return ""
    return f", not {shown(value)}" if isinstance(value, str) else f", not {str(value).lower()}"


def _unknown_key(path: KeyPath) -> str:
    section: object = Settings
    for step in path[:-1]:
        section = within(section, str(step))
    known: list[str] = []
    if isinstance(section, type) and issubclass(section, Section):
        known += section.model_fields
    if section is KeySettings:
        known.append("key")
    close = difflib.get_close_matches(str(path[-1])[:100], known, n=1)
    if close:
        return f"unknown key; did you mean {close[0]}?"
    return f"unknown key; known here: {', '.join(known)}"
