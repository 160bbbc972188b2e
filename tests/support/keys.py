"""API keys for the configuration of a house."""

from __future__ import annotations

from typing import Any

from hearth.admission.auth import digest_of
from hearth.config.settings import KeySettings


def key_of(name: str, key: str, **rights: Any) -> KeySettings:
    """The entry of a caller's key."""
    return KeySettings(name=name, sha256=digest_of(key), **rights)
