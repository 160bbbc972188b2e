"""Settings trees as hypothesis draws them: every number, choice and free name of every class, inside the ranges that the file allows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st

from hearth.config.fields import Section
from hearth.config.settings import Announcement, AuthSettings, Settings, Window
from tests.config.kinds import entry_of, kind_of, limits_of, section_in

_WORDS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=12).filter(lambda text: "${" not in text)
_FREE = {"task_type", "task_types", "home_model", "service_name", "model", "models", "priority_map", "task_vram_gb", "callers", "prices"}
"""Texts, or keys of mappings, that may be nearly anything."""
_MINUTES = st.integers(0, 1439)


def settings_trees() -> st.SearchStrategy[Settings]:
    """Whole trees without keys and webhooks: what is shown of a secret cannot be read back."""
    return _instances(Settings)


def _instances(cls: type[Section]) -> st.SearchStrategy[Any]:
    if cls is AuthSettings:
        return st.just(AuthSettings())
    given = {"cron": st.sampled_from(["0 6 * * *", "*/5 * * * *", "0 9 * * MON-FRI"])} if cls is Announcement else {}
    drawn = {name: _values(cls, name) for name in cls.model_fields}
    return st.builds(cls, **given, **{name: values for name, values in drawn.items() if values is not None})


def _values(cls: type[Section], name: str) -> st.SearchStrategy[Any] | None:
    kind, entry = kind_of(cls, name), entry_of(cls, name)
    if entry is None:
        found = _of_kind(cls, name, kind)
        is_optional = type(None) in get_args(cls.model_fields[name].annotation) and not name.startswith("requests_per")
        return st.none() | found if is_optional and found is not None else found
    entries = _of_kind(cls, name, entry)
    if entries is None:
        return None
    is_mapping = get_origin(kind) is Mapping
    return st.dictionaries(_WORDS, entries, max_size=3).map(MappingProxyType) if is_mapping else st.lists(entries, max_size=3).map(tuple)


def _of_kind(cls: type[Section], name: str, kind: Any) -> st.SearchStrategy[Any] | None:
    inner = section_in(kind)
    if inner is not None:
        return _instances(inner)
    if kind in {int, float}:
        limits = limits_of(cls, name)
        whole = st.integers(int(limits.low), int(limits.high))
        return whole if kind is int else st.floats(limits.low, limits.high, exclude_min=limits.above)
    if kind is Window:
        return st.builds(Window, start_minute=_MINUTES, end_minute=_MINUTES | st.just(1440))
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if kind is bool:
        return st.booleans()
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    return _WORDS if name in _FREE else None
