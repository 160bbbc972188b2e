"""Settings for people to look at: as YAML, as plain values, and what differs between two of them.

Never shows more of a key's digest than its beginning, or of a webhook's URL than its host. Two configurations of which only that is known
(what a running gateway tells of its own, against a file) are compared as plain values; their secrets by the beginnings of their digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast
from urllib.parse import urlsplit

import yaml

from hearth.config.errors import KeyPath, dotted
from hearth.config.fields import Section, within
from hearth.config.settings import Settings

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]

_DIGEST_CHARS = 8
_SET = "${…}"
"""What is shown of a secret that is set."""


def plain(settings: Settings) -> dict[str, Plain]:
    """Settings as the values that stand in the file, secrets as they are."""
    return settings.model_dump(mode="json")


def as_values(settings: Settings) -> dict[str, Plain]:
    """The same for people to look at."""
    shown = plain(settings)
    for path, hide in _SECRETS.items():
        section = shown
        for step in path[:-1]:
            section = cast("dict[str, Plain]", section[step])
        section[path[-1]] = hide(str(section[path[-1]]))
    for key in cast("list[dict[str, Plain]]", cast("dict[str, Plain]", shown["auth"])["keys"]):
        key["sha256"] = str(key["sha256"])[:_DIGEST_CHARS] + "…"
    return shown


def _whether_set(secret: str) -> Plain:
    return _SET if secret else ""


def _host_of(url: str) -> Plain:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}/…" if url else ""


_SECRETS: Mapping[tuple[str, ...], Callable[[str], Plain]] = MappingProxyType(
    {
        ("cloud", "api_key"): _whether_set,
        ("jobs", "webhooks", "secret"): _whether_set,
        ("alerts", "discord_webhook_url"): _host_of,
        ("alerts", "webhook_url"): _host_of,
        ("alerts", "ntfy_url"): _host_of,
    }
)


class _PlainDumper(yaml.SafeDumper):
    """Writes equal values out each time: the file may have no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def as_yaml(settings: Settings) -> str:
    """Every effective setting as YAML that reads back as the same settings, except for secrets, of which only a beginning is shown."""
    # PyYAML's stubs leave the result untyped.
    text: str = yaml.dump(
        as_values(settings), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=float("inf")
    )
    return text


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


def differences(old: Settings, new: Settings) -> dict[str, bool]:
    """The paths of what changes when `new` takes the place of `old`, in the order of the sections, each with whether it is hot."""
    return {change.path: change.hot for change in _walk((), Settings, plain(old), plain(new), hot=True)}


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
    found = {change.path: change for change in _walk((), Settings, _by_name(old), _by_name(new), hot=True)}
    return (*found.values(), *(_secret_change(path, old, new) for path in sorted(replaced - set(found))))


def _hidden(path: KeyPath, real: Plain, shown: Plain) -> Iterator[tuple[KeyPath, Plain]]:
    if isinstance(real, dict) and isinstance(shown, dict):
        for key, value in real.items():
            yield from _hidden((*path, key), value, shown.get(key))
    elif not isinstance(real, list) and real != shown:
        yield path, real


def _fingerprint(value: Plain) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:_DIGEST_CHARS]


def _secret_change(path: str, old: Plain, new: Plain) -> Change:
    keys = path.split(".")
    return Change(path=path, old=_value_at(old, keys), new=_value_at(new, keys), hot=_is_hot(keys))


def _value_at(value: Plain, keys: list[str]) -> Plain:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _is_hot(keys: list[str]) -> bool:
    annotation: object = Settings
    hot = True
    for key in keys:
        annotation, hot = _below(annotation, key, hot=hot)
    return hot


def _walk(path: KeyPath, annotation: object, old: Plain, new: Plain, *, hot: bool) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            inner, hot_below = _below(annotation, key, hot=hot)
            yield from _walk((*path, key), inner, old.get(key), new.get(key), hot=hot_below)
    else:
        yield Change(path=dotted(path), old=old, new=new, hot=hot)


def _below(annotation: object, key: str, *, hot: bool) -> tuple[object, bool]:
    """What stands under `key`, and whether it is hot; what is no field is as what is around it."""
    if isinstance(annotation, type) and issubclass(annotation, Section) and key in annotation.model_fields:
        hot = annotation.reload_of(key).hot
    return within(annotation, key), hot


def _by_name(value: Plain) -> Plain:
    """The same with each list of named entries as a mapping."""
    if isinstance(value, dict):
        return {key: _by_name(each) for key, each in value.items()}
    if not isinstance(value, list) or not value:
        return value
    named = {str(each["name"]): _by_name(each) for each in value if isinstance(each, dict) and isinstance(each.get("name"), str)}
    return cast("Plain", named) if len(named) == len(value) else value
