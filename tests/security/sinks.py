"""All that comes out of a gateway, and the search for words in it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


def forms_of(canary: str) -> Iterator[bytes]:
    """The word as it may hide: in other letters, in hex, in base64 wherever in a text it stood."""
    raw = canary.encode()
    yield from {raw, raw.lower(), raw.upper(), raw.hex().encode(), raw[::-1], "".join(f"%{byte:02x}" for byte in raw).encode()}
    for lead in range(3):
        coded = base64.b64encode(b"x" * lead + raw)
        inner = coded[4 if lead else 0 : len(coded) // 4 * 4 - 4]
        yield inner
        yield inner.replace(b"+", b"-").replace(b"/", b"_")


@dataclass
class Sinks:
    """Everything that came out, by where."""

    said: dict[str, bytes] = field(default_factory=dict)

    def add(self, where: str, what: bytes) -> None:
        self.said[where] = self.said.get(where, b"") + what

    def found(self, canaries: Mapping[str, str]) -> list[tuple[str, str]]:
        return [
            (name, where)
            for name, canary in canaries.items()
            for where, what in self.said.items()
            if any(form in what for form in forms_of(canary))
        ]
