"""pydantic's findings in the owner's language."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hearth.config.problems import SHOWN_PROBLEMS, KeyPath, Problem, may_hold_a_secret, shown
from hearth.config.shapes import known_keys

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_WANTED: Mapping[str, str] = MappingProxyType(
    {
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "float_type": "must be a number",
        "string_type": "must be text in quotes",
        "bool_type": "must be true or false",
        "enum": "must be {expected}",
        "tuple_type": "must be a list",
        "dict_type": "must be a mapping",
        "model_type": "must be a mapping",
        "greater_than": "must be more than {gt:g}",
        "greater_than_equal": "must be at least {ge:g}",
        "less_than_equal": "must be at most {le:g}",
    }
)


def complaints(errors: Sequence[ErrorDetails]) -> list[Problem]:
    """pydantic's errors as problems of the file, in the same order."""
    return [_complaint(each, advise=len(errors) <= SHOWN_PROBLEMS) for each in errors]


def _complaint(error: ErrorDetails, *, advise: bool) -> Problem:
    path = _path(error["loc"])
    if error["type"] == "extra_forbidden":
        # Likely meanings take a while to find: not for thousands of keys of a file that is something else.
        return Problem(path=path, text=_unknown_key(path) if advise else "unknown key")
    return Problem(path=path, text=_text(error, path))


def _path(loc: tuple[int | str, ...]) -> KeyPath:
    # pydantic marks a bad key of a mapping with a step of its own.
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def _text(error: ErrorDetails, path: KeyPath) -> str:
    kind: str = error["type"]
    context: dict[str, Any] = error.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    if error["input"] is None:
        return "has no value; give one, or remove the line for the default"
    wanted = _WANTED.get(kind)
    return error["msg"] if wanted is None else wanted.format(**context) + _got(error["input"], path)


def _unknown_key(path: KeyPath) -> str:
    known = known_keys(path[:-1])
    close = difflib.get_close_matches(str(path[-1])[:100], known, n=1)
    return f"unknown key; did you mean {close[0]}?" if close else f"unknown key; known here: {', '.join(known)}"


def _got(value: object, path: KeyPath) -> str:
    if isinstance(value, dict | list):
        return ", not a mapping" if isinstance(value, dict) else ", not a list"
    if may_hold_a_secret(path):
        return ""
    return f", not {shown(value)}" if isinstance(value, str) else f", not {str(value).lower()}"
