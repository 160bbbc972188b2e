"""Names of models with and without the tag that Ollama gives to those without one."""

from __future__ import annotations

from collections.abc import Container

DEFAULT_TAG = ":latest"


def untagged(name: str) -> str:
    """The name without the tag, in whatever case that is."""
    is_default = name.lower().endswith(DEFAULT_TAG)
    return name[: -len(DEFAULT_TAG)] if is_default else name


def spelled(name: str, listed: Container[str]) -> str:
    """The name as a server lists it (`listed` in lower case): to programs written for Ollama `NAME`
    and `NAME:latest` are one.
    """
    short = untagged(name)
    other = short if short != name else f"{name}{DEFAULT_TAG}"
    is_meant = name.lower() not in listed and other.lower() in listed
    return other if is_meant else name
