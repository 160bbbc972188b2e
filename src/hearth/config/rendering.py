"""Settings for people to look at: as YAML, as plain values, and what differs between two of them.

Never shows more of a key's digest than its beginning, or of a webhook's URL than its host. Two
configurations of which only that is known (what a running gateway tells of its own, against a file)
are compared as plain values; their secrets by the beginnings of their digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import yaml
from pydantic.json_schema import GenerateJsonSchema

from hearth.config.active_hours import hours_value
from hearth.config.choices import Window
from hearth.config.document import KeyPath, dotted
from hearth.config.fields import Reload, Section, within
from hearth.config.settings import ModeSettings, Settings
from hearth.types import JsonMapping, Priority, frozen

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]

_DIGEST_CHARS = 8
_SECRETS = (("cloud", "api_key"), ("jobs", "webhooks", "secret"))
_SECRET_URLS = (
    ("alerts", "discord_webhook_url"),
    ("alerts", "webhook_url"),
    ("alerts", "ntfy_url"),
)

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
CONFIG_NAME = "llm_gateway.yaml"
SCHEMA_NAME = "llm_gateway.schema.json"
_INSTALLED = Path(__file__).with_name("shipped")
_IN_SOURCES = Path(__file__).parents[3] / "config"


@frozen
class Change:
    """One setting that differs; values with secrets shortened, None where absent.

    `hot`: a reload applies it, otherwise a restart.
    """

    path: str
    old: Plain
    new: Plain
    hot: bool


def as_values(settings: Settings) -> dict[str, Plain]:
    """Settings as the values that stand in the file, secrets shortened."""
    shown = settings.model_dump(mode="json")
    for *around, name in (*_SECRETS, *_SECRET_URLS):
        section = shown
        for step in around:
            section = section[step]
        if section[name]:
            url = urlsplit(section[name])
            section[name] = (
                f"{url.scheme}://{url.hostname}/…" if (*around, name) in _SECRET_URLS else "${…}"
            )
    for model in shown["models"].values():
        if model["run"]:
            model["run"]["env"] = dict.fromkeys(model["run"]["env"], "${…}")
    for engine in shown["engines"].values():
        engine["api_key"] = engine["api_key"] and "${…}"
    for key in shown["auth"]["keys"]:
        key["sha256"] = key["sha256"][:_DIGEST_CHARS] + "…"
    return shown


class _PlainDumper(yaml.SafeDumper):
    """Writes equal values out each time: the file may have no aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def as_yaml(settings: Settings) -> str:
    """Every effective setting as YAML that reads back as the same settings, except for secrets, of
    which only a beginning is shown.
    """
    return _yaml(as_values(settings), is_flat=False, width=float("inf"))


def plain_yaml(value: object, width: int) -> str:
    """Plain values as YAML that reads back as the same, with the innermost lists and mappings in
    brackets.
    """
    return _yaml(value, is_flat=None, width=width)


def _yaml(value: object, *, is_flat: bool | None, width: float) -> str:
    text: str = yaml.dump(
        value,
        Dumper=_PlainDumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=is_flat,
        width=width,
    )
    return text


def fingerprints(settings: Settings) -> dict[str, str]:
    """For every value outside lists that is not shown as it is: where it stands, and the beginning
    of the SHA-256 of what it is.
    """

    def hidden(path: KeyPath, real: Plain, shown: Plain) -> Iterator[tuple[str, str]]:
        if isinstance(real, dict) and isinstance(shown, dict):
            for key, value in real.items():
                yield from hidden((*path, key), value, shown.get(key))
        elif not isinstance(real, list) and real != shown:
            yield (
                dotted(path),
                hashlib.sha256(json.dumps(real).encode()).hexdigest()[:_DIGEST_CHARS],
            )

    return dict(hidden((), settings.model_dump(mode="json"), as_values(settings)))


def differences(old: Settings, new: Settings) -> dict[str, bool]:
    """The paths of what changes when `new` takes the place of `old`, in the order of the sections,
    each with whether it is hot.
    """
    return {
        change.path: change.hot
        for change in _changes(
            (), Settings, old.model_dump(mode="json"), new.model_dump(mode="json")
        )
    }


