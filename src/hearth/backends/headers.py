"""Which header fields cross between a caller and a model server.

Pure; all names are in lower case. Credentials of callers are for Hearth: they must never reach a model server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hearth.errors import BadRequest
from hearth.types import Headers

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
CREDENTIALS = frozenset({b"api-key", b"authorization", b"cookie", b"x-api-key"})
WRITTEN_BY_THE_ADAPTER = frozenset({b"accept-encoding", b"content-length", b"expect", b"host"})
REFUSED_BY_OLLAMA = frozenset({b"origin"})
"""An Origin outside OLLAMA_ORIGINS is answered with an empty 403; Hearth has checked it already."""
NOT_SENT = HOP_BY_HOP | CREDENTIALS | WRITTEN_BY_THE_ADAPTER | REFUSED_BY_OLLAMA
WRITTEN_BY_HEARTH = frozenset({b"set-cookie", b"x-request-id", b"x-queue-position", b"x-estimated-wait-seconds", b"x-estimated-wait-rough"})
"""In answers: a model server sets no cookie for Hearth's own host, and says nothing in Hearth's name."""
WRITTEN_BY_HEARTH_PREFIXES = (b"access-control-", b"x-hearth-")
LINE_BREAK = re.compile(rb"[\r\n\0]")


def to_send(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The caller's fields that a model server may see.

    Raises:
        BadRequest: a field carries a line break.
    """
    kept = _without(NOT_SENT, headers)
    if LINE_BREAK.search(b"".join([part for field in kept for part in field])):
        raise BadRequest("A header contains a line break.")
    return kept


def to_return(fields: Sequence[tuple[bytes, bytes]]) -> Headers:
    """End-to-end fields of an answer in wire order; which pages may read it is for Hearth to say (`server.allowed_origins`)."""
    kept = _without(HOP_BY_HOP | WRITTEN_BY_HEARTH, fields)
    return tuple([field for field in kept if not field[0].startswith(WRITTEN_BY_HEARTH_PREFIXES)])


def _without(names: frozenset[bytes], fields: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """All fields but those of these names, and those that belong to the connection because it says so (RFC 9110, section 7.6.1)."""
    for name, value in fields:
        if name == b"connection":
            names = names.union(option.strip().lower() for option in value.split(b","))
    return [field for field in fields if field[0] not in names]
