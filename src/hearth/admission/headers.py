"""The few request headers that Hearth looks at, read in one pass.

Must never decide anything and never keep a credential longer than the request. Called once per request by `api`; read by the rest of
`admission`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType

from hearth.types import value

_READ = frozenset(
    {
        b"host",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"origin",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"sec-fetch-dest",
        b"content-type",
        b"content-encoding",
        b"content-length",
        b"transfer-encoding",
        b"x-request-id",
        b"x-task-type",
        b"x-priority",
        b"accept",
        b"if-none-match",
        b"idempotency-key",
        b"user-agent",
        b"anthropic-version",
        b"anthropic-beta",
        b"traceparent",
        b"tracestate",
        b"upgrade",
    }
)
LOWER: Mapping[bytes, bytes] = MappingProxyType({spelled: name for name in _READ for spelled in (name, name.title())})
"""Those names as they come, in lower case: one object for all requests."""
_NONE = frozenset[bytes]()
"""One for all: an empty frozenset has 216 bytes."""


@value
class RequestHeaders:
    """First values by lower-case name, and the names that came more than once; fields that Hearth does not read are not here."""

    values: dict[bytes, bytes] = field(repr=False)
    repeated: frozenset[bytes]

    @classmethod
    def of(cls, fields: Iterable[tuple[bytes, bytes]]) -> RequestHeaders:
        """Read header fields whose names are in lower case."""
        values: dict[bytes, bytes] = {}
        repeated = []
        for name, content in fields:
            if name not in _READ:
                continue
            if name in values:
                repeated.append(name)
            else:
                values[name] = content
        return cls(values=values, repeated=frozenset(repeated) if repeated else _NONE)

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, None where it is absent."""
        return self.values.get(name)

    def text(self, name: bytes) -> str:
        """The first value as text without surrounding blanks, empty where it is absent."""
        return self.values.get(name, b"").decode("latin-1").strip()
