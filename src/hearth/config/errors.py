"""What is wrong with the owner's file, and how it is said: `file:line: path: what, and what to do`.

Never shows a value from where a secret may stand, nor pydantic's own error text, which may quote one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth.config.fields import Section, within
from hearth.config.settings import KeySettings, Settings
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

KeyPath = tuple[str | int, ...]
"""Where a value stands in the file: keys of mappings, indices of lists."""

SHOWN_PROBLEMS = 100
_SHOWN_CHARS = 60
_SECRET_PLACES: tuple[KeyPath, ...] = (("alerts",), ("auth",), ("cloud",), ("jobs", "webhooks"), ("ollama",), ("telemetry",))
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


class Problem(NamedTuple):
    """One thing that is wrong: what and what to do; without a `line` it is that of `path`, or of the nearest thing around it."""

    path: KeyPath
    text: str
    line: int | None = None


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
    """Foreign text in quotes, safe for a terminal and a log: control characters escaped, length bounded."""
    short = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return '"' + "".join(each if each.isprintable() else ascii(each)[1:-1] for each in short) + '"'


def may_hold_a_secret(path: KeyPath) -> bool:
    """Whether a value there must not be quoted: a key, or a URL with credentials in it."""
    return any(path[: len(place)] == place for place in _SECRET_PLACES)


def config_error(source: str, problems: Iterable[Problem], lines: Mapping[KeyPath, int]) -> ConfigError:
    """Every problem in the order of the file; beyond `SHOWN_PROBLEMS` only their number."""

    def line_of(path: KeyPath) -> int:
        around = (path[:length] for length in range(len(path), 0, -1))
        return next((lines[each] for each in around if each in lines), 1)

    found = ((each.line or line_of(each.path), dotted(each.path), each.text) for each in problems)
    placed = sorted(found, key=lambda each: each[:2])
    texts = [f"{source}:{line}: {place}{': ' if place else ''}{text}" for line, place, text in placed[:SHOWN_PROBLEMS]]
    if len(placed) > SHOWN_PROBLEMS:
        texts.append(f"{source}: and {len(placed) - SHOWN_PROBLEMS} more problems")
    return ConfigError(texts)


def complaints(errors: Sequence[ErrorDetails]) -> list[Problem]:
    """pydantic's errors as problems of the file, in the same order."""
    # Likely meanings of unknown keys take a while to find: not for thousands of keys of a file that is something else.
    advise = len(errors) <= SHOWN_PROBLEMS
    # pydantic marks a bad key of a mapping with a step of its own.
    located = [(each["loc"][:-1] if each["loc"][-1:] == ("[key]",) else each["loc"], each) for each in errors]
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
    if isinstance(value, dict | list):
        return ", not a mapping" if isinstance(value, dict) else ", not a list"
    if may_hold_a_secret(path):
        return ""
    return f", not {shown(value)}" if isinstance(value, str) else f", not {str(value).lower()}"


def _unknown_key(path: KeyPath) -> str:
    section: object = Settings
    for step in path[:-1]:
        section = within(section, str(step))
    known = [*section.model_fields] if isinstance(section, type) and issubclass(section, Section) else []
    if section is KeySettings:
        known.append("key")
    close = difflib.get_close_matches(str(path[-1])[:100], known, n=1)
    return f"unknown key; did you mean {close[0]}?" if close else f"unknown key; known here: {', '.join(known)}"
