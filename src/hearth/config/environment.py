"""Secrets and addresses from the environment: `${NAME}` in the places that may have it, and API keys as their digests.

After this step no clear key exists any more; a problem names the variable and never its content. Takes the environment as an argument;
only `loading` calls it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from hearth.config.errors import KeyPath, Problem
from hearth.config.fields import MIN_SECRET_CHARS

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_REPLACED_IN: Final = frozenset(
    {
        ("ollama", "url"),
        ("cloud", "api_key"),
        ("cloud", "base_url"),
        ("alerts", "discord_webhook_url"),
        ("alerts", "webhook_url"),
        ("alerts", "ntfy_url"),
        ("jobs", "webhooks", "secret"),
    }
)
_CLEAR_NOWHERE: Final = ("cloud", "api_key")
_MAKE_ONE: Final = "`hearth admin key new NAME` makes a key that nobody guesses"
_UNKNOWN_DIGEST: Final = "0" * 64
_WHERE = (
    "`${...}` is replaced only in auth.keys[].key, ollama.url, cloud.api_key, cloud.base_url, "
    "jobs.webhooks.secret and the URLs of alerts; write the value itself"
)


def from_environment(value: object, environ: Mapping[str, str]) -> tuple[object, tuple[Problem, ...]]:
    """The document with every reference replaced and every `key` of `auth.keys` turned into `sha256`, and what was wrong with them."""
    reader = _Replacement(environ)
    return reader.walk((), value), tuple(reader.problems)


class _Replacement:
    """One walk over one document."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[Problem] = []

    def walk(self, path: KeyPath, value: object) -> object:
        if path[:2] == ("auth", "keys") and len(path) == 3 and isinstance(value, dict):
            value = self._hashed(path, value)
        if isinstance(value, dict):
            return {key: self.walk((*path, key), each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.walk((*path, index), each) for index, each in enumerate(value)]
        return self._text(path, value) if isinstance(value, str) else value

    def _text(self, path: KeyPath, text: str) -> str:
        if path == _CLEAR_NOWHERE and text and _REFERENCE.fullmatch(text) is None:
            self._refuse(path, "must be ${NAME}, so that no key stands in this file")
            return ""
        if "${" not in text:
            return text
        if path not in _REPLACED_IN:
            self._refuse(path, _WHERE)
            return text
        replaced = _REFERENCE.sub(lambda match: self._variable(path, match.group(1)), text)
        if "${" in _REFERENCE.sub("", text):
            self._refuse(path, "holds a `${` that names no variable; write `${NAME}`")
        return replaced

    def _variable(self, path: KeyPath, name: str) -> str:
        content = self._environ.get(name, "")
        if not content:
            self._refuse(path, f"the environment variable {name} is not set; set it, or write the value itself")
        return content

    def _hashed(self, path: KeyPath, entry: dict[str, object]) -> dict[str, object]:
        """The entry with a digest in place of a key."""
        if "key" in entry and "sha256" in entry:
            self._refuse((*path, "key"), "give either sha256 or key, not both")
        elif "key" not in entry and "sha256" not in entry:
            self._refuse((*path, "sha256"), "is missing: give sha256, or key: ${NAME} (`hearth admin key new NAME` prints one)")
        if "key" not in entry:
            return entry
        rest = {name: value for name, value in entry.items() if name != "key"}
        return {"sha256": self._digest((*path, "key"), entry["key"])} | rest

    def _digest(self, path: KeyPath, reference: object) -> str:
        match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
        if match is None:
            self._refuse(path, "must be ${NAME}, so that no key stands in this file; or give its sha256 instead")
            return _UNKNOWN_DIGEST
        content = self._environ.get(match.group(1), "")
        if not content:
            self._refuse(path, f"the environment variable {match.group(1)} is not set; set it, or give sha256 instead")
        elif not (content.isascii() and content.isprintable() and " " not in content):
            self._refuse(path, f"the environment variable {match.group(1)} holds a character that no HTTP header can carry")
        elif len(content) < MIN_SECRET_CHARS:
            self._refuse(path, f"the environment variable {match.group(1)} has fewer than {MIN_SECRET_CHARS} characters; {_MAKE_ONE}")
        return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()

    def _refuse(self, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(path=path, text=text))