def compare(
    old: Plain, new: Plain, *, old_secrets: JsonMapping, new_secrets: JsonMapping
) -> tuple[Change, ...]:
    """What changes when `new` takes the place of `old`, both as `as_values` gives them, with their
    `fingerprints`; a secret of which only one of them tells is taken as unchanged. Entries of a
    list that have a `name` are compared by it.
    """
    found = {change.path: change for change in _changes((), Settings, _by_name(old), _by_name(new))}
    for path in sorted(
        path for path, digest in new_secrets.items() if old_secrets.get(path, digest) != digest
    ):
        if path not in found:
            found[path] = _secret_change(path, old, new)
    return tuple(found.values())


def _secret_change(path: str, old: Plain, new: Plain) -> Change:
    annotation = cast("object", Settings)
    hot = True
    for key in path.split("."):
        annotation, hot = _below(annotation, key, hot=hot)
        old, new = (value.get(key) if isinstance(value, dict) else None for value in (old, new))
    return Change(path=path, old=old, new=new, hot=hot)


def _changes(
    path: KeyPath, annotation: object, old: Plain, new: Plain, *, hot: bool = True
) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            inner, hot_below = _below(annotation, key, hot=hot)
            yield from _changes((*path, key), inner, old.get(key), new.get(key), hot=hot_below)
    else:
        waits = _waits_for_restart(annotation, old) or _waits_for_restart(annotation, new)
        yield Change(path=dotted(path), old=old, new=new, hot=hot and not waits)


def _waits_for_restart(annotation: object, value: Plain) -> bool:
    """Something in a section that comes or goes as a whole is not hot, and set."""
    if not isinstance(value, dict):
        return False
    below = ((_below(annotation, key, hot=True), each) for key, each in value.items() if each)
    return any(not hot or _waits_for_restart(inner, each) for (inner, hot), each in below)


def _below(annotation: object, key: str, *, hot: bool) -> tuple[object, bool]:
    """What stands under `key`, and whether it is hot; what is no field is as what is around it."""
    if (
        isinstance(annotation, type)
        and issubclass(annotation, Section)
        and key in annotation.model_fields
    ):
        hot = annotation.reload_of(key) is not Reload.RESTART
    return within(annotation, key), hot


def _by_name(value: Plain) -> Plain:
    """The same with each list of named entries as a mapping."""
    if isinstance(value, dict):
        return {key: _by_name(each) for key, each in value.items()}
    if not isinstance(value, list) or not value:
        return value
    named = {
        str(each["name"]): _by_name(each)
        for each in value
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }
    return cast("Plain", named) if len(named) == len(value) else value


class _AsInTheFile(GenerateJsonSchema):
    """Defaults as they would stand in the file."""

    def encode_default(self, dft: Any) -> Any:  # noqa: ANN401 - pydantic's own
        if isinstance(dft, Priority):
            return dft.name.lower()
        if isinstance(dft, tuple) and dft and isinstance(dft[0], Window):
            return hours_value(dft)
        return super().encode_default(dft)


def schema() -> dict[str, Any]:
    # what is in several sections is described in another way where one of them was used before
    for section in (ModeSettings, Settings):
        section.model_rebuild(force=True)
    found = Settings.model_json_schema(schema_generator=_AsInTheFile)
    return {"$schema": _DIALECT, "title": "Hearth, llm_gateway.yaml", **_without_titles(found)}


def _without_titles(value: Any) -> Any:  # noqa: ANN401
    """Drop pydantic's titles: they repeat the key, and an editor would show them in place of the
    description, whose line breaks are those of the source and go, too.
    """
    if isinstance(value, list):
        return [_without_titles(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: _without_titles(each)
        for key, each in value.items()
        if not (key == "title" and isinstance(each, str))
    }
    if isinstance(description := kept.get("description"), str):
        kept["description"] = " ".join(description.split())
    return kept


def schema_text() -> str:
    """The schema as it stands in `config/llm_gateway.schema.json`: indented, with a line break at
    the end.
    """
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def shipped_config() -> str:
    """The file as it is shipped: every setting with its default.

    Raises OSError where the installation is not whole.
    """
    folder = _INSTALLED if _INSTALLED.is_dir() else _IN_SOURCES
    return folder.joinpath(CONFIG_NAME).read_text(encoding="utf-8")
