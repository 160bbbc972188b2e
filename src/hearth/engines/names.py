"""Names of models at servers that know no tags."""

from __future__ import annotations

from collections.abc import Container

DEFAULT_TAG = ":latest"


def spelled(name: str, listed: Container[str]) -> str:
    """The name as a server lists it (`listed` in lower case): programs written for Ollama say
    `NAME:latest` for what is called `NAME`.
    """
    short = name.removesuffix(DEFAULT_TAG)
    is_meant = name.lower() not in listed and short.lower() in listed
    return short if is_meant else name
