"""Settings as the plain values that stand in the file: the inverse of reading it.

Keeps secrets as they are; whoever shows the result to people goes through `rendering`. For modules of `config` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum

from hearth.config.active_hours import window_text
from hearth.config.settings import Window
from hearth.types import Priority

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]


def plain(value: object, instead: Callable[[object], dict[str, Plain]] = lambda _: {}) -> Plain:
    """Dataclasses and mappings as dicts, tuples as lists, windows as `HH:MM-HH:MM`, priorities and other choices by name.

    Args:
        instead: what stands in place of fields of a dataclass.
    """
    if is_dataclass(value) and not isinstance(value, Window):
        return {each.name: plain(getattr(value, each.name), instead) for each in fields(value)} | instead(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each, instead) for key, each in value.items()}
    if isinstance(value, tuple):
        return [plain(each, instead) for each in value]
    return _single(value)


def _single(value: object) -> str | int | float | bool | None:
    if isinstance(value, Window):
        return window_text(value)
    if isinstance(value, Priority):
        return value.name.lower()
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"a setting of type {type(value).__name__} has no form in the file")
