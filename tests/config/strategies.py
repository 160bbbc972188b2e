"""Settings trees as hypothesis draws them: every field of every class, inside the ranges that the file allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, get_origin

from hypothesis import strategies as st

from hearth.config.rules import RANGES
from hearth.config.settings import AuthSettings, Settings, Window
from hearth.config.shapes import field_types, item_type, without_none

_WORDS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=12).filter(lambda text: "${" not in text)
_NAMES = _WORDS | st.builds("{} {}".format, _WORDS, _WORDS)
_MODELS = _WORDS
_MINUTES = st.integers(0, 1439)
_TEXTS: Mapping[str, st.SearchStrategy[str]] = MappingProxyType(
    {
        "time_zone": st.sampled_from(["local", "UTC", "Europe/Berlin", "Asia/Kolkata"]),
        "cron": st.sampled_from(["0 6 * * *", "*/5 * * * *", "30 2 29 2 *", "0 9 * * MON-FRI"]),
        "home_model": _MODELS | st.just(""),
        "url": st.sampled_from(["http://127.0.0.1:11434", "https://gpu.lan", "http://[::1]:80/ollama"]),
        "host": st.sampled_from(["127.0.0.1", "::1", "localhost", "127.1.2.3"]),
        "allowed_hosts": st.sampled_from(["gpu-box.lan", "192.168.1.9", "fd00::1"]),
        "allowed_origins": st.sampled_from(["app://obsidian.md", "http://localhost:*", "vscode-webview://*"]),
        "log_format": st.sampled_from(["auto", "text", "json"]),
        "models": _MODELS,
        "api_key": st.just(""),
        "model": _MODELS,
        "base_url": st.sampled_from(["https://api.anthropic.com", "http://127.0.0.1:9"]),
        "prices": _MODELS,
        "device": st.sampled_from(["0", "1", "GPU-5a7e0b0e-3c1d-4a5b-9c33-000000000001"]),
        "path": st.sampled_from(["", "/var/lib/hearth/hearth.db", "~/hearth.db"]),
        "discord_webhook_url": st.just(""),
        "otlp_endpoint": st.sampled_from(["", "http://127.0.0.1:4318/v1/traces"]),
        "service_name": _WORDS,
        "webhook_url": st.just(""),
        "ntfy_url": st.just(""),
        "secret": st.just(""),
    }
)


def settings_trees() -> st.SearchStrategy[Settings]:
    """Whole trees without keys and webhooks: what is shown of a secret cannot be read back."""
    return _instances(Settings)


def _instances(cls: type) -> st.SearchStrategy[Any]:
    if cls is AuthSettings:
        return st.just(AuthSettings())
    types = field_types(cls)
    return st.builds(cls, **{each.name: _values(cls, each.name, types[each.name]) for each in fields(cls)})


def _values(cls: type, name: str, annotation: Any) -> st.SearchStrategy[Any]:
    inner = without_none(annotation)
    if inner is not annotation and name.startswith("requests_per"):
        return _values(cls, name, inner)
    if inner is not annotation:
        return st.none() | _values(cls, name, inner)
    if get_origin(annotation) is tuple:
        return st.lists(_items(name, item_type(annotation)), max_size=3).map(tuple)
    if get_origin(annotation) is Mapping:
        names = _TEXTS.get(name, _NAMES)
        values = _numbers(cls, name, float) if item_type(annotation) is float else _items(name, item_type(annotation))
        return st.dictionaries(names, values, max_size=3).map(MappingProxyType)
    if annotation in {int, float}:
        return _numbers(cls, name, annotation)
    return _items(name, annotation)


def _numbers(cls: type, name: str, annotation: type) -> st.SearchStrategy[Any]:
    limits = RANGES[cls, name]
    low = limits.at_least if limits.above is None else limits.above
    assert low is not None
    assert limits.at_most is not None
    if annotation is int:
        return st.integers(int(low), int(limits.at_most))
    return st.floats(low, limits.at_most, exclude_min=limits.above is not None)


def _items(name: str, annotation: Any) -> st.SearchStrategy[Any]:
    if annotation is Window:
        return st.builds(Window, start_minute=_MINUTES, end_minute=_MINUTES | st.just(1440))
    if is_dataclass(annotation) and isinstance(annotation, type):
        return _instances(annotation)
    if annotation is str:
        return _TEXTS.get(name, _NAMES)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    return st.booleans()
