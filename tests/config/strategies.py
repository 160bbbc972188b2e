"""Settings trees as hypothesis draws them: every field of every class, inside the ranges that the file allows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st

from hearth.config.fields import Section
from hearth.config.settings import AuthSettings, Settings, Window
from tests.config.kinds import entry_of, kind_of, limits_of, section_in

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


def _instances(cls: type[Section]) -> st.SearchStrategy[Any]:
    if cls is AuthSettings:
        return st.just(AuthSettings())
    return st.builds(cls, **{name: _values(cls, name) for name in cls.model_fields})


def _values(cls: type[Section], name: str) -> st.SearchStrategy[Any]:
    kind, entry = kind_of(cls, name), entry_of(cls, name)
    if get_origin(kind) is tuple:
        found: st.SearchStrategy[Any] = st.lists(_items(name, entry), max_size=3).map(tuple)
    elif entry is not None:
        values = _numbers(cls, name, float) if entry is float else _items(name, entry)
        found = st.dictionaries(_TEXTS.get(name, _NAMES), values, max_size=3).map(MappingProxyType)
    elif kind in {int, float}:
        found = _numbers(cls, name, kind)
    else:
        found = _items(name, kind)
    is_optional = type(None) in get_args(cls.model_fields[name].annotation) and not name.startswith("requests_per")
    return st.none() | found if is_optional else found


def _numbers(cls: type[Section], name: str, kind: object) -> st.SearchStrategy[Any]:
    limits = limits_of(cls, name)
    if kind is int:
        return st.integers(int(limits.low), int(limits.high))
    return st.floats(limits.low, limits.high, exclude_min=limits.above)


def _items(name: str, kind: Any) -> st.SearchStrategy[Any]:
    if kind is Window:
        return st.builds(Window, start_minute=_MINUTES, end_minute=_MINUTES | st.just(1440))
    inner = section_in(kind)
    if inner is not None:
        return _instances(inner)
    if kind is str:
        return _TEXTS.get(name, _NAMES)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    return st.booleans()
