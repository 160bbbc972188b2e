"""Names of models at servers that know no tags."""

from __future__ import annotations

from collections.abc import Container

DEFAULT_TAG = ":latest"


def spelled(name: str, listed: Container[str]) -> str:
    """The name as a server lists it (`listed` in lower case): to programs written for Ollama `NAME`
    and `NAME:latest` are one.
    """
    short = name.removesuffix(DEFAULT_TAG)
    other = short if short != name else f"{name}{DEFAULT_TAG}"
    is_meant = name.lower() not in listed and other.lower() in listed
    return other if is_meant else name
