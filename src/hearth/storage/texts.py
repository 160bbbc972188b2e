"""Texts that a database takes, whatever callers have put into them. Pure. Used by whoever writes rows."""

from __future__ import annotations


def storable(text: str) -> str:
    """Texts from callers may hold lone surrogates, which no database takes; they are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
