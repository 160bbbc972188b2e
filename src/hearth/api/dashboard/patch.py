"""Differences of two states as JSON Merge Patches (RFC 7386): what has changed, and null for what is gone."""

from __future__ import annotations

from collections.abc import Mapping


def bare(value: object) -> object:
    """The value without anything that is None in its mappings, since null means "gone" in a patch."""
    if isinstance(value, Mapping):
        return {str(key): bare(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [bare(each) for each in value]
    return value


def merge_patch(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """What makes `old` into `new`; both as `bare` leaves them. Lists are replaced as a whole."""
    patch: dict[str, object] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if before is value or before == value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            patch[key] = merge_patch(before, value)
        else:
            patch[key] = value
    return patch
