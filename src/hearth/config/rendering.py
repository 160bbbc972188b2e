"""Settings for people to look at: the effective file; and which of them changed.

Never shows more of a key's digest than its beginning, or of a webhook's URL than its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from urllib.parse import urlsplit

import yaml

from hearth.config.plain import Plain, plain
from hearth.config.problems import KeyPath, dotted
from hearth.config.settings import AlertSettings, CloudSettings, KeySettings, Settings, WebhookSettings, Window
from hearth.config.shapes import field_docs, mode_of

_SHOWN_DIGEST_CHARS = 8
_SET = "${…}"
"""What is shown of a secret that is set."""
_SECRET_URLS = ("discord_webhook_url", "webhook_url", "ntfy_url")
"""Of `alerts`."""


def as_yaml(settings: Settings) -> str:
    """Every effective setting as YAML that reads back as the same settings, except for secrets, of which only a beginning is shown."""
    # PyYAML's stubs leave the result untyped.
    text: str = yaml.dump(
        as_values(settings), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=float("inf")
    )
    return text


def as_values(settings: Settings) -> Plain:
    """The same as plain values."""
    return plain(settings, _without_secrets)


def differences(old: Settings, new: Settings) -> dict[str, bool]:
    """The paths of what changes when `new` takes the place of `old`, in the order of the settings classes, each with whether it is hot."""
    return {dotted(path): hot for path, hot in _changes((), old, new, hot=True)}


class _PlainDumper(yaml.SafeDumper):
    """Writes equal values out each time: the file may have no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _changes(path: KeyPath, old: object, new: object, *, hot: bool) -> Iterator[tuple[KeyPath, bool]]:
    if old == new:
        return
    if is_dataclass(old) and type(old) is type(new) and not isinstance(old, Window):
        docs = field_docs(type(old))
        for each in fields(old):
            mode = mode_of(docs.get(each.name, ""))
            yield from _changes((*path, each.name), getattr(old, each.name), getattr(new, each.name), hot=mode != "restart")
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            yield from _changes((*path, str(key)), old.get(key), new.get(key), hot=hot)
    else:
        yield path, hot


def _without_secrets(value: object) -> dict[str, Plain]:
    """What is shown of the fields of a section that are secrets, digests shortened."""
    if isinstance(value, KeySettings):
        return {"sha256": value.sha256[:_SHOWN_DIGEST_CHARS] + "…"}
    if isinstance(value, CloudSettings):
        return {"api_key": _whether_set(value.api_key)}
    if isinstance(value, WebhookSettings):
        return {"secret": _whether_set(value.secret)}
    if isinstance(value, AlertSettings):
        return {name: _host_of(getattr(value, name)) for name in _SECRET_URLS}
    return {}


def _whether_set(secret: str) -> Plain:
    return _SET if secret else ""


def _host_of(url: str) -> Plain:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}/…" if url else ""
