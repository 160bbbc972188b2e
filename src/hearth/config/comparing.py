"""Two configurations of which only what may be shown is known: what a running gateway tells of its own against a file.

Works on the plain values of `rendering.as_values`; secrets are compared by the beginnings of their digests. Reads no file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import cast

from hearth.config.plain import Plain, plain
from hearth.config.problems import KeyPath, dotted
from hearth.config.rendering import as_values
from hearth.config.settings import Settings, Window
from hearth.config.shapes import Annotation, field_docs, field_types, item_type, mode_of, without_none

_FINGERPRINT_CHARS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that differs.

    Attributes:
        path: where it stands in the file, with dots.
        old, new: as they would stand in the file, secrets shortened; None also where the setting, or the entry it belongs to, is absent.
        hot: a reload applies it at once; otherwise it takes a restart.
    """

    path: str
    old: Plain
    new: Plain
    hot: bool


def fingerprints(settings: Settings) -> dict[str, str]:
    """For every value outside lists that is not shown as it is: where it stands, and the beginning of the SHA-256 of what it is."""
    return {dotted(path): _fingerprint(value) for path, value in _hidden((), plain(settings), as_values(settings))}


def compare(old: Plain, new: Plain, *, old_secrets: Mapping[str, object], new_secrets: Mapping[str, object]) -> tuple[Change, ...]:
    """What changes when `new` takes the place of `old`, both as `as_values` gives them.

    Entries of a list that have a `name` are compared by it, in any order. A key that one of the two does not know counts as absent there.

    Args:
        old_secrets, new_secrets: their `fingerprints`; a secret that only one of them tells of is taken as unchanged.
    """
    replaced = {path for path, digest in new_secrets.items() if old_secrets.get(path, digest) != digest}
    found = {change.path: change for change in _walk((), Settings, old, new, hot=True)}
    return (*found.values(), *(_secret_change(path, old, new) for path in sorted(replaced - set(found))))


def _hidden(path: KeyPath, real: Plain, shown: Plain) -> Iterator[tuple[KeyPath, Plain]]:
    if isinstance(real, dict) and isinstance(shown, dict):
        for key, value in real.items():
            yield from _hidden((*path, key), value, shown.get(key))
    elif not isinstance(real, list) and real != shown:
        yield path, real


def _fingerprint(value: Plain) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:_FINGERPRINT_CHARS]


def _secret_change(path: str, old: Plain, new: Plain) -> Change:
    keys = path.split(".")
    return Change(path=path, old=_value_at(old, keys), new=_value_at(new, keys), hot=_is_hot(keys))


def _value_at(value: Plain, keys: list[str]) -> Plain:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _is_hot(keys: list[str]) -> bool:
    annotation: Annotation = Settings
    hot = True
    for key in keys:
        annotation, hot = _below(annotation, key, hot=hot)
    return hot


def _walk(path: KeyPath, annotation: Annotation, old: Plain, new: Plain, *, hot: bool) -> Iterator[Change]:
    if old == new:
        return
    before, after = _by_name(old), _by_name(new)
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            inner, hot_below = _below(annotation, key, hot=hot)
            yield from _walk((*path, key), inner, before.get(key), after.get(key), hot=hot_below)
    else:
        yield Change(path=dotted(path), old=old, new=new, hot=hot)


def _below(annotation: Annotation, key: str, *, hot: bool) -> tuple[Annotation, bool]:
    """What stands under `key`, and whether it is hot; what no docstring says is as what is around it."""
    if not (isinstance(annotation, type) and is_dataclass(annotation)) or annotation is Window:
        return without_none(item_type(annotation)), hot
    mode = mode_of(field_docs(annotation).get(key, ""))
    return without_none(field_types(annotation).get(key)), hot if mode is None else mode == "hot"


def _by_name(value: Plain) -> Plain:
    """A list of named entries as a mapping; anything else as it is."""
    if not isinstance(value, list) or not value:
        return value
    named = {each["name"]: each for each in value if isinstance(each, dict) and isinstance(each.get("name"), str)}
    return cast("Plain", named) if len(named) == len(value) else value
