"""Digests of models whose server says of a file only what it tells while the model runs."""

from __future__ import annotations

import hashlib

from hearth.dialects.gojson import JsonValue, encode


class Digests:
    """A digest that changed with the first run of a model would make another model of it. So what
    is first told while it runs counts for nothing, and anything else that is told later makes
    another digest, which stays when the model stops.
    """

    def __init__(self) -> None:
        self._first: dict[str, JsonValue] = {}
        self._last: dict[str, JsonValue] = {}

    def of(self, name: str, decisive: list[JsonValue], told: JsonValue) -> str:
        """Args:
        decisive: what is known at all times. told: of a model that runs, empty of others.
        """
        if told:
            self._last[name] = told
            self._first.setdefault(name, told)
        last = self._last.get(name)
        changed = [] if last == self._first.get(name) else [last]
        return hashlib.sha256(encode([name, *decisive, *changed])).hexdigest()
